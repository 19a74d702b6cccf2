"""Layer pooling: many hidden states of a pretrained encoder become one. One table for two papers.

Shape letters: B sentences, T tokens, H width of the encoder, L layers that a pooling asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nlgraft.errors import ContractError
from nlgraft.nn.context_config import PoolingConfig


@dataclass(frozen=True)
class LayerStates:
    """All hidden states of an encoder.

    Attributes:
        layers: Embeddings first, then every layer, each [B, T, H].
        output: What the encoder's own softmax would read, [B, T, its width].
    """

    layers: list[Tensor]
    output: Tensor


@dataclass(frozen=True)
class EncoderShape:
    """Sizes of an encoder that is pooled.

    Attributes:
        num_states: Hidden states it gives, embeddings counted.
        hidden_dim: Width of those, H.
        output_dim: Width of its output.
    """

    num_states: int
    hidden_dim: int
    output_dim: int


class LayerPooling(nn.Module):
    """One state for each token from the states of several layers.

    **select** picks the layers that are read; **forward** combines them. Between the two the layers of a
    frozen encoder may be stored.

    Source: Park and Zhao (2021), Table 3a (index, sum, mean, dynamic; their released dynamic weights mix
    sentences, ours do not); Peters et al. (2018), Eq. 1, with Edunov et al.'s shared layer norm (scalar_mix).
    """

    def __init__(self, config: PoolingConfig, shape: EncoderShape) -> None:
        """Build the weights that are learned.

        Args:
            config: Kind of pooling.
            shape: Sizes of the encoder.

        Raises:
            ContractError: The index names no hidden state.
        """
        super().__init__()
        if config.kind == "index" and not -shape.num_states <= config.index < shape.num_states:
            raise ContractError(
                f"pooling.index {config.index} of an encoder with {shape.num_states} hidden states: "
                f"allowed are {-shape.num_states} to {shape.num_states - 1}"
            )
        self.config = config
        self.output_dim = shape.output_dim if config.kind == "output" else shape.hidden_dim
        if config.kind == "scalar_mix":
            self.norm = nn.LayerNorm(shape.hidden_dim, elementwise_affine=config.is_norm_affine)
            self.mix = nn.Parameter(torch.ones(shape.num_states))
            self.scale = nn.Parameter(torch.ones(()))
        elif config.kind.startswith("dynamic"):
            num_layers = shape.num_states - 1
            self.weigh = nn.Linear(num_layers * shape.hidden_dim, num_layers)
            nn.init.xavier_uniform_(self.weigh.weight)
            nn.init.zeros_(self.weigh.bias)

    def select(self, states: LayerStates) -> Tensor:
        """Pick the layers that are read.

        Args:
            states: All states of the encoder.

        Returns:
            Those layers [L, B, T, H].
        """
        if self.config.kind == "output":
            return states.output[None]
        if self.config.kind == "index":
            return states.layers[self.config.index][None]
        if self.config.kind == "scalar_mix":
            return torch.stack(states.layers)
        return torch.stack(states.layers[1:])

    def forward(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Combine the selected layers.

        Args:
            layers_LBTH: What ``select`` returned.
            valid_BT: True where a token is real, [B, T].

        Returns:
            Pooled states [B, T, H].
        """
        kind = self.config.kind
        if kind in ("index", "output"):
            return layers_LBTH[0]
        if kind == "sum":
            return layers_LBTH.sum(0)
        if kind == "mean":
            return layers_LBTH.mean(0)
        if kind == "scalar_mix":
            weights_L = F.dropout(self.mix.softmax(0), self.config.weight_dropout, self.training)
            return self.scale * torch.einsum("l,lbth->bth", weights_L, self.norm(layers_LBTH))
        return torch.einsum("bl,lbth->bth", self.dynamic_weights(layers_LBTH, valid_BT), layers_LBTH)

    def dynamic_weights(self, layers_LBTH: Tensor, valid_BT: Tensor) -> Tensor:
        """Weight of each layer, predicted from a summary of the sentence in every layer.

        Args:
            layers_LBTH: Layers without the embeddings.
            valid_BT: True where a token is real.

        Returns:
            Weights [B, L], each row sums to 1.
        """
        if self.config.kind == "dynamic_cls":
            summary_LBH = layers_LBTH[:, :, 0]
        else:
            share_BT = valid_BT / valid_BT.sum(1, keepdim=True).clamp(min=1)
            summary_LBH = torch.einsum("bt,lbth->lbh", share_BT.to(layers_LBTH.dtype), layers_LBTH)
        return self.weigh(summary_LBH.transpose(0, 1).flatten(1)).softmax(1)
