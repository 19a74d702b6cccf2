"""Conversion of a BERT into the encoder of our Transformer, with its masked-token prediction head.

transformers is imported only to load a checkpoint.

Shape letters: B sentences, T positions, D model width, V vocabulary.
Source: Devlin et al. (2019), section 3; names of tensors as transformers 5 writes them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError, nearest
from nlgraft.nn.architectures import ACTIVATIONS
from nlgraft.nn.conversion.renames import check_places, encoder_places
from nlgraft.nn.linear import ACTIVATIONS as FUNCTIONS
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.modes import seeded
from nlgraft.nn.transformers_lms import load_pretrained, read_checkpoint_config

BERT = "bert"
POSITIONS, SEGMENTS = "embeddings.position_embeddings.weight", "embeddings.token_type_embeddings.weight"
TRANSFORM, PREDICTION_BIAS = "cls.predictions.transform", "cls.predictions.bias"
_ENCODER_PARTS = ("source_embedding.", "source_input.", "encoder.")
_UNREAD = ("pooler.", "embeddings.position_ids")


class PredictionHead(nn.Module):
    """The transform between a BERT's states and its output table: LN(act(W h + b))."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.d_model, config.d_model)
        self.activate = FUNCTIONS[config.activation]
        self.norm = nn.LayerNorm(config.d_model, eps=config.norm_eps)

    def forward(self, states: Tensor) -> Tensor:
        """Transform states [..., D] into the input of the output table, [..., D]."""
        return self.norm(self.activate(self.dense(states)))


@dataclass(frozen=True)
class MaskedEncoder:
    """A BERT converted into our modules.

    Attributes:
        model: A model with the BERT's encoder and tied tables, in evaluation mode; its decoder is arbitrary.
            It has an output bias, the head's, if there is a head.
        head: The rest of the prediction head; None if the checkpoint has none.
        notes: Notes on what is left out.
    """

    model: Seq2Seq
    head: PredictionHead | None
    notes: tuple[str, ...]


def read_encoder_config(hf_config: Mapping[str, Any], where: str) -> TransformerConfig:
    """Make the configuration of an encoder-decoder with a BERT on both sides (Rothe et al. 2020, BERT2BERT).

    The decoder is as deep as the encoder; decoder input and output are tied.

    Args:
        hf_config: The checkpoint's config.json.
        where: The checkpoint, for messages.

    Raises:
        ContractError: Not a BERT, or settings without a counterpart; all are named.
    """
    model_type = hf_config.get("model_type")
    if model_type != BERT:
        raise ContractError(
            f"{where}: model type '{model_type}' cannot be converted into an encoder, only '{BERT}'. Any "
            "encoder can be used as a context instead"
        )
    activation = hf_config["hidden_act"]
    problems = []
    if activation not in ACTIVATIONS:
        problems.append(f"hidden_act '{activation}': {nearest(activation, list(ACTIVATIONS))}")
    kind = hf_config.get("position_embedding_type", "absolute")
    if kind != "absolute":
        problems.append(f"position_embedding_type '{kind}': only 'absolute' can be converted")
    problems += [f"{name} is set" for name in ("is_decoder", "add_cross_attention") if hf_config.get(name)]
    if problems:
        raise ContractError(f"{where}: {'; '.join(problems)}")
    return TransformerConfig(
        d_model=hf_config["hidden_size"],
        num_encoder_layers=hf_config["num_hidden_layers"],
        num_decoder_layers=hf_config["num_hidden_layers"],
        num_heads=hf_config["num_attention_heads"],
        ffn_dim=hf_config["intermediate_size"],
        dropout=hf_config["hidden_dropout_prob"],
        attention_dropout=hf_config["attention_probs_dropout_prob"],
        activation=ACTIVATIONS[activation],
        norm="post",
        has_embedding_norm=True,
        norm_eps=hf_config["layer_norm_eps"],
        source_positions="learned",
        target_positions="learned",
        max_positions=hf_config["max_position_embeddings"],
        has_source_scale=False,
        has_target_scale=False,
        pad_id=hf_config["pad_token_id"],
        tying="decoder",
    )


