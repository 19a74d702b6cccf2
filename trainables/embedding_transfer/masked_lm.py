"""A masked language model of any architecture that transformers has, its loss and its files.

Shape letters: B lines, T positions, D width, M positions to be predicted, V vocabulary.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from nlgraft.errors import DataError
from nlgraft.training.cross_entropy import SmoothingKind, smoothed_cross_entropy
from nlgraft.training.losses import Loss
from trainables.embedding_transfer.masked_lm_config import BertConfig
from trainables.embedding_transfer.masked_lm_data import NOT_ASKED, MaskedBatch, ScoringData


class MaskedLM(nn.Module):
    """Predicts hidden tokens; the prediction head runs where something is asked, and nowhere else."""

    def __init__(self, model: nn.Module) -> None:
        """Wrap a model.

        Args:
            model: A masked language model of transformers.
        """
        super().__init__()
        self.model: Any = model

    @property
    def body_pattern(self) -> str:
        """A regular expression of the names of all parameters but the head's own."""
        return rf"^model\.{self.model.base_model_prefix}\."

    def forward(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Read lines with holes.

        Args:
            batch: The lines.

        Returns:
            Last hidden states [B, T, D], and logits [M, V] where something is asked, line by line.
        """
        positions_M = (batch.labels.flatten() != NOT_ASKED).nonzero()[:, 0]
        states: list[Tensor] = []

        def keep_asked(_module: nn.Module, _inputs: Any, output: Any) -> Any:
            states.append(output.last_hidden_state)
            flat = output.last_hidden_state.flatten(0, 1)
            return type(output)(last_hidden_state=flat.index_select(0, positions_M)[None])

        # every architecture has its own head behind the body: what the body gives it is all that is changed
        handle = self.model.base_model.register_forward_hook(keep_asked)
        try:
            logits = self.model(input_ids=batch.ids, attention_mask=batch.valid.long()).logits
        finally:
            handle.remove()
        return states[0], logits[0]


@dataclass(frozen=True)
class MaskedObjective:
    """Cross-entropy of the hidden tokens.

    Attributes:
        smoothing: Probability mass taken from the true token.
        kind: Who gets it.
    """

    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    def __call__(self, model: MaskedLM, batch: MaskedBatch) -> Loss:
        """Compute the summed loss of a batch and its number of hidden tokens."""
        _, logits_MV = model(batch)
        target_M = asked_tokens(batch)
        return Loss(smoothed_cross_entropy(logits_MV, target_M, self.smoothing, self.kind), len(target_M))


def asked_tokens(batch: MaskedBatch) -> Tensor:
    """Take the tokens that are to be predicted.

    Args:
        batch: Lines with holes.

    Returns:
        True tokens [M], line by line.
    """
    return batch.labels[batch.labels != NOT_ASKED]


@dataclass(frozen=True)
class MaskedLosses:
    """Negative log-likelihood of what every line hides.

    Attributes:
        nats: Of each line, [N].
        tokens: Hidden tokens of each line, [N].
        characters: Of the hidden words of each line, [N].
        unknown: Hidden tokens that stand for text the vocabulary lacks, [N].
    """

    nats: NDArray[np.float64]
    tokens: NDArray[np.float64]
    characters: NDArray[np.float64]
    unknown: NDArray[np.float64]

    @property
    def per_token(self) -> float:
        """Nats per hidden token."""
        return float(self.nats.sum() / self.tokens.sum())

    @property
    def per_character(self) -> float:
        """Nats per hidden character: one unit for all vocabularies."""
        return float(self.nats.sum() / self.characters.sum())


@torch.no_grad()
def masked_losses(model: MaskedLM, data: ScoringData, device: torch.device | str = "cpu") -> MaskedLosses:
    """Compute the loss of every line; the model is put into eval mode meanwhile.

    Args:
        model: The model.
        data: Text masked for scoring.
        device: Where the model is.

    Returns:
        Nats, tokens and characters by line.
    """
    was_training = model.training
    model.eval()
    count = len(data.masker.text)
    nats, tokens, unknown = (np.zeros(count) for _ in range(3))
    for rows, cpu_batch in data.in_order():
        _, logits_MV = model(cpu_batch.to(device))
        target_M = asked_tokens(cpu_batch)
        nats_M = F.cross_entropy(logits_MV.float(), target_M.to(device), reduction="none").double().cpu()
        asked_B = (cpu_batch.labels != NOT_ASKED).sum(1).numpy()
        owner_M = np.repeat(rows, asked_B)
        np.add.at(nats, owner_M, nats_M.numpy())
        np.add.at(unknown, owner_M, (target_M == data.masker.tokenizer.unk).numpy())
        tokens[rows] += asked_B
    model.train(was_training)
    return MaskedLosses(nats, tokens, data.sizes(), unknown)


def load_checkpoint(name: str, revision: str | None, seed: int) -> tuple[MaskedLM, list[str]]:
    """Read a checkpoint as a masked language model in fp32.

    Args:
        name: Hub name or directory.
        revision: On the hub.
        seed: Of the parts that the checkpoint lacks: a prediction head.

    Returns:
        The model, and the names of the parameters that the checkpoint lacks and that were drawn.

    Raises:
        DataError: It cannot be read, or it is no masked language model and the body is not all there.
    """
    from transformers import AutoModelForMaskedLM

    given = {} if revision is None else {"revision": revision}
    try:
        with torch.random.fork_rng(devices=[]), _quiet():
            torch.manual_seed(seed)
            model, report = AutoModelForMaskedLM.from_pretrained(
                name, dtype=torch.float32, output_loading_info=True, **given
            )
    except (OSError, ValueError) as error:
        raise DataError(
            f"masked_lm.checkpoint {name}: not readable as a masked language model ({error}); give the name "
            "or directory of a BERT, RoBERTa, DistilBERT or ELECTRA type checkpoint"
        ) from error
    missing = sorted(report["missing_keys"])
    lost = [name for name in missing if name.startswith(f"{model.base_model_prefix}.")]
    if lost:
        raise DataError(f"masked_lm.checkpoint {name}: the body lacks {', '.join(lost[:3])}")
    return MaskedLM(model), missing


def fresh_bert(config: BertConfig, vocab_size: int, pad: int, max_positions: int, seed: int) -> MaskedLM:
    """Build a BERT from scratch.

    Args:
        config: Its sizes.
        vocab_size: Rows of its table.
        pad: Id of the padding token.
        max_positions: Longest text in tokens, begin and end included.
        seed: Of the weights.

    Returns:
        The model.
    """
    import transformers

    settings = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.ffn_dim,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        max_position_embeddings=max_positions,
        pad_token_id=pad,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return MaskedLM(transformers.BertForMaskedLM(settings))


def write_masked_lm(model: MaskedLM, directory: Path) -> None:
    """Write a model as transformers does.

    Args:
        model: The model.
        directory: Artifact being written.
    """
    with _quiet():
        model.model.save_pretrained(directory)


def read_masked_lm(directory: Path) -> MaskedLM:
    """Read what ``write_masked_lm`` wrote.

    Args:
        directory: The artifact.

    Returns:
        The model, on the CPU.

    Raises:
        DataError: Something of it is missing.
    """
    model, missing = load_checkpoint(str(directory), None, 0)
    if missing:
        raise DataError(f"{directory}: the model lacks {', '.join(missing[:3])}; was it written by nlgraft?")
    return model


def position_room(model: MaskedLM) -> int:
    """Count the tokens that a model has positions for, beside begin and end.

    Args:
        model: The model.

    Returns:
        Tokens.
    """
    config = model.model.config
    # RoBERTa counts positions from the padding id on
    is_offset = any(
        getattr(module, "padding_idx", None) is not None and name.endswith("position_embeddings")
        for name, module in model.model.named_modules()
    )
    return config.max_position_embeddings - 2 - (config.pad_token_id + 1 if is_offset else 0)


def check_length(model: MaskedLM, max_tokens: int) -> None:
    """Make sure that a model has enough positions.

    Args:
        model: The model.
        max_tokens: Longest text without begin and end.

    Raises:
        DataError: It has not.
    """
    room = position_room(model)
    if max_tokens > room:
        raise DataError(
            f"data.max_tokens is {max_tokens}, but the checkpoint has room for {room} tokens beside begin "
            f"and end; set data.max_tokens to at most {room}"
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers from drawing bars and tables: what was drawn afresh is in our own report."""
    from transformers.utils import logging as own

    level, has_bars = own.get_verbosity(), own.is_progress_bar_enabled()
    own.set_verbosity(logging.CRITICAL)
    own.disable_progress_bar()
    try:
        yield
    finally:
        own.set_verbosity(level)
        if has_bars:
            own.enable_progress_bar()
