"""Our own language models: left-to-right, and bi-directional with two towers.

Shape letters: B sentences, R rows, T tokens, D model width, V vocabulary, S positions attended to, P tokens
that are predicted.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.attention import Attention
from nlgraft.nn.batch import Tokens
from nlgraft.nn.context_config import BiLMConfig, UniLMConfig
from nlgraft.nn.decoder_state import SelfCache, StackCache
from nlgraft.nn.embedding import InputLayer, TableEmbedding
from nlgraft.nn.linear import FeedForward, Residual
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.nn.pooling import EncoderShape, LayerStates


class LanguageModelLayer(nn.Module):
    """A pre-norm self-attention block; the caller decides which positions attend to which."""

    def __init__(self, config: UniLMConfig | BiLMConfig, *, has_open_slot: bool) -> None:
        super().__init__()
        self.attention = Attention(
            config.d_model, config.num_heads, config.attention_dropout, has_open_slot=has_open_slot
        )
        self.attention_residual = Residual(config.d_model, "pre", config.dropout)
        self.ffn = FeedForward(config.d_model, config.ffn_dim, "relu", config.activation_dropout)
        self.ffn_residual = Residual(config.d_model, "pre", config.dropout)

    def forward(
        self,
        x_RTD: Tensor,
        *,
        mask_RTS: Tensor | None = None,
        cache: SelfCache | None = None,
        is_causal: bool = False,
    ) -> Tensor:
        """Transform states [R, T, D].

        Args:
            x_RTD: States.
            mask_RTS: True where a state may attend, an open slot not among the places.
            cache: Earlier tokens of each row; the new one is appended.
            is_causal: As in ``Attention.forward``.
        """
        query = self.attention_residual.enter(x_RTD)
        memory = self.attention.project_states(query, None if mask_RTS is None else mask_RTS[:, None])
        memory = memory if cache is None else cache.append(memory)
        attended = self.attention(query, [memory], is_causal=is_causal)
        x_RTD = self.attention_residual.leave(x_RTD, attended)
        return self.ffn_residual.around(x_RTD, self.ffn)


class Predictions(NamedTuple):
    """The tokens that pretraining predicts.

    Attributes:
        states: The states from which tokens are predicted, [P, D].
        tokens: Those tokens, int64 [P].
        rows: The sentence of each, int64 [P].
    """

    states: Tensor
    tokens: Tensor
    rows: Tensor


class _LanguageModel(nn.Module):
    """What both kinds have: sinusoids, and one table for input and output."""

    def __init__(self, config: Any, shape: EncoderShape) -> None:
        super().__init__()
        if config.vocab_size is None:
            raise ContractError(
                f"a {config.kind} is built without vocab_size; take it from the text or the trained model"
            )
        self.config, self.shape = config, shape
        self.vocab_size: int = config.vocab_size
        self.embedding = TableEmbedding(self.vocab_size, config.d_model, pad_id=0)
        like = TransformerConfig(d_model=config.d_model, num_heads=config.num_heads, dropout=config.dropout)
        self.input = InputLayer(like, "sinusoidal", has_scale=True, has_segments=False)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., V] from output states [..., D], of two towers from combined ones."""
        return hidden @ self.embedding.table.weight.T


