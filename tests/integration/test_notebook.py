"""The example notebook runs from top to bottom, and shows something below every cell that should."""

import ast
import json
from pathlib import Path

import pytest

from nlgraft.stages.config_parts import ScoreConfig
from nlgraft.study.public import Study

ROOT = Path(__file__).parents[2]
NOTEBOOK = ROOT / "examples" / "study.ipynb"
SMALL = [
    "@tiny",
    "data.upstream.train=200", "data.downstream.train=100", "data.downstream.dev=20",
    "data.downstream.test=30",
    "tokenizers.upstream.vocab_size=200", "tokenizers.downstream.vocab_size=200", "decode.beam=1",
    "upstream.train.max_steps=4", "downstream.train.max_steps=3",
    "upstream.train.warmup_steps=1", "downstream.train.warmup_steps=1", "generator.max_steps=2",
    "upstream.train.eval_every_steps=2", "downstream.train.eval_every_steps=1", "seeds=[1, 2]",
]  # fmt: skip


def cells():
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    assert document["nbformat"] == 4
    assert len({cell["id"] for cell in document["cells"]}) == len(document["cells"])
    return ["".join(cell["source"]) for cell in document["cells"] if cell["cell_type"] == "code"]


def execute(source, names):
    """Run a cell as a notebook does; gives the value of its last expression."""
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, str(NOTEBOOK), "exec"), names)
    return None if last is None else eval(compile(ast.Expression(last.value), str(NOTEBOOK), "eval"), names)


def test_it_is_stored_without_outputs_and_starts_in_three_lines():
    document = json.loads(NOTEBOOK.read_text("utf-8"))
    assert all(cell.get("outputs", []) == [] for cell in document["cells"])
    code = "\n".join(cells()[1:3])
    lines = [line for line in code.splitlines() if line and line != "study.plan()"]
    assert lines[:2] == ["import nlgraft", 'study = nlgraft.Study.from_yaml("demo", overrides)']
    assert lines[2:] == ["result = nlgraft.launch(study)", "result.plot()"]


@pytest.mark.slow
def test_every_cell_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {}
    shown = []
    for index, source in enumerate(cells()):
        shown.append(execute(source, names))
        if index == 0:
            names["overrides"] = SMALL  # seconds instead of minutes
    plan = next(
        value for source, value in zip(cells(), shown, strict=True) if source.endswith("study.plan()")
    )
    assert "<table" in plan._repr_html_()
    forest, curves = (value for value in shown if type(value).__name__ == "Drawings")
    assert forest._repr_html_().count("<svg") == len(forest) == 1
    assert curves._repr_html_().count("<svg") == len(curves) > 1
    frames = [value for value in shown if type(value).__name__ == "DataFrame"]
    assert [len(frame) for frame in frames] == [5, 5]
    assert frames[0]["mean"].notna().all()
    assert "<table" in names["result"]._repr_html_()
    assert (tmp_path / "curves.pdf").read_bytes().startswith(b"%PDF")
    assert "paper.tex" in shown[-1]


def test_completion_offers_no_names_of_pydantic():
    study = Study.from_yaml("demo")
    for config in (study, ScoreConfig()):
        offered = [name for name in dir(config) if not name.startswith("_")]
        assert not {name for name in offered if name.startswith("model_")}
        assert not {"copy", "dict", "json", "parse_obj", "construct"} & set(offered)
        assert set(type(config).model_fields) <= set(offered)
    assert {"plan", "to_yaml", "variant"} <= set(dir(study))
