"""Layer pooling: the hidden states of a pretrained encoder become one state per token.

Shape letters: B sentences, T tokens, H width of the encoder, L layers that a pooling reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.basics.errors import ContractError
from nlgraft.nn.context_config import PoolingConfig, PoolingName


@dataclass(frozen=True)
class LayerStates:
    """All hidden states of an encoder.

    Attributes:
        layers: The embeddings, then every layer, each [B, T, H].
        output: The input of the encoder's own softmax, [B, T, its width].
        cloze: Computes that input as in pretraining, where it does not depend on the token that it predicts;
            None for an encoder that is not pretrained so.
    """

    layers: list[Tensor]
    output: Tensor
    cloze: Callable[[], Tensor] | None = None


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder.

    Attributes:
        num_states: Number of hidden states, the embeddings included.
        hidden_dim: Their width, H.
        output_dim: Width of the output.
    """

    num_states: int
    hidden_dim: int
    output_dim: int


class LayerPooling(nn.Module, ABC):
    """One state per token from the states of several layers.

    ``select`` takes the layers that are read and has no parameters, so that its result can be stored for a
    frozen encoder; ``forward`` combines them.
    """

    def __init__(self, output_dim: int) -> None:
        super().__init__()
        self.output_dim = output_dim

    @abstractmethod
    def select(self, states: LayerStates) -> Tensor:
        """Take the layers that are read, [L, B, T, H]."""

    def forward(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Combine the selected layers, or return the only one, [B, T, H]; ``valid_BT``: at real tokens."""
        return layers_LBTH[0]


class Index(LayerPooling):
    """One hidden state.

    Source: Park and Zhao (2021), Table 3a.

    Raises:
        ContractError: The index names no hidden state.
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.hidden_dim)
        if not -shape.num_states <= config.index < shape.num_states:
            raise ContractError(
                f"pooling.index {config.index} of an encoder with {shape.num_states} hidden states: "
                f"allowed are {-shape.num_states} to {shape.num_states - 1}"
            )
        self.index = config.index

    def select(self, states: LayerStates) -> Tensor:
        """Take that state, [1, B, T, H]."""
        return states.layers[self.index][None]


class Output(LayerPooling):
    """The last state before the encoder's softmax.

    Source: Edunov et al. (2019), section 2.2.
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.output_dim)

    def select(self, states: LayerStates) -> Tensor:
        """Take the output, [1, B, T, its width]."""
        return states.output[None]


class Cloze(LayerPooling):
    """The last state before the softmax as in pretraining: it does not depend on its own token.

    Source: flag bilm_mask_last_state in the released code of Edunov et al. (2019).

    Raises:
        ContractError: The encoder is not pretrained to predict a token from all others.
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.output_dim)

    def select(self, states: LayerStates) -> Tensor:
        """Compute that state, [1, B, T, its width]."""
        if states.cloze is None:
            raise ContractError("pooling.kind cloze needs a bi_lm, which predicts a token from all others")
        return states.cloze()[None]


