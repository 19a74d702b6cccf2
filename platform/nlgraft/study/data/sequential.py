"""When the results of a study may be tested: once, at planned looks, or at every number of seeds."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag

from nlgraft.study.data.part import Part


class Sequential(Part):
    """Planned looks at the results; cells that are decided, or are unlikely to be, get no more seeds."""

    kind: Literal["looks"] = "looks"
    """Looks at numbers of seeds that are planned."""
    looks: list[Annotated[int, Field(ge=3)]] = Field(min_length=2)
    """Ascending numbers of seeds at which the results are tested; the last is the number of ``seeds``."""
    replicates: int | None = Field(default=None, ge=1)
    """Maximum number of replicates over all cells, so that undecided cells get what the others leave; none:
    as many as the looks need."""


class Anytime(Part):
    """Tests and intervals valid at every number of seeds: one may look, stop, and add seeds at will."""

    kind: Literal["anytime"]
    """No looks are planned."""


def _sequential_kind(value: Any) -> str:
    kind = value.get("kind") if isinstance(value, dict) else getattr(value, "kind", None)
    return "anytime" if kind == "anytime" else "looks"


AnySequential = Annotated[
    Annotated[Sequential, Tag("looks")] | Annotated[Anytime, Tag("anytime")], Discriminator(_sequential_kind)
]
