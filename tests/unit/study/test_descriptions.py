"""Docstrings below fields describe settings; they are read only where they are shown."""

from typing import Generic, TypeVar

from pydantic import Field

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.study.reading.knobs import DescribedSchema, descriptions, knobs

T = TypeVar("T")


class Inner(StrictConfig):
    """A part."""

    width: int = 3
    """Columns, in
    characters."""
    height: int = 2


class Outer(Inner):
    """A whole."""

    inner: Inner = Inner()
    """The part."""
    depth: int = Field(default=1, description="Said by the field itself.")
    """Said below it."""
    height: int = 4
    """Lines."""


class Holder(StrictConfig, Generic[T]):
    """A generic part."""

    held: T
    """What it holds."""


def test_docstrings_describe_fields_and_those_of_bases():
    assert descriptions(Inner) == {"width": "Columns, in\ncharacters."}
    assert descriptions(Outer) == {
        "width": "Columns, in\ncharacters.",
        "inner": "The part.",
        "depth": "Said below it.",
        "height": "Lines.",
    }
    assert descriptions(Holder[int]) == {"held": "What it holds."}


def test_a_schema_shows_them_at_every_depth():
    schema = Outer.model_json_schema(schema_generator=DescribedSchema)
    fields, inner = schema["properties"], schema["$defs"]["Inner"]["properties"]
    assert fields["inner"]["description"] == "The part."
    assert fields["depth"]["description"] == "Said by the field itself."
    assert inner["width"]["description"] == "Columns, in\ncharacters."
    assert "description" not in inner["height"]
    assert {knob.path: knob.description for knob in knobs(Outer)}["inner.width"] == "Columns, in\ncharacters."
