"""Checkpoints of transformers as contextual encoders. transformers is imported only when one is loaded.

Shape letters: B sentences, T tokens, H width of the encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.modes import evaluating
from nlgraft.nn.pooling import EncoderShape, LayerStates
from nlgraft.nn.transformers_lms import load_pretrained, position_limit, refuse_missing


def load_base_model(config: HuggingFaceEncoderConfig) -> nn.Module:
    """Load a checkpoint's base model (without head) in fp32.

    Raises:
        ContractError: No checkpoint is named.
        DataError: It cannot be read, or lacks weights other than a pooler's.
    """
    if config.checkpoint is None:
        raise ContractError("the configuration names no checkpoint: pass the encoder, or name a checkpoint")
    model, report = load_pretrained("AutoModel", config.checkpoint, config.revision)
    refuse_missing(config.checkpoint, report["missing_keys"])
    return model


class HuggingFaceEncoder(nn.Module):
    """An encoder, a decoder-only model, or the encoder of an encoder-decoder of transformers.

    Args:
        model: A base model of transformers (without head).
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        loaded = cast("Any", model)
        if loaded.config.is_encoder_decoder:
            loaded = loaded.get_encoder()
        if getattr(loaded, "pooler", None) is not None:
            loaded.pooler = None  # it would never get a gradient
        # Whole sentences are encoded, for which no cache is needed.
        loaded.config.use_cache = False
        self.model: Any = loaded
        self.vocab_size: int = loaded.config.vocab_size
        self.max_tokens = position_limit(loaded)
        device = next(loaded.parameters()).device
        with evaluating(loaded):
            states = self._run(input_ids=torch.tensor([[5, 6, 7]], device=device))
        hidden_dim, output_dim = states.layers[0].shape[2], states.output.shape[2]
        self.shape = EncoderShape(len(states.layers), hidden_dim, output_dim)

    @classmethod
    def load(cls, config: HuggingFaceEncoderConfig) -> HuggingFaceEncoder:
        """Load a checkpoint in fp32."""
        return cls(load_base_model(config))

    def write_config(self, directory: Path) -> None:
        """Write the architecture, without weights, for ``from_config``."""
        self.model.config.save_pretrained(directory)

    @classmethod
    def from_config(cls, directory: Path) -> HuggingFaceEncoder:
        """Build a model with random weights from a directory of ``write_config``."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(directory)
        return cls(AutoModel.from_config(config, dtype=torch.float32))

    def _run(self, **inputs: Any) -> LayerStates:
        output = self.model(**inputs, output_hidden_states=True)
        return LayerStates(list(output.hidden_states), output.last_hidden_state)

    def forward(self, tokens: Tokens) -> LayerStates:
        """Encode whole sentences.

        Args:
            tokens: Right-padded tokens [B, T] with the special tokens that the model expects.

        Returns:
            All hidden states, embeddings first, [B, T, H]; the last one after any final norm.

        Raises:
            DataError: An input is longer than the position table.
        """
        length = tokens.ids.shape[1]
        if self.max_tokens is not None and length > self.max_tokens:
            raise DataError(
                f"an input of {length} tokens, but {type(self.model).__name__} has positions for "
                f"{self.max_tokens}: set the context's max_tokens to at most that; where the model takes the "
                "place of the source embeddings, leave longer lines out"
            )
        if not tokens.has_padding:
            return self._run(input_ids=tokens.ids, attention_mask=torch.ones_like(tokens.ids))
        valid_BT = tokens.valid
        # A softmax over no key would be NaN; the states of absent sentences are not used.
        if tokens.has_absent:
            valid_BT = valid_BT | ~valid_BT.any(1, keepdim=True)
        return self._run(input_ids=tokens.ids, attention_mask=valid_BT.long())