class UniLM(_LanguageModel):
    """A left-to-right language model: pre-norm without a final norm, sinusoids, one table.

    Source: Edunov et al. (2019), section 3.2 and released code (final_norm=False).
    """

    def __init__(self, config: UniLMConfig) -> None:
        super().__init__(config, EncoderShape(config.num_layers + 1, config.d_model, config.d_model))
        self.layers = nn.ModuleList(
            LanguageModelLayer(config, has_open_slot=False) for _ in range(config.num_layers)
        )

    def forward(self, tokens: Tokens) -> LayerStates:
        """Encode sentences [B, T], the start token first; ``logits(output)`` predicts the next tokens.

        Returns:
            L+1 states [B, T, D]; the output is the last of them.
        """
        states = [self.input(self.embedding(tokens))]
        for layer in self.layers:
            states.append(layer(states[-1], is_causal=True))
        return LayerStates(states, states[-1])

    def predictions(self, tokens: Tokens) -> Predictions:
        """Predict every token but the first from those before it; EOS stands at both ends of a sentence."""
        rows_P, places_P = tokens.valid[:, 1:].nonzero(as_tuple=True)
        states_PD = self(tokens).output[rows_P, places_P]
        return Predictions(states_PD, tokens.ids[rows_P, places_P + 1], rows_P)

    def new_cache(self) -> StackCache:
        """Return an empty cache."""
        return StackCache(self.config.num_layers)

    def step(self, ids_R1: Tensor, cache: StackCache) -> LayerStates:
        """Encode one more token per row, ids [R, 1], into L+1 states [R, 1, D]; updates the cache."""
        position = cache.step(len(ids_R1), ids_R1.device)
        states = [self.input(self.embedding.step(ids_R1, None), start=position)]
        for layer, layer_cache in zip(self.layers, cache.layers, strict=True):
            states.append(layer(states[-1], cache=layer_cache))
        return LayerStates(states, states[-1])


