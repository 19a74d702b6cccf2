"""Comparison of the tensors of models."""

from collections.abc import Mapping

import torch


def differing(first, second) -> set[str]:
    """Names of tensors that differ in shape or any bit, or that only one of two models or states has."""
    first, second = (each if isinstance(each, Mapping) else each.state_dict() for each in (first, second))
    shared = first.keys() & second.keys()
    return (first.keys() ^ second.keys()) | {
        name for name in shared if not torch.equal(first[name], second[name])
    }


def ties(model) -> set[frozenset[str]]:
    """Names of the parameters that are one tensor."""
    groups = {}
    for name, tensor in model.named_parameters(remove_duplicate=False):
        groups.setdefault(id(tensor), set()).add(name)
    return {frozenset(names) for names in groups.values() if len(names) > 1}


def assert_near(first, second, atol: float = 1e-9) -> None:
    """Compare tensors up to rounding; the default is that of sums in double precision."""
    torch.testing.assert_close(first, second, rtol=0, atol=atol)


def draw(*shape: int) -> torch.Tensor:
    """Draw normal numbers in double precision."""
    return torch.randn(*shape, dtype=torch.float64)
