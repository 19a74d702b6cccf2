"""Comparison of the tensors of models."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def differing(first, second) -> set[str]:
    """Names of tensors that differ in shape or any bit, or that only one of two models or states has."""
    first, second = (each if isinstance(each, Mapping) else each.state_dict() for each in (first, second))
    shared = first.keys() & second.keys()
    return (first.keys() ^ second.keys()) | {
        name for name in shared if not torch.equal(first[name], second[name])
    }
