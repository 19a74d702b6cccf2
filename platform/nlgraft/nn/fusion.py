"""Fusion branches and the strategies by which their flows meet the layer's own.

Shape letters: B sentences, R rows, T positions, D model width, M positions of a context, H its width.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.nn.attention import Attention, KeyValue
from nlgraft.nn.config import FusionConfig, Site, TransformerConfig
from nlgraft.nn.memory import Memory
from nlgraft.nn.residual import FeedForward, Residual

SITES: tuple[Site, ...] = ("self", "self_norm", "ffn", "ffn_norm")
"""Merge sites in the order a layer passes them; a branch is as deep as its site."""


class Merge(nn.Module):
    """Combine a layer's own flow with those of its branches.

    sum: x + sum p; average: the mean of all; gate: a learned convex combination for each channel; dropnet:
    while training one draw for each call picks a single flow or the average, afterwards always the average.

    Source: Park and Zhao (2021), Table 3b; Zhu et al. (2020), Eq. 5. Differs: any number of branches.
    """

    def __init__(self, config: FusionConfig, d_model: int) -> None:
        """Build the strategy.

        Args:
            config: Strategy and number of branches.
            d_model: Width.
        """
        super().__init__()
        self.strategy = config.merge
        self.num_branches = len(config.contexts)
        probability = 1.0 if config.dropnet_probability is None else config.dropnet_probability
        self.alone = config.dropnet_probabilities or (probability / 2, probability / 2)
        self.gate: nn.Linear | None = None
        if config.merge == "gate":
            width = d_model if self.num_branches == 1 else (self.num_branches + 1) * d_model
            self.gate = nn.Linear((self.num_branches + 1) * d_model, width)
            nn.init.xavier_uniform_(self.gate.weight)
            nn.init.zeros_(self.gate.bias)

    def forward(self, own: Tensor, flows: Sequence[Tensor]) -> Tensor:
        """Combine the flows.

        Args:
            own: The layer's own flow [R, T, D].
            flows: One for each branch, [R, T, D].

        Returns:
            The combination [R, T, D].
        """
        if self.strategy == "sum":
            return own + sum(flows[1:], start=flows[0])
        if self.gate is not None:
            return self._gated(self.gate, own, flows)
        if self.strategy == "dropnet" and self.training:
            return self._dropped(own, flows)
        return (own + sum(flows[1:], start=flows[0])) / (len(flows) + 1)

    def _gated(self, gate: nn.Linear, own: Tensor, flows: Sequence[Tensor]) -> Tensor:
        logits = gate(torch.cat([own, *flows], dim=-1))
        if len(flows) == 1:
            share = logits.sigmoid()
            return share * own + (1 - share) * flows[0]
        shares = logits.unflatten(-1, (len(flows) + 1, -1)).softmax(-2)
        return (shares * torch.stack([own, *flows], dim=-2)).sum(-2)

    def _dropped(self, own: Tensor, flows: Sequence[Tensor]) -> Tensor:
        # Weights instead of a choice: every branch keeps its place in the graph, as DDP needs.
        own_alone, branch_alone = self.alone
        draw = torch.rand((), device=own.device)
        parts = len(flows) + 1
        shared = torch.where(draw > 1 - branch_alone, 0.0, 1 / parts)
        weights = [torch.where(draw < own_alone, 1.0, shared)]
        for index in range(len(flows)):
            high = 1 - branch_alone * index / len(flows)
            low = 1 - branch_alone * (index + 1) / len(flows)
            is_picked = (draw > low) & (draw <= high)
            weights.append(torch.where(draw < own_alone, 0.0, torch.where(is_picked, 1.0, shared)))
        return sum((w * flow for w, flow in zip(weights[1:], flows, strict=True)), start=weights[0] * own)


class FusionBranch(nn.Module):
    """A shadow layer that reads a context instead of the layer's own sequence, as deep as its merge site.

    Source: Park and Zhao (2021), Eqs. 1-5 and released code (the residual of the FFN is the state after
    attention's norm). Differs: at ``ffn_norm`` both flows keep the layer's input as residual.
    """

    def __init__(self, config: TransformerConfig, memory_dim: int) -> None:
        """Build the branch.

        Args:
            config: The model's configuration.
            memory_dim: Width H of the context.
        """
        super().__init__()
        depth = SITES.index(config.fusion.site)
        dims = (config.d_model, config.norm, config.dropout)
        self.depth = depth
        self.attention = Attention(
            config.d_model, config.num_heads, config.attention_dropout, memory_dim=memory_dim
        )
        self.attention_residual = (
            Residual(*dims, has_enter=False, eps=config.norm_eps) if depth >= 1 else None
        )
        self.ffn_residual = Residual(*dims, has_leave=depth >= 3, eps=config.norm_eps) if depth >= 2 else None
        self.ffn = (
            FeedForward(config.d_model, config.ffn_dim, config.activation, config.activation_dropout)
            if depth >= 2
            else None
        )

    def forward(self, query_RTD: Tensor, x_RTD: Tensor, memory: KeyValue) -> Tensor:
        """Run the branch up to its site.

        Args:
            query_RTD: What the layer's attention reads (the normalised input when pre-norm), [R, T, D].
            x_RTD: The residual stream, [R, T, D].
            memory: The context as this branch sees it.

        Returns:
            The branch's flow [R, T, D].
        """
        flow = self.attention(query_RTD, [memory])
        if self.attention_residual is not None:
            flow = self.attention_residual.leave(x_RTD, flow)
        if self.ffn is not None and self.ffn_residual is not None:
            fed = self.ffn(self.ffn_residual.enter(flow))
            flow = self.ffn_residual.leave(flow, fed) if self.depth >= 3 else fed
        return flow


class Fusion(nn.Module):
    """All branches of one layer and their merge; without branches it does nothing."""

    def __init__(self, config: TransformerConfig, memory_dims: Sequence[int]) -> None:
        """Build the branches.

        Args:
            config: The model's configuration.
            memory_dims: Width of each branch's context; empty: no fusion in this layer.
        """
        super().__init__()
        self.site = config.fusion.site
        self.branches = nn.ModuleList(FusionBranch(config, dim) for dim in memory_dims)
        self.merge = Merge(config.fusion, config.d_model) if memory_dims else None

    def _branches(self) -> Iterable[FusionBranch]:
        return cast("Iterable[FusionBranch]", self.branches)

    def project(self, contexts: Sequence[Memory]) -> list[KeyValue]:
        """Prepare what the branches read.

        Args:
            contexts: One memory [B, M, H] for each branch.

        Returns:
            Keys and values, one for each branch.
        """
        return [
            branch.attention.project(memory)
            for branch, memory in zip(self._branches(), contexts, strict=True)
        ]

    def flows(self, query_RTD: Tensor, x_RTD: Tensor, memories: Sequence[KeyValue]) -> list[Tensor]:
        """Run every branch.

        Args:
            query_RTD: What the layer's attention reads, [R, T, D].
            x_RTD: The residual stream, [R, T, D].
            memories: What ``project`` returned.

        Returns:
            One flow [R, T, D] for each branch.
        """
        pairs = zip(self._branches(), memories, strict=True)
        return [branch(query_RTD, x_RTD, memory) for branch, memory in pairs]

    def at(self, site: Site, own_RTD: Tensor, flows: Sequence[Tensor]) -> Tensor:
        """Merge the flows if this is where they meet.

        Args:
            site: The point a layer has reached.
            own_RTD: The layer's own flow there, [R, T, D].
            flows: What ``flows`` returned, one [R, T, D] for each branch.

        Returns:
            The layer's flow from here on, [R, T, D].
        """
        return own_RTD if self.merge is None or site != self.site else self.merge(own_RTD, flows)
