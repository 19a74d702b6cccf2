"""Walking typed configs."""

import enum
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Optional

import pytest
from pydantic import BaseModel, Field

from nlgraft.study.reading.knobs import REQUIRED, knobs, path_problem


class Site(enum.Enum):
    ENCODER = "encoder"
    DECODER = "decoder"


class Table(BaseModel):
    kind: Literal["table"] = "table"
    dim: int = Field(default=8, ge=1, description="Columns.")
    scale: float = 1.0


class Contextual(BaseModel):
    kind: Literal["contextual"] = "contextual"
    dim: int = Field(default=16, ge=2, le=64)
    name: str


class Config(BaseModel):
    source: Annotated[Table | Contextual, Field(discriminator="kind")] = Contextual(name="bert")
    branches: list[Table] = []
    by_name: dict[str, Table] = {}
    by_pattern: dict[Annotated[str, Field(pattern="^[a-z]+$")], Table] = {}
    site: Site = Site.ENCODER
    maybe: Optional[Table] = None  # noqa: UP045
    width: int | None = Field(default=None, gt=0)
    rates: tuple[float, ...] = (0.1,)
    names: Sequence[str] = ()
    anything: dict[str, Any] = {}
    is_on: bool
    limits: list[int] = Field(default_factory=lambda: [1, 2])


def test_every_setting_is_listed_with_type_default_and_range():
    rows = {knob.path: knob for knob in knobs(Config)}
    assert list(rows) == [
        "source.kind",
        "source.dim",
        "source.name",
        "source.scale",
        "branches[].kind",
        "branches[].dim",
        "branches[].scale",
        "by_name.<key>.kind",
        "by_name.<key>.dim",
        "by_name.<key>.scale",
        "by_pattern.<key>.kind",
        "by_pattern.<key>.dim",
        "by_pattern.<key>.scale",
        "site",
        "maybe.kind",
        "maybe.dim",
        "maybe.scale",
        "width",
        "rates",
        "names",
        "anything",
        "is_on",
        "limits",
    ]
    assert (rows["width"].type, rows["width"].default, rows["width"].allowed) == ("int or null", None, "> 0")
    assert (rows["site"].default, rows["site"].allowed) == ("encoder", "encoder, decoder")
    assert (rows["is_on"].type, rows["is_on"].default) == ("true or false", REQUIRED)
    assert rows["is_on"].to_json()["is_required"]
    assert (rows["rates"].type, rows["rates"].default) == ("list of float", [0.1])
    assert rows["limits"].default == [1, 2]


def test_variants_that_share_a_path_are_joined():
    rows = {knob.path: knob for knob in knobs(Config)}
    kind, dim = rows["source.kind"], rows["source.dim"]
    assert (kind.type, kind.default, kind.allowed) == ("one of", "contextual", "contextual, table")
    assert (dim.default, dim.allowed, dim.description) == (16, ">= 2, <= 64, >= 1", "Columns.")
    assert rows["source.name"].default == "bert"


@pytest.mark.parametrize(
    "path",
    [
        "source",
        "source.dim",
        "source.name",
        "branches",
        "branches[0].dim",
        "branches.3",
        "by_name.x.scale",
        "by_name.x",
        "by_pattern.x.dim",
        "maybe.dim",
        "width",
        "rates[1]",
        "names.0",
        "anything.a.b.c",
        "site",
    ],
)
def test_paths_that_exist(path):
    assert path_problem(Config, path) is None


@pytest.mark.parametrize(
    "path, message",
    [
        ("sorce.dim", "Did you mean 'source.dim'? Allowed here: source, branches"),
        ("source.dimm", "no 'source.dimm'. Did you mean 'source.dim'? Allowed: source.kind, source.dim"),
        ("dim", "Did you mean 'source.dim'? Allowed here: source"),
        ("width.x", "the system's config has no 'width.x'"),
        ("branches.x", "the system's config has no 'branches.x'"),
        ("source..dim", "a part of it is empty"),
        ("", "a part of it is empty"),
    ],
)
def test_paths_that_do_not_are_told_the_nearest(path, message):
    assert message in (path_problem(Config, path) or "")
