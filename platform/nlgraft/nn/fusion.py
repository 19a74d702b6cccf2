"""Fusion branches, and the strategies that merge their flows with a layer's own.

Shape letters: R rows, T positions, D model width, N branches, M positions of a context, H its width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import cast

import torch
from torch import Tensor, nn

from nlgraft.nn.attention import Attention, KeyValue, Memory
from nlgraft.nn.linear import FeedForward, Linear, Residual, zero
from nlgraft.nn.model_config import FusionConfig, MergeName, Site, TransformerConfig
from nlgraft.nn.modes import isolated_rng

SITES: tuple[Site, ...] = ("self", "self_norm", "ffn", "ffn_norm")
"""Merge sites in the order in which a layer passes them; a branch is as deep as its site."""


class Sum(nn.Module):
    """The sum of all flows.

    Source: Park and Zhao (2021), Eqs. 1-3 and Table 3b.
    """

    def __init__(self, config: FusionConfig, d_model: int) -> None:
        super().__init__()

    def forward(self, own_RTD: Tensor, flows: Sequence[Tensor]) -> Tensor:
        """Merge the layer's own flow with those of its branches, [R, T, D] each."""
        return sum(flows, start=own_RTD)


class Average(nn.Module):
    """The mean of all flows.

    Source: Park and Zhao (2021), Table 3b.
    """

    def __init__(self, config: FusionConfig, d_model: int) -> None:
        super().__init__()

    def forward(self, own_RTD: Tensor, flows: Sequence[Tensor]) -> Tensor:
        """Merge the layer's own flow with those of its branches, [R, T, D] each."""
        return sum(flows, start=own_RTD) / (len(flows) + 1)


class Gate(nn.Module):
    """A learned convex combination per channel: a sigmoid for one branch, a softmax for several.

    Source: Yang et al. (2020); Park and Zhao (2021), Table 3b and released code.
    """

    def __init__(self, config: FusionConfig, d_model: int) -> None:
        super().__init__()
        num_flows = len(config.contexts) + 1
        self.gate = Linear(num_flows * d_model, d_model if num_flows == 2 else num_flows * d_model)
        nn.init.xavier_uniform_(self.gate.weight)
        nn.init.zeros_(self.gate.bias)

    def forward(self, own_RTD: Tensor, flows: Sequence[Tensor]) -> Tensor:
        """Merge the layer's own flow with those of its branches, [R, T, D] each."""
        logits = self.gate(torch.cat([own_RTD, *flows], dim=-1))
        if len(flows) == 1:
            # The same as a softmax over two flows, with half the logits.
            share_RTD = logits.sigmoid()
            return share_RTD * own_RTD + (1 - share_RTD) * flows[0]
        shares_RTND = logits.unflatten(-1, (len(flows) + 1, -1)).softmax(-2)
        flows_RTND = torch.stack([own_RTD, *flows], dim=-2)
        return (shares_RTND * flows_RTND).sum(-2)


class Dropnet(nn.Module):
    """The mean of all flows; in training one draw per call may select a single flow instead.

    Source: Zhu et al. (2020), Eq. 5; Park and Zhao (2021), Table 3b.
    """

    def __init__(self, config: FusionConfig, d_model: int) -> None:
        super().__init__()
        p_net = 1.0 if config.dropnet_probability is None else config.dropnet_probability
        self.share_alone = p_net / 2

    def forward(self, own_RTD: Tensor, flows: Sequence[Tensor]) -> Tensor:
        """Merge the layer's own flow with those of its branches, [R, T, D] each."""
        num_branches = len(flows)
        mean = 1 / (num_branches + 1)
        if not self.training:
            return sum(flows, start=own_RTD) * mean
        # Weights rather than control flow: every branch stays in the graph, as DDP requires.
        draw = torch.rand((), device=own_RTD.device)
        is_own_alone = draw < self.share_alone
        shared = torch.where(draw > 1 - self.share_alone, 0.0, mean)
        merged = torch.where(is_own_alone, 1.0, shared) * own_RTD
        for index, flow in enumerate(flows):  # each branch owns an equal slice of the top of [0, 1]
            high = 1 - self.share_alone * index / num_branches
            low = 1 - self.share_alone * (index + 1) / num_branches
            weight = torch.where((draw > low) & (draw <= high), 1.0, shared)
            merged = merged + torch.where(is_own_alone, 0.0, weight) * flow
        return merged


MERGES: dict[MergeName, Callable[[FusionConfig, int], nn.Module]] = {
    "sum": Sum,
    "average": Average,
    "gate": Gate,
    "dropnet": Dropnet,
}
"""The merge strategies. All of them take any number of branches; the papers have one."""


class FusionBranch(nn.Module):
    """A shadow layer, as deep as its merge site, that reads a context instead of the layer's own sequence.

    Source: Park and Zhao (2021), Eqs. 1-5 and released code (the residual of the FFN is the state after
    attention's norm). Differs: at ``ffn_norm`` both flows keep the layer's input as residual.
    """

    def __init__(self, config: TransformerConfig, memory_dim: int) -> None:
        super().__init__()
        # A branch has only the sublayers that it passes before its merge site.
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
        if config.fusion.init == "zero":
            zero(self.attention.output if self.ffn is None else self.ffn.outer)

    def forward(
        self,
        query_RTD: Tensor,
        x_RTD: Tensor,
        memory: KeyValue,
    ) -> Tensor:
        """Run the branch up to its site.

        Args:
            query_RTD: Input of the layer's attention: the residual stream, normalised when pre-norm.
            x_RTD: The residual stream.
            memory: The context, projected by this branch's attention.

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
    """All branches of one layer and their merge; the identity if there are no branches.

    The layer's own weights are initialised as without branches.

    Args:
        config: The model's configuration.
        memory_dims: Width H of each branch's context; empty for a layer without fusion.
    """

    def __init__(self, config: TransformerConfig, memory_dims: Sequence[int]) -> None:
        super().__init__()
        self.site = config.fusion.site
        with isolated_rng():
            self.branches = nn.ModuleList(FusionBranch(config, dim) for dim in memory_dims)
            merge = MERGES[config.fusion.merge]
            self.merge = merge(config.fusion, config.d_model) if memory_dims else None

    def _branches(self) -> Iterable[FusionBranch]:
        return cast("Iterable[FusionBranch]", self.branches)

    def project(self, contexts: Sequence[Memory]) -> list[KeyValue]:
        """Compute each branch's keys and values from its context [B, M, H]."""
        return [
            branch.attention.project(memory)
            for branch, memory in zip(self._branches(), contexts, strict=True)
        ]

    def flows(
        self,
        query_RTD: Tensor,
        x_RTD: Tensor,
        memories: Sequence[KeyValue],
    ) -> list[Tensor]:
        """Run every branch on what ``project`` returned; one flow [R, T, D] each."""
        pairs = zip(self._branches(), memories, strict=True)
        return [branch(query_RTD, x_RTD, memory) for branch, memory in pairs]

    def at(
        self,
        site: Site,
        own_RTD: Tensor,
        flows: Sequence[Tensor],
    ) -> Tensor:
        """Merge the flows [R, T, D] if ``site``, the point that the layer has reached, is the merge site."""
        if self.merge is None or site != self.site:
            return own_RTD
        return self.merge(own_RTD, flows)
