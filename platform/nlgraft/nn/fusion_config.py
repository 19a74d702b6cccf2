"""Configuration of fusion: branches from pretrained models, where they merge and how. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Self, get_args

from pydantic import Field, model_validator

from nlgraft.basics.strict_config import StrictConfig

Site = Literal["self", "self_norm", "ffn", "ffn_norm"]
MergeName = Literal["sum", "average", "gate", "dropnet"]
Init = Literal["xavier", "zero"]


class MergeConfig(StrictConfig):
    """A merge strategy, and the settings that only one strategy reads; their names begin with its name."""

    merge: Any
    """How flows are merged (Table 3b); sources in ``nlgraft.nn.fusion.MERGES``."""
    dropnet_probability: float | None = Field(default=None, ge=0, le=1)
    """Dropnet: probability p_net (Zhu et al. 2020, Eq. 5) that training uses a single flow, each of the two
    with p_net/2; null: 1.0."""
    dropnet_probabilities: tuple[float, float] | None = None
    """Dropnet: probabilities of the layer's own flow alone and of the branch alone, instead of p_net; (0.5,
    0.25) in the released code of Park and Zhao (2021)."""

    @model_validator(mode="after")
    def _settings_fit_the_merge(self) -> Self:
        for name, strategy in MERGE_SETTINGS.items():
            if getattr(self, name) is not None and self.merge != strategy:
                raise ValueError(
                    f"{name} has no effect with merge '{self.merge}': leave it out, or set merge to "
                    f"{strategy}"
                )
        if self.dropnet_probability is not None and self.dropnet_probabilities is not None:
            raise ValueError("dropnet_probability and dropnet_probabilities set the same thing: keep one")
        if self.dropnet_probabilities and (
            min(self.dropnet_probabilities) < 0 or sum(self.dropnet_probabilities) > 1
        ):
            raise ValueError("dropnet_probabilities must be at least 0 and sum to at most 1")
        return self


MERGE_SETTINGS: Mapping[str, MergeName] = {
    name: strategy
    for name in MergeConfig.model_fields
    for strategy in get_args(MergeName)
    if name.startswith(f"{strategy}_")
}
"""Settings that only one merge strategy reads, and that strategy; null stands for its default."""


class FusionConfig(MergeConfig):
    """Parallel branches from pretrained language models inside the layers (Park and Zhao 2021)."""

    merge: MergeName = "sum"
    """How the flows are merged (Table 3b); sources in ``nlgraft.nn.fusion.MERGES``."""
    contexts: tuple[str, ...] = ()
    """Names of the contexts, each of which feeds one branch (several: Table 4); empty: no fusion."""
    side: Literal["source", "target", "both"] = "source"
    """Layers with branches: the encoder's, the decoder's (parallel to cross-attention), or both (Table
    3d)."""
    site: Site = "ffn"
    """Merge site: output of attention or of the FFN, before or after the norm that follows it (Table 3c)."""
    init: Init = "xavier"
    """Initial weights of each branch's last projection: as elsewhere, or zero (ours, after Houlsby et al.
    2019). A sum at the sites self and ffn then begins as the plain model."""

    @model_validator(mode="after")
    def _names_a_context_once(self) -> FusionConfig:
        if len(set(self.contexts)) != len(self.contexts):
            raise ValueError(f"contexts {list(self.contexts)} names one context twice")
        return self
