"""Checkpoints of transformers as contextual encoders. transformers is imported only when one is asked for.

Shape letters: B sentences, R rows = B x K hypotheses, T tokens, H width of the encoder.
"""

from __future__ import annotations

from typing import Any, cast

import torch
from torch import Tensor, nn

from nlgraft.errors import ContractError
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import HuggingFaceEncoderConfig
from nlgraft.nn.pooling import EncoderShape, LayerStates


class HuggingFaceCache:
    """A transformers cache whose rows are the hypotheses of all sentences, side by side."""

    def __init__(self, cache: Any) -> None:
        """Wrap an empty cache.

        Args:
            cache: A ``DynamicCache``.
        """
        self.cache = cache
        self.beam = 1

    def expand(self, beam: int) -> None:
        """Let each sentence have several hypotheses that share what was said so far.

        Args:
            beam: How many; there was one until now.
        """
        self.beam = beam
        if self.cache.get_seq_length():
            self.cache.batch_repeat_interleave(beam)

    def reorder(self, parent_BK: Tensor) -> None:
        """Replace each hypothesis by a continuation of another one of its sentence.

        Args:
            parent_BK: Which of the K hypotheses is continued, int64 [B, K].
        """
        own_BK = torch.arange(self.beam, device=parent_BK.device)
        if not bool((parent_BK == own_BK).all()):
            first_B1 = self.beam * torch.arange(len(parent_BK), device=parent_BK.device)[:, None]
            self.cache.reorder_cache((first_B1 + parent_BK).flatten())

    def select(self, rows_B: Tensor) -> None:
        """Keep some sentences.

        Args:
            rows_B: Their indices, int64.
        """
        hypotheses_K = torch.arange(self.beam, device=rows_B.device)
        self.cache.batch_select_indices((self.beam * rows_B[:, None] + hypotheses_K).flatten())


class HuggingFaceEncoder(nn.Module):
    """An encoder, a decoder-only model or the encoder half of an encoder-decoder, as transformers has it."""

    def __init__(self, model: nn.Module, *, is_causal: bool = False) -> None:
        """Wrap a model that is already built.

        Args:
            model: A transformers base model (no head); an encoder-decoder gives its encoder.
            is_causal: It is meant to be used token by token.

        Raises:
            ContractError: It is not causal although it is said to be.
        """
        super().__init__()
        loaded = cast("Any", model)
        if loaded.config.is_encoder_decoder:
            loaded = loaded.get_encoder()
        if getattr(loaded, "pooler", None) is not None:
            loaded.pooler = None  # it would never get a gradient
        loaded.config.use_cache = False
        self.model: Any = loaded
        self.vocab_size: int = loaded.config.vocab_size
        states = self._probe(7)
        self.shape = EncoderShape(len(states.layers), states.layers[0].shape[2], states.output.shape[2])
        if is_causal and not torch.equal(states.output[:, :2], self._probe(8).output[:, :2]):
            raise ContractError(
                f"{type(loaded).__name__} sees tokens to the right: set is_causal to false; it cannot be a "
                "target_context"
            )

    @classmethod
    def load(cls, config: HuggingFaceEncoderConfig) -> HuggingFaceEncoder:
        """Read a checkpoint in fp32.

        Args:
            config: Hub name or directory.

        Returns:
            The encoder.
        """
        from transformers import AutoModel

        model = AutoModel.from_pretrained(config.checkpoint, dtype=torch.float32)
        return cls(model, is_causal=config.is_causal)

    @torch.no_grad()
    def _probe(self, last_id: int) -> LayerStates:
        device = next(self.model.parameters()).device
        was_training = self.model.training
        self.model.eval()
        states = self._run(input_ids=torch.tensor([[5, 6, last_id]], device=device))
        self.model.train(was_training)
        return states

    def _run(self, **inputs: Any) -> LayerStates:
        output = self.model(**inputs, output_hidden_states=True)
        return LayerStates(list(output.hidden_states), output.last_hidden_state)

    def forward(self, tokens: Tokens) -> LayerStates:
        """Read whole sentences.

        Args:
            tokens: Right-padded tokens [B, T] with the specials the model expects.

        Returns:
            All hidden states, embeddings first, [B, T, H]; the last one after any final norm.
        """
        if not tokens.has_padding:
            return self._run(input_ids=tokens.ids, attention_mask=torch.ones_like(tokens.ids))
        valid_BT = tokens.valid
        if tokens.has_absent:  # no attention over nothing: what an absent sentence gives is never read
            valid_BT = valid_BT | ~valid_BT.any(1, keepdim=True)
        return self._run(input_ids=tokens.ids, attention_mask=valid_BT.long())

    def new_cache(self) -> HuggingFaceCache:
        """Prepare reading token by token.

        Returns:
            An empty cache.
        """
        from transformers import DynamicCache

        return HuggingFaceCache(DynamicCache(config=self.model.config))

    def step(self, ids_R1: Tensor, cache: HuggingFaceCache) -> LayerStates:
        """Read one more token of every row.

        Args:
            ids_R1: Its ids, int64 [R, 1].
            cache: Updated in place.

        Returns:
            All hidden states [R, 1, H].
        """
        return self._run(input_ids=ids_R1, past_key_values=cache.cache, use_cache=True)
