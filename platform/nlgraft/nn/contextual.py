"""Pretrained encoders behind one interface, frozen or finetuned.

Shape letters: B sentences, R rows = B x hypotheses, T tokens, H width of the encoder, D model width,
L layers that a pooling selects.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, Protocol, cast

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Memory
from nlgraft.nn.batch import Tokens, truncate_middle
from nlgraft.nn.context_config import (
    BiLMConfig,
    ContextConfig,
    HuggingFaceEncoderConfig,
    OwnEmbeddingsConfig,
    UniLMConfig,
)
from nlgraft.nn.decoder_state import EmbeddingCache
from nlgraft.nn.hugging_face import HuggingFaceEncoder
from nlgraft.nn.language_models import build_language_model
from nlgraft.nn.modes import freeze_unused
from nlgraft.nn.pooling import EncoderShape, LayerStates, ScalarMix, build_pooling


class ContextualEncoder(Protocol):
    """Interface of a pretrained encoder, which is also an ``nn.Module``.

    **Padding** is on the right and does not change the state of a real token.
    """

    shape: EncoderShape
    vocab_size: int

    def __call__(self, tokens: Tokens) -> LayerStates:
        """Encode whole sentences [B, T]."""
        ...


class CausalEncoder(ContextualEncoder, Protocol):
    """An encoder that gives the same states token by token as in one pass."""

    def new_cache(self) -> Any:
        """Return an empty cache."""

    def step(self, ids_R1: Tensor, cache: Any) -> LayerStates:
        """Encode one more token per row."""
        ...


def load_encoder(config: HuggingFaceEncoderConfig | UniLMConfig | BiLMConfig) -> ContextualEncoder:
    """Build an encoder: a checkpoint with its weights, our own language models with fresh ones."""
    if isinstance(config, HuggingFaceEncoderConfig):
        return HuggingFaceEncoder.load(config)
    return build_language_model(config)


class Context(nn.Module):
    """A pretrained encoder in use: run, pooled, frozen or finetuned.

    **Frozen**: no gradient, evaluation mode whatever ``train`` is given, nothing for the optimiser.
    **Finetuned**: parameters on which the pooled states do not depend are frozen, so that every trainable one
    gets a gradient.

    Args:
        config: Encoder, pooling, freezing.
        encoder: The encoder, if it is already built.
    """

    def __init__(self, config: ContextConfig, encoder: ContextualEncoder | None = None) -> None:
        super().__init__()
        self.config = config
        if encoder is None:
            assert not isinstance(config.encoder, OwnEmbeddingsConfig), "own embeddings have no encoder"
            encoder = load_encoder(config.encoder)
        self.encoder = encoder
        self.vocab_size = encoder.vocab_size
        self.pooling = build_pooling(config.pooling, encoder.shape)
        self.output_dim = self.pooling.output_dim
        self.dropout = nn.Dropout(config.dropout)
        module = cast("nn.Module", encoder)
        if config.is_frozen:
            module.requires_grad_(False)
        else:
            # Layers above the pooled one never get a gradient, for which DDP would wait.
            freeze_unused(module, self._probe)
        self.train(self.training)

    @property
    def causal(self) -> CausalEncoder:
        """The encoder of a model that is stepped."""
        return cast("CausalEncoder", self.encoder)

    def _probe(self) -> Tensor:
        tokens = Tokens.from_lists([[i % self.vocab_size for i in (5, 6, 5)]])
        device = next(self.parameters()).device
        return self.pooling.select(self.encoder(tokens.to(device)))

    def train(self, mode: bool = True) -> Context:
        """Set the mode of everything but a frozen encoder."""
        super().train(mode)
        if self.config.is_frozen and not self.config.has_frozen_dropout:
            self.get_submodule("encoder").eval()
        return self

    def layers(self, tokens: Tokens) -> Tensor:
        """Return the hidden states that the pooling selects, computed or precomputed, [L, B, T, H]."""
        if tokens.layers is not None:
            return tokens.layers
        with torch.no_grad() if self.config.is_frozen else nullcontext():
            return self.pooling.select(self.encoder(tokens))

    def centre(self, means_LH: Tensor) -> None:
        """Set the layer means that a centred mixture subtracts, [L, H]."""
        assert isinstance(self.pooling, ScalarMix), "the configuration refuses others"
        assert self.pooling.means is not None, "a mixture that is not centred has no means"
        # Copied in place: a buffer is saved with the model.
        self.pooling.means.copy_(means_LH)

    def forward(self, tokens: Tokens) -> Memory:
        """Encode sentences [B, T] into pooled states [B, T, H]."""
        # Precomputed states were truncated when they were written.
        if self.config.max_tokens is not None and tokens.layers is None:
            tokens = truncate_middle(tokens, self.config.max_tokens)
        return Memory.of(self._finish(self.layers(tokens), tokens.valid), tokens)

    def step(self, ids_R1: Tensor, cache: EmbeddingCache) -> Tensor:
        """Encode one more token per row, ids [R, 1], into pooled states [R, 1, H]; updates the cache."""
        with torch.no_grad() if self.config.is_frozen else nullcontext():
            layers_LR1H = self.pooling.select(self.causal.step(ids_R1, cache))
        return self._finish(layers_LR1H, torch.ones_like(ids_R1, dtype=torch.bool))

    def _finish(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        return self.dropout(self.pooling(layers_LBTH, valid_BT))


class ContextualEmbedding(nn.Module):
    """Token embeddings from a context instead of a table; the tokens are the encoder's own.

    A projection follows where the widths differ, or a perceptron.

    Source: Edunov et al. (2019), section 2; Clinchant et al. (2019) (Direct); the perceptron without biases:
    released code of LaMaTE (Luo et al. 2025). Differs: drawn as the projection is, not with deviation .02.
    """

    def __init__(self, context: Context, d_model: int) -> None:
        super().__init__()
        self.context = context
        self.prepend_id = context.config.prepend_id
        self.projection: nn.Module | None = None
        if context.config.has_mlp:
            hidden, output = _xavier(context.output_dim, d_model), _xavier(d_model, d_model)
            self.projection = nn.Sequential(hidden, nn.GELU(), output)
        elif context.output_dim != d_model:
            self.projection = _xavier(context.output_dim, d_model)

    @property
    def max_tokens(self) -> int | None:
        """Longest input, without the prepended token, that the encoder has positions for; None: any."""
        limit = getattr(self.context.encoder, "max_tokens", None)
        return limit and limit - (self.prepend_id is not None)

    def inputs(self, tokens: Tokens) -> Tokens:
        """Return the encoder's input for some tokens: the same, or one token longer, [B, T + 1]."""
        if self.prepend_id is None:
            return tokens
        first_B1 = torch.full_like(tokens.ids[:, :1], self.prepend_id)
        real_B1 = torch.ones_like(tokens.valid[:, :1])
        ids = torch.cat([first_B1, tokens.ids], 1)
        return Tokens(ids, torch.cat([real_B1, tokens.valid], 1))

    def layers(self, tokens: Tokens) -> Tensor:
        """Return the hidden states that the pooling selects, without the prepended token, [L, B, T, H]."""
        if tokens.layers is not None or self.prepend_id is None:
            return self.context.layers(tokens)
        return self.context.layers(self.inputs(tokens))[:, :, 1:]

    def forward(self, tokens: Tokens) -> Tensor:
        """Embed tokens [B, T]; returns [B, T, D]."""
        return self._project(self.context(tokens.with_layers(self.layers(tokens))).states)

    def new_cache(self) -> EmbeddingCache:
        """Return an empty cache of the encoder."""
        return self.context.causal.new_cache()

    def step(self, ids_R1: Tensor, cache: EmbeddingCache | None) -> Tensor:
        """Embed one more token per row, [R, 1], into [R, 1, D]; updates the cache."""
        assert cache is not None, "a contextual embedding is stepped with a cache of its own"
        return self._project(self.context.step(ids_R1, cache))

    def _project(self, states: Tensor) -> Tensor:
        return states if self.projection is None else self.projection(states)


