"""Importances of searched settings, on trials whose objective is known."""

import numpy as np

from nlgraft.execution.optuna_study import importances
from nlgraft.study.data.space import CategoricalDomain, FloatDomain, IntDomain

SPACE = {
    "lr": FloatDomain(type="float", low=1e-4, high=1e-1, log=True),
    "layers": IntDomain(type="int", low=1, high=6),
    "kind": CategoricalDomain(type="categorical", choices=["a", True, [1, 2]]),
    "rate": FloatDomain(type="float", low=0.0, high=1.0, when={"kind": "a"}),
}


def trials(objective, num=60):
    rng = np.random.default_rng(1)
    measured = []
    for _ in range(num):
        params = {
            "lr": float(10 ** rng.uniform(-4, -1)),
            "layers": int(rng.integers(1, 7)),
            "kind": ["a", True, [1, 2]][rng.integers(3)],
        }
        if params["kind"] == "a":
            params["rate"] = float(rng.random())
        measured.append((params, float(objective(params))))
    return measured


def test_the_setting_that_decides_has_the_largest_importance():
    for path, objective in {
        "lr": lambda point: -abs(np.log10(point["lr"]) + 2),
        "layers": lambda point: point["layers"] + point["lr"],
        "kind": lambda point: (point["kind"] == [1, 2]) + 0.1 * np.sin(1e7 * point["lr"]),
    }.items():
        scores = importances(SPACE, "maximize", trials(objective))
        assert max(scores, key=scores.__getitem__) == path
        assert scores[path] > 2 * sorted(scores.values())[-2]


def test_equal_objectives_show_nothing():
    assert importances(SPACE, "maximize", trials(lambda _: 1.0)) == {}
    assert importances(SPACE, "maximize", []) == {}