class Towers(LayerPooling):
    """The output plus the last states of both towers, which hold the token itself: a residual connection.

    Source: ours, with the towers of Edunov et al. (2019), section 3.2.

    Raises:
        ContractError: The encoder has no two towers.
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.output_dim)
        if shape.hidden_dim != 2 * shape.output_dim:
            raise ContractError("pooling.kind towers needs a bi_lm, which has two towers")

    def select(self, states: LayerStates) -> Tensor:
        """Add the three, [1, B, T, its width]."""
        # After the towers' layers come the combiner's neighbours and its own state.
        ahead_BTD, back_BTD = states.layers[-3].chunk(2, dim=2)
        return (states.output + ahead_BTD + back_BTD)[None]


class Mean(LayerPooling):
    """The mean of all layers or of the last few; the embeddings are not among them.

    Source: released code of Park and Zhao (2021).

    Raises:
        ContractError: There are fewer layers than ``num_last``.
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.hidden_dim)
        num_layers = shape.num_states - 1
        if config.num_last is not None and config.num_last > num_layers:
            raise ContractError(f"pooling.num_last {config.num_last} of an encoder with {num_layers} layers")
        self.num_last = config.num_last or num_layers

    def select(self, states: LayerStates) -> Tensor:
        """Take these layers, [L, B, T, H]."""
        return torch.stack(states.layers[-self.num_last :])

    def forward(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Average the layers, [B, T, H]."""
        return layers_LBTH.mean(0)


class ScalarMix(LayerPooling):
    """ELMo's mixture: a learned weighted mean of the normalised layers, embeddings included, and a scale.

    Source: Peters et al. (2018), Eq. 1, with the shared layer norm of Edunov et al. (2019).

    Attributes:
        means: Centred mixture: the means that are subtracted before the norm, [L, H]; NaN until ``centre`` is
            called or weights are loaded.
    """

    means: Tensor | None

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.hidden_dim)
        self.weight_dropout = config.weight_dropout
        # NaN, so that a forgotten `centre` shows in the first loss.
        means = torch.full((shape.num_states, shape.hidden_dim), torch.nan) if config.is_centred else None
        self.register_buffer("means", means)
        self.norm = nn.LayerNorm(shape.hidden_dim)
        self.mix = nn.Parameter(torch.ones(shape.num_states))
        self.scale = nn.Parameter(torch.ones(()))

    def select(self, states: LayerStates) -> Tensor:
        """Take all states, [L, B, T, H]."""
        return torch.stack(states.layers)

    def forward(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Mix the states, [B, T, H]; dropout acts on the weights and so removes whole layers."""
        if self.means is not None:
            layers_LBTH = layers_LBTH - self.means[:, None, None]
        weights_L = F.dropout(self.mix.softmax(0), self.weight_dropout, self.training)
        return self.scale * torch.einsum("l,lbth->bth", weights_L, self.norm(layers_LBTH))


class Dynamic(LayerPooling):
    """A weighted mean of all layers whose weights are predicted from a summary of the sentence.

    Source: Park and Zhao (2021), Table 3a. Differs: the released weights mix sentences of a batch.
    """

    def __init__(
        self,
        config: PoolingConfig,
        shape: EncoderShape,
        *,
        summary: Literal["first_token", "mean"],
    ) -> None:
        super().__init__(shape.hidden_dim)
        self.summary = summary
        num_layers = shape.num_states - 1
        self.weigh = nn.Linear(num_layers * shape.hidden_dim, num_layers)
        nn.init.xavier_uniform_(self.weigh.weight)
        nn.init.zeros_(self.weigh.bias)

    def select(self, states: LayerStates) -> Tensor:
        """Take all layers but the embeddings, [L, B, T, H]."""
        return torch.stack(states.layers[1:])

    def forward(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Mix the layers with each sentence's own weights, [B, T, H]."""
        return torch.einsum("bl,lbth->bth", self.weights(layers_LBTH, valid_BT), layers_LBTH)

    def weights(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Predict the weight of each layer, [B, L]; each row sums to 1."""
        if self.summary == "first_token":
            summary_LBH = layers_LBTH[:, :, 0]
        else:
            share_BT = valid_BT / valid_BT.sum(1, keepdim=True).clamp(min=1)
            summary_LBH = torch.einsum("bt,lbth->lbh", share_BT.to(layers_LBTH.dtype), layers_LBTH)
        return self.weigh(summary_LBH.transpose(0, 1).flatten(1)).softmax(1)


class Groups(LayerPooling):
    """A mixture of the last states of groups of consecutive layers, then a norm; embeddings are in no group.

    The weights do not compete: each is a sigmoid, and their sum is divided by the number of groups.

    Source: LaMaTE (Luo et al. 2025, arXiv 2503.06594), as in its released code.

    Raises:
        ContractError: The group size does not divide the number of layers.
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        super().__init__(shape.hidden_dim)
        assert config.group_size is not None, "refused by the configuration"
        num_layers, self.group_size = shape.num_states - 1, config.group_size
        if num_layers % self.group_size:
            raise ContractError(
                f"pooling.group_size {self.group_size} of an encoder with {num_layers} layers: it must divide"
                " their number"
            )
        self.mix = nn.Parameter(torch.randn(num_layers // self.group_size))
        self.norm = nn.RMSNorm(shape.hidden_dim, eps=1e-5)

    def select(self, states: LayerStates) -> Tensor:
        """Take the last layer of each group, [L, B, T, H]."""
        return torch.stack(states.layers[self.group_size :: self.group_size])

    def forward(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Mix the groups, [B, T, H]."""
        weights_L = self.mix.sigmoid() / len(self.mix)
        mixed_BTH = torch.einsum("l,lbth->bth", weights_L, layers_LBTH)
        # Autocast widens the input of LayerNorm, but not that of RMSNorm.
        return self.norm(mixed_BTH.to(self.norm.weight.dtype))


POOLINGS: dict[PoolingName, Callable[[PoolingConfig, EncoderShape], LayerPooling]] = {
    "index": Index,
    "output": Output,
    "cloze": Cloze,
    "towers": Towers,
    "mean": Mean,
    "scalar_mix": ScalarMix,
    "dynamic_cls": partial(Dynamic, summary="first_token"),
    "dynamic_mean": partial(Dynamic, summary="mean"),
    "groups": Groups,
}
"""The poolings of four papers."""


def build_pooling(config: PoolingConfig, shape: EncoderShape) -> LayerPooling:
    """Make the pooling that a context's configuration names."""
    return POOLINGS[config.kind](config, shape)