def _xavier(input_dim: int, output_dim: int) -> nn.Linear:
    linear = nn.Linear(input_dim, output_dim, bias=False)
    nn.init.xavier_uniform_(linear.weight)
    return linear


class OwnEmbeddings(nn.Module):
    """The model's own source embeddings as a context, at the width of a pretrained encoder.

    Args:
        config: Their width and dropout.
        d_model: Width of the model.
    """

    def __init__(self, config: ContextConfig, d_model: int) -> None:
        super().__init__()
        assert isinstance(config.encoder, OwnEmbeddingsConfig)
        self.output_dim = config.encoder.width
        self.widen: nn.Linear | None = None
        if self.output_dim != d_model:
            self.widen = nn.Linear(d_model, self.output_dim, bias=False)
            # Fixed, so that the control learns nothing more; orthogonal, so that widening keeps angles.
            nn.init.orthogonal_(self.widen.weight)
            self.widen.requires_grad_(False)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, source: Memory) -> Memory:
        """Turn the input of the first layer [B, T, D] into states [B, T, H]."""
        states = source.states if self.widen is None else self.widen(source.states)
        return source.with_states(self.dropout(states))


def build_contexts(
    configs: Mapping[str, ContextConfig],
    d_model: int,
    encoders: Mapping[str, ContextualEncoder] | None,
) -> dict[str, Context | OwnEmbeddings]:
    """Build every context that a model names.

    Args:
        configs: Contexts by name.
        d_model: Width of the model.
        encoders: Encoders that are already built, by name.

    Raises:
        ContractError: An encoder is given for a name that no context has.
    """
    built = dict(encoders or {})
    unknown = sorted(set(built) - set(configs))
    if unknown:
        raise ContractError(f"encoders for {unknown} but contexts has: {', '.join(configs) or 'nothing'}")
    return {
        name: OwnEmbeddings(config, d_model)
        if isinstance(config.encoder, OwnEmbeddingsConfig)
        else Context(config, built.get(name))
        for name, config in configs.items()
    }