class Combiner(nn.Module):
    """Predicts each token from the forward states before it and the backward states after it.

    Source: Baevski et al. (2019), Cloze-driven pretraining; Edunov et al.'s released code (no residual around
    the attention).
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__()
        d_model = config.d_model
        self.forward_norm = nn.LayerNorm(d_model)
        self.backward_norm = nn.LayerNorm(d_model)
        self.attention = self.linear = None
        if config.combiner == "attention":
            self.attention = Attention(d_model, config.num_heads, config.attention_dropout)
            self.ffn = FeedForward(d_model, config.ffn_dim, "relu", config.activation_dropout)
            self.ffn_residual = Residual(d_model, "pre", config.dropout)
            self.dropout = nn.Dropout(config.dropout)
        else:
            self.linear = nn.Linear(2 * d_model, d_model)

    def forward(
        self,
        ahead_BTD: Tensor,
        back_BTD: Tensor,
        valid_BT: Tensor,
        *,
        sees_current: bool,
    ) -> Tensor:
        """Combine the last states of both towers into one state per token, [B, T, D].

        Args:
            ahead_BTD: Last states of the forward tower.
            back_BTD: Last states of the backward tower.
            valid_BT: True at real tokens.
            sees_current: Position i may attend to both towers' states at i: when representations are
                extracted, never in training.
        """
        ahead_BTD, back_BTD = self.forward_norm(ahead_BTD), self.backward_norm(back_BTD)
        before_BTD, after_BTD = neighbours(ahead_BTD, back_BTD, valid_BT)
        if self.linear is not None:
            return self.linear(torch.cat([before_BTD, after_BTD], dim=2))
        assert self.attention is not None
        length = valid_BT.shape[1]
        all_TT = torch.ones(length, length, dtype=torch.bool, device=valid_BT.device)
        reach = 0 if sees_current else 1
        allowed_TS = torch.cat([all_TT.tril(-reach), all_TT.triu(reach)], dim=1)
        mask_BTS = allowed_TS & torch.cat([valid_BT, valid_BT], dim=1)[:, None, :]
        present_BT = mask_BTS.any(2)
        # A softmax over no position would be NaN; ``present`` sets its result to zero.
        mask_BTS = mask_BTS | ~present_BT[:, :, None]
        towers_BSD = torch.cat([ahead_BTD, back_BTD], dim=1)
        memory = self.attention.project_states(towers_BSD, mask_BTS[:, None], present_BT)
        x_BTD = self.dropout(self.attention(before_BTD + after_BTD, [memory]))
        return self.ffn_residual.around(x_BTD, self.ffn)


def neighbours(
    left_BTD: Tensor,
    right_BTD: Tensor,
    valid_BT: Tensor,
) -> tuple[Tensor, Tensor]:
    """Return the states of the token before and of the token after each position, zero where there is none.

    Args:
        left_BTD: States to move one position to the right.
        right_BTD: States to move one position to the left.
        valid_BT: True at real tokens.

    Returns:
        Both moved, [B, T, D] each.
    """
    left_BTD, right_BTD = left_BTD * valid_BT[:, :, None], right_BTD * valid_BT[:, :, None]
    edge_B1D = torch.zeros_like(left_BTD[:, :1])
    before_BTD = torch.cat([edge_B1D, left_BTD[:, :-1]], 1)
    after_BTD = torch.cat([right_BTD[:, 1:], edge_B1D], 1)
    return before_BTD, after_BTD


class BiLM(_LanguageModel):
    """A language model of two towers that predicts every token from all others.

    Source: Edunov et al. (2019), section 3.2; Baevski et al. (2019).
    """

    def __init__(self, config: BiLMConfig) -> None:
        super().__init__(config, EncoderShape(config.num_layers + 3, 2 * config.d_model, config.d_model))
        towers = [
            nn.ModuleList(LanguageModelLayer(config, has_open_slot=True) for _ in range(config.num_layers))
            for _ in range(2)
        ]
        self.forward_tower, self.backward_tower = towers
        self.combiner = Combiner(config)

    def towers(self, x_BTD: Tensor, valid_BT: Tensor) -> tuple[list[Tensor], list[Tensor]]:
        """Run both towers on embedded tokens.

        Returns:
            States of the forward and of the backward tower, one [B, T, D] per layer.
        """
        length = valid_BT.shape[1]
        all_1TS = torch.ones(1, length, length, dtype=torch.bool, device=valid_BT.device)
        # Right padding lies ahead of no real token, so only the backward tower has to mask it.
        masks = (all_1TS.tril(), all_1TS.triu() & valid_BT[:, None, :])
        results: list[list[Tensor]] = []
        for tower, mask in zip((self.forward_tower, self.backward_tower), masks, strict=True):
            states = [x_BTD]
            for layer in tower:
                mask_BTS = mask.expand(len(x_BTD), -1, -1)
                states.append(layer(states[-1], mask_RTS=mask_BTS))
            results.append(states[1:])
        return results[0], results[1]

    def cloze(self, tokens: Tokens) -> Tensor:
        """Compute the training states [B, T, D]: state i does not depend on token i, which it predicts."""
        ahead, back = self.towers(self.input(self.embedding(tokens)), tokens.valid)
        return self.combiner(ahead[-1], back[-1], tokens.valid, sees_current=False)

    def predictions(self, tokens: Tokens) -> Predictions:
        """Predict every token from all others, including the EOS at both ends of a sentence."""
        rows_P, places_P = tokens.valid.nonzero(as_tuple=True)
        states_PD = self.cloze(tokens)[rows_P, places_P]
        return Predictions(states_PD, tokens.ids[rows_P, places_P], rows_P)

    def forward(self, tokens: Tokens) -> LayerStates:
        """Extract representations; unlike in training, each position attends to itself.

        Returns:
            L+3 states [B, T, 2D]: the embedding twice, both towers layer by layer, the combiner's neighbours,
            and the combiner twice. The output is the combiner's, [B, T, D].

        Source: Edunov et al.'s released elmo_token_embedder2 (15 states for 12 layers).
        """
        x_BTD = self.input(self.embedding(tokens))
        ahead, back = self.towers(x_BTD, tokens.valid)
        # Safe outside training: nothing is predicted from these states.
        combined_BTD = self.combiner(ahead[-1], back[-1], tokens.valid, sees_current=True)
        around = neighbours(combined_BTD, combined_BTD, tokens.valid)
        pairs = [(x_BTD, x_BTD), *zip(ahead, back, strict=True), around, (combined_BTD, combined_BTD)]

        def cloze() -> Tensor:
            return self.combiner(ahead[-1], back[-1], tokens.valid, sees_current=False)

        return LayerStates([torch.cat(pair, dim=2) for pair in pairs], combined_BTD, cloze)


def build_language_model(config: UniLMConfig | BiLMConfig) -> UniLM | BiLM:
    """Build a language model with fresh weights."""
    return BiLM(config) if isinstance(config, BiLMConfig) else UniLM(config)
