"""Studies that let others go first."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import ray
from ray.exceptions import GetTimeoutError

from nlgraft.execution.precedence import NAMESPACE, board_name, lacking, study_ahead


def test_it_lacks_what_is_not_free_or_else_a_node_that_has_all_of_it() -> None:
    shape = {"CPU": 2.0, "GPU": 1.0}
    assert lacking(shape, {"CPU": 8.0}) == ["GPU"]
    assert lacking(shape, {"CPU": 1.0, "GPU": 0.5}) == ["CPU", "GPU"]
    assert lacking(shape, {"CPU": 8.0, "GPU": 2.0}) == ["CPU", "GPU"]
    assert lacking({"CPU": 2.0, "GPU": 0.0}, {"CPU": 8.0}) == ["CPU"]


@pytest.fixture
def boards(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the boards of the studies on a cluster say, by their names; one says nothing any more."""
    found: dict[str, Any] = {}

    def get(answer: Any, timeout: float) -> Any:
        if isinstance(answer, Exception):
            raise answer
        return answer

    def get_actor(name: str, namespace: str) -> Any:
        assert namespace == NAMESPACE
        return SimpleNamespace(awaited=SimpleNamespace(remote=lambda: found[name]))

    def listed(all_namespaces: bool) -> list[dict[str, str]]:
        assert all_namespaces, "drivers of other jobs have namespaces of their own"
        other = {"name": "9/of another program", "namespace": "other"}
        return [other, *({"name": name, "namespace": NAMESPACE} for name in found)]

    monkeypatch.setattr(ray, "get", get)
    monkeypatch.setattr(ray, "get_actor", get_actor)
    monkeypatch.setattr(ray.util, "list_named_actors", listed)
    return found


@pytest.mark.parametrize(
    ("priority", "shape", "ahead"),
    [
        (0, {"CPU": 1.0, "GPU": 1.0}, "urgent/one"),
        (0, {"CPU": 1.0, "GPU": 0.0}, None),  # it holds no GPU that the other one waits for
        (3, {"CPU": 1.0, "GPU": 1.0}, None),
        (-1, {"CPU": 1.0, "GPU": 0.0}, "modest"),
    ],
)
def test_a_study_of_higher_priority_goes_first_if_it_waits_for_what_this_one_holds(
    boards: dict[str, Any], priority: int, shape: dict[str, float], ahead: str | None
) -> None:
    boards[board_name(5, "gone")] = GetTimeoutError()
    boards[board_name(4, "content")] = []
    boards[board_name(3, "urgent/one")] = ["GPU"]
    boards[board_name(0, "modest")] = ["CPU"]
    assert study_ahead(priority, shape) == ahead