@torch.no_grad()
def encoder_from_hugging_face(
    checkpoint: str | Path | nn.Module, revision: str | None = None
) -> MaskedEncoder:
    """Convert a BERT, in fp32; torch's random state does not change.

    The vector of the first segment, which every token of a single text has, is added to the positions.

    Args:
        checkpoint: Hub name, local directory, or a BERT of transformers, which is copied.
        revision: Commit, tag or branch of a hub name; None: main.

    Raises:
        ContractError: Not a BERT, settings without a counterpart, or tensors that do not fit.
        DataError: The weights cannot be read.
    """
    hf_model: Any = checkpoint
    notes: list[str] = []
    has_head = hasattr(hf_model, "cls")
    if not isinstance(checkpoint, nn.Module):
        # checked before the weights are loaded, which may be large and of another kind
        read_encoder_config(read_checkpoint_config(str(checkpoint), revision), str(checkpoint))
        hf_model, has_head = _load(str(checkpoint), revision, notes)
    where = type(hf_model).__name__ if isinstance(checkpoint, nn.Module) else str(checkpoint)
    config = read_encoder_config(json.loads(hf_model.config.to_json_string(use_diff=False)), where)
    # The decoder is never run; one layer is the least that a configuration allows.
    config = config.model_copy(update={"tying": "all", "num_decoder_layers": 1, "has_output_bias": has_head})
    body: nn.Module = getattr(hf_model, BERT, hf_model)
    state = body.state_dict().items()
    tensors = {name: tensor for name, tensor in state if not name.startswith(_UNREAD)}
    tensors[POSITIONS] = tensors[POSITIONS].float() + tensors.pop(SEGMENTS)[0].float()
    size = len(tensors["embeddings.word_embeddings.weight"])
    # The unused decoder gets the same bytes for every conversion of a checkpoint.
    with seeded(0):
        model = Seq2Seq(config, size, size).float()
        head = PredictionHead(config).float() if has_head else None
    _fill(model, tensors)
    if head is not None:
        _fill_head(model, head, hf_model.state_dict(), where)
    return MaskedEncoder(model.eval(), head if head is None else head.eval(), tuple(notes))


def _fill(model: Seq2Seq, tensors: Mapping[str, Tensor]) -> None:
    parameter_places = encoder_places(model.config.num_encoder_layers)
    parameters = {n: p for n, p in model.named_parameters() if n.startswith(_ENCODER_PARTS)}
    check_places(parameter_places, parameters, tensors)
    for place in parameter_places:
        parameters[place.parameter].copy_(place.read(tensors))


def _fill_head(
    model: Seq2Seq,
    head: PredictionHead,
    tensors: Mapping[str, Tensor],
    where: str,
) -> None:
    table = tensors["bert.embeddings.word_embeddings.weight"]
    if not torch.equal(tensors["cls.predictions.decoder.weight"], table):
        raise ContractError(f"{where}: predicts with an untied output table; only tied ones can be converted")
    for part in ("weight", "bias"):
        head.dense.get_parameter(part).copy_(tensors[f"{TRANSFORM}.dense.{part}"])
        head.norm.get_parameter(part).copy_(tensors[f"{TRANSFORM}.LayerNorm.{part}"])
    model.output_projection.bias.copy_(tensors[PREDICTION_BIAS])


def _load(
    checkpoint: str,
    revision: str | None,
    notes: list[str],
) -> tuple[nn.Module, bool]:
    """Load the weights; returns the model and whether it has a prediction head."""
    model, report = load_pretrained("BertForMaskedLM", checkpoint, revision, what="a BERT", types="BERT")
    missing = report["missing_keys"]
    has_head = not any(name.startswith(TRANSFORM) for name in missing)
    missing_weights = missing if has_head else [name for name in missing if not name.startswith("cls.")]
    if missing_weights:
        raise ContractError(
            f"{checkpoint}: the file lacks {', '.join(missing_weights[:3])} of the model it names"
        )
    if not has_head:
        notes.append("no prediction head: it predicts no tokens")
    unexpected = (name.removeprefix("bert.").split(".") for name in report["unexpected_keys"])
    unread = sorted({".".join(parts[:2]) for parts in unexpected})
    if unread:
        notes.append(f"not read: {', '.join(unread)}")
    return model, has_head
