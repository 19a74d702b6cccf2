"""Checkpoints of transformers as contextual encoders. transformers is imported only when one is loaded.

Shape letters: B sentences, R rows = B x K hypotheses, T tokens, H width of the encoder.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.decoder_state import parent_rows
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


class HuggingFaceCache:
    """A cache of transformers whose rows are the hypotheses of all sentences, side by side."""

    def __init__(self, cache: Any) -> None:
        self.cache = cache
        self.beam = 1

    def expand(self, beam: int) -> None:
        """Turn the single hypothesis of each sentence into ``beam`` hypotheses that share their prefix."""
        self.beam = beam
        # An empty cache has no rows to repeat.
        if self.cache.get_seq_length():
            self.cache.batch_repeat_interleave(beam)

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace hypothesis k by a copy of hypothesis ``parent_BK[:, k]`` (int64) of its sentence."""
        own_BK = torch.arange(self.beam, device=parent_BK.device)
        # Reordering copies the whole cache; often every hypothesis continues itself.
        if not bool((parent_BK == own_BK).all()):
            self.cache.reorder_cache(parent_rows(parent_BK))

    def select(self, rows_B: Tensor) -> None:
        """Keep the sentences at these indices (int64)."""
        hypotheses_K = torch.arange(self.beam, device=rows_B.device)
        self.cache.batch_select_indices((self.beam * rows_B[:, None] + hypotheses_K).flatten())


class HuggingFaceEncoder(nn.Module):
    """An encoder, a decoder-only model, or the encoder of an encoder-decoder of transformers.

    Args:
        model: A base model of transformers (without head).
        is_causal: If true, the model will be used token by token.

    Raises:
        ContractError: ``is_causal`` is set but the model sees tokens to the right.
    """

    def __init__(self, model: nn.Module, *, is_causal: bool = False) -> None:
        super().__init__()
        loaded = cast("Any", model)
        if loaded.config.is_encoder_decoder:
            loaded = loaded.get_encoder()
        if getattr(loaded, "pooler", None) is not None:
            loaded.pooler = None  # it would never get a gradient
        # Only `step` needs a cache, and asks for it.
        loaded.config.use_cache = False
        self.model: Any = loaded
        self.vocab_size: int = loaded.config.vocab_size
        self.max_tokens = position_limit(loaded)
        states = self._probe(7)
        self.shape = EncoderShape(len(states.layers), states.layers[0].shape[2], states.output.shape[2])
        # Two inputs that differ in the last token: a causal model gives the others the same states.
        if is_causal and not torch.equal(states.output[:, :2], self._probe(8).output[:, :2]):
            raise ContractError(
                f"{type(loaded).__name__} sees tokens to the right: set is_causal to false; it cannot be a "
                "target_context"
            )

    @classmethod
    def load(cls, config: HuggingFaceEncoderConfig) -> HuggingFaceEncoder:
        """Load a checkpoint in fp32."""
        return cls(load_base_model(config), is_causal=config.is_causal)

    def write_config(self, directory: Path) -> None:
        """Write the architecture, without weights, for ``from_config``."""
        self.model.config.save_pretrained(directory)

    @classmethod
    def from_config(cls, directory: Path, *, is_causal: bool = False) -> HuggingFaceEncoder:
        """Build a model with random weights from a directory of ``write_config``."""
        from transformers import AutoConfig, AutoModel

        config = AutoConfig.from_pretrained(directory)
        return cls(AutoModel.from_config(config, dtype=torch.float32), is_causal=is_causal)

    def _probe(self, last_id: int) -> LayerStates:
        device = next(self.model.parameters()).device
        with evaluating(self.model):
            return self._run(input_ids=torch.tensor([[5, 6, last_id]], device=device))

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

    def new_cache(self) -> HuggingFaceCache:
        """Return an empty cache."""
        from transformers import DynamicCache

        return HuggingFaceCache(DynamicCache(config=self.model.config))

    def step(self, ids_R1: Tensor, cache: HuggingFaceCache) -> LayerStates:
        """Encode one more token per row, [R, 1], into all hidden states [R, 1, H]; updates the cache."""
        return self._run(input_ids=ids_R1, past_key_values=cache.cache, use_cache=True)
