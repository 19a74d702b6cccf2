"""ARCHITECTURE's "to add X, edit Y": one of each is added to a copy, and is found wherever it must be."""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.small_studies import GREEDY, TINY, TRAIN

ROOT = Path(__file__).parents[2]
EXAMINED = Path(__file__).parent / "adding" / "examine.py"
"""Reads, runs, tracks and reports a study of the copy, and prints what it found as JSON."""


@dataclass(frozen=True)
class Addition:
    """Something new.

    Attributes:
        what: Its row in ARCHITECTURE's table.
        edits: By file: text that the file has, and what takes its place (``{}`` stands for that text).
    """

    what: str
    edits: Mapping[str, tuple[tuple[str, str], ...]]


MERGE = Addition(
    "a merge strategy",
    {
        "platform/nlgraft/nn/model_config.py": (
            ("MergeName = Literal[", '{}"scaled", '),
            (
                "    dropnet_probability: float",
                "    scaled_factor: float | None = Field(default=None, gt=0)\n"
                '    """Scaled: factor of the branches; null: 0.5."""\n{}',
            ),
        ),
        "platform/nlgraft/nn/fusion.py": (
            (
                "MERGES: dict[MergeName, Callable[[FusionConfig, int], nn.Module]] = {",
                "class Scaled(nn.Module):\n"
                "    def __init__(self, config: FusionConfig, d_model: int) -> None:\n"
                "        super().__init__()\n"
                "        self.factor = config.scaled_factor or 0.5\n\n"
                "    def forward(self, own_RTD: Tensor, flows: Sequence[Tensor]) -> Tensor:\n"
                '        return own_RTD + self.factor * sum(flows)\n\n\n{}\n    "scaled": Scaled,',
            ),
        ),
    },
)
METRIC = Addition(
    "a metric of text",
    {
        "platform/nlgraft/evaluation/metric_config.py": (
            ("TextMetric = Literal[", '{}"exact", '),
            (
                "SCORED: Mapping[str, Scored] = {",
                '{}\n    "exact": _less("points", "Exact copies, few are better."),',
            ),
        ),
        "platform/nlgraft/evaluation/sufficient.py": (
            (
                "STATISTIC_METRICS: Mapping[str, StatisticMetric] = {",
                "def _exact_rows(hypotheses: Sequence[str], references: Sequence[str]) -> Rows:\n"
                "    pairs = zip(hypotheses, references, strict=True)\n"
                '    return np.array([[one == other, 1.0] for one, other in pairs]), "exact"\n\n\n'
                '{}\n    "exact": StatisticMetric(_percentage, _exact_rows),',
            ),
        ),
    },
)
SCHEDULE = Addition(
    "a learning-rate schedule",
    {
        "platform/nlgraft/training/train_config.py": (
            ("LrSchedule = Literal[", '{}"square", '),
            (
                "FALLING: Mapping[LrSchedule, Callable[[float], float]] = {",
                '{}\n    "square": lambda progress: (1 - progress) ** 2,',
            ),
        )
    },
)
CORPUS = Addition(
    "a corpus source",
    {
        "platform/nlgraft/text/corpus_config.py": (
            (
                "CorpusConfig = Annotated[\n",
                "class NumbersConfig(ConlangConfig.__base__):\n"
                '    corpus: Literal["numbers"]\n'
                '    count: int = Field(default=40, ge=1)\n    """Examples."""\n\n'
                "    @property\n"
                "    def roles(self) -> tuple[str, ...]:\n"
                '        return ("source 0", "source 1", "target")\n\n\n{}    NumbersConfig | ',
            ),
        ),
        "platform/nlgraft/text/corpora.py": (
            ("    match config:\n", "{}        case NumbersConfig():\n            return _numbers(config)\n"),
            ("from nlgraft.text.corpus_config import (", "{}\n    NumbersConfig,"),
            (
                "def load_corpus(",
                "def _numbers(config: NumbersConfig) -> dict[str, Corpus]:\n"
                '    words = [f"{{one * 3}} {{two * 3}}" for one in "abcdefgh" for two in "klmnopqr"]\n'
                "    lines = [words[i % len(words)] for i in range(config.count)]\n"
                "    return {{\n"
                '        split: Corpus([lines[at:], [line + " x" for line in lines[at:]]], lines[at:])\n'
                '        for split, at in (("train", 0), ("dev", -6), ("test", -4))\n'
                "    }}\n\n\n{}",
            ),
        ),
    },
)
SYSTEM = Addition("a system", {})
ADDITIONS = (MERGE, METRIC, SCHEDULE, CORPUS, SYSTEM)


def table():
    """ARCHITECTURE's rows, with the files and folders that each names."""
    text = (ROOT / "ARCHITECTURE.md").read_text("utf-8")
    section = text.partition("## To add X, edit Y")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.+?) \| (.+) \|$", section, re.M)
    return {what: re.findall(r"`([\w./-]+)`", where) for what, where in rows}


def edit(root, addition):
    for file, changes in addition.edits.items():
        path = root / file
        text = path.read_text("utf-8")
        for old, new in changes:
            assert text.count(old) == 1, f"{file}: {old!r} stands there {text.count(old)} times"
            text = text.replace(
                old, new.replace("{}", "\0").replace("{{", "{").replace("}}", "}").replace("\0", old)
            )
        path.write_text(text, "utf-8")


def add_system(root):
    """Follow trainables/README.md, whose steps give the minimal example."""
    folder = root / "trainables" / "added"
    folder.mkdir()
    for source in (ROOT / "examples" / "minimal_system").glob("*.*"):
        text = source.read_text("utf-8").replace("examples.minimal_system", "trainables.added")
        target = root / "search_spaces" / "added" if source.suffix == ".yaml" else folder
        target.mkdir(parents=True, exist_ok=True)
        (target / source.name).write_text(text, "utf-8")


@pytest.fixture(scope="module")
def house(tmp_path_factory):
    """A copy of the sources, with everything added."""
    root = tmp_path_factory.mktemp("house")
    for name in ("platform", "trainables"):
        shutil.copytree(ROOT / name, root / name)
    for addition in ADDITIONS:
        edit(root, addition)
    add_system(root)
    return root


def run_in(house, *arguments):
    """Run Python on the copy."""
    environment = {**os.environ, "PYTHONPATH": f"{house / 'platform'}:{house}"}
    command = [sys.executable, *arguments]
    return subprocess.run(command, cwd=house, env=environment, capture_output=True, text=True, check=False)


_TINY = {
    "model": TINY,
    "decode": GREEDY,
}


def study_of_the_system():
    """A study of the new system, on the new corpus, with the new schedule and metric, and mistakes in it."""
    study = {
        "schema_version": 1,
        "name": "system",
        "system": "trainables.added",
        "data": {"corpus": "numbers", "count": 60},
        "base": {
            **_TINY,
            "tokenizer": {"vocab_size": 60},
            "train": TRAIN,
            "score": {"metrics": ["bleu", "exact"]},
        },
        "factors": {
            "schedule": {"target": "train.lr_schedule", "levels": ["linear", "square"], "baseline": "linear"}
        },
        "objective": {"metric": "dev/exact", "direction": "minimize"},
        "seeds": [1],
    }
    mistakes = {
        "system": {"system": "trainables.aded"},
        "corpus": {"data": {"corpus": "numbrs"}},
        "schedule": {
            "factors": {
                "schedule": {
                    "target": "train.lr_schedule",
                    "levels": ["linear", "squar"],
                    "baseline": "linear",
                }
            }
        },
        "metric": {"base": {**study["base"], "score": {"metrics": ["exac"]}}},
        "objective": {"objective": {"metric": "dev/exac", "direction": "minimize"}},
        "direction": {"objective": {"metric": "dev/exact", "direction": "maximize"}},
    }
    return {"study": study, "mistakes": mistakes}


def study_of_the_merge():
    """A study of fusion whose trials merge by the new strategy and by the sum, and mistakes in it."""
    corpus = {"corpus": "conlang", "train": 60, "dev": 6, "test": 4}
    prlm = {"kind": "bert", "model": {"d_model": 16, "num_heads": 2, "ffn_dim": 32, "num_layers": 1}}
    study = {
        "schema_version": 1,
        "name": "merge",
        "system": "trainables.prlm_fusion",
        "data": {
            "downstream": {**corpus, "task": "translation"},
            "upstream": {**corpus, "task": "monolingual", "language": "first"},
        },
        "base": {
            **_TINY,
            "tokenizer": {"vocab_size": 150},
            "prlms": {"bert": prlm},
            "pretraining": {"tokenizer": {"vocab_size": 120}, "train": TRAIN},
            "fusion": {"prlms": ["bert"], "max_tokens": 20},
            "train": TRAIN,
            "score": {"metrics": ["bleu"]},
        },
        "factors": {
            "merge": {
                "levels": {
                    "sum": {"fusion.merge": "sum"},
                    "scaled": {"fusion.merge": "scaled", "fusion.scaled_factor": 0.25},
                },
                "baseline": "sum",
            }
        },
        "objective": {"metric": "dev/bleu", "direction": "maximize"},
        "seeds": [1],
    }
    base = study["base"]
    mistakes = {
        "merge": {"base": base | {"fusion": {"prlms": ["bert"], "merge": "scald"}}, "factors": {}},
        "setting": {"base": base | {"fusion": {"prlms": ["bert"], "scaled_factor": 0.5}}, "factors": {}},
    }
    return {"study": study, "mistakes": mistakes}


@pytest.fixture(scope="module")
def examined(house, empty_database):
    """Of each study what is found before and after it runs in the copy, by its name."""
    studies = [study_of_the_system(), study_of_the_merge()]
    for entry in studies:
        store = house / entry["study"]["name"]
        store.mkdir()
        shutil.copy(empty_database, store / "mlflow.db")
        entry["study"]["storage"] = {"path": str(store)}
    (house / "studies.json").write_text(json.dumps(studies), "utf-8")
    done = run_in(house, str(EXAMINED), str(house / "studies.json"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    return json.loads((house / "examined.json").read_text("utf-8"))


@pytest.fixture
def of_the_system(examined):
    return examined["system"]


@pytest.fixture
def of_the_merge(examined):
    return examined["merge"]


@pytest.mark.parametrize("addition", ADDITIONS, ids=lambda addition: addition.what)
def test_only_files_are_edited_that_architecture_names(addition):
    assert set(addition.edits) <= set(table()[addition.what])


def test_a_metric_is_found(of_the_system):
    shown = of_the_system
    assert "1 problem\n" in shown["mistakes"]["metric"]
    assert "Did you mean 'exact'?" in shown["mistakes"]["metric"]
    assert "Did you mean 'dev/exact'?" in shown["mistakes"]["objective"]
    assert "dev/exact is a metric to minimize" in shown["mistakes"]["direction"]
    assert "exact" in shown["knobs"]["score.metrics"]["allowed"].split(", ")
    assert '"dev/exact"' in shown["schema"]
    for run in shown["trials"].values():
        assert {"dev/exact", "test/exact"} <= run["metrics"].keys()
    assert "test/exact" in shown["report"]
    assert shown["result"] == {"dev/exact": "minimize", "test/exact": "minimize"}


def test_a_schedule_is_found(of_the_system):
    shown = of_the_system
    assert "Did you mean 'square'?" in shown["mistakes"]["schedule"]
    assert "square" in shown["knobs"]["train.lr_schedule"]["allowed"].split(", ")
    assert '"square"' in shown["schema"]
    logged = {name: run["params"]["train.lr_schedule"] for name, run in shown["trials"].items()}
    assert sorted(logged.values()) == ["linear", "square"]
    assert "schedule=square" in shown["report"]


def test_a_corpus_source_is_found(of_the_system):
    shown = of_the_system
    assert "Did you mean 'numbers'?" in shown["mistakes"]["corpus"]
    assert '"numbers"' in shown["schema"]
    assert "numbers" in shown["knobs"]["data.corpus"]["allowed"].split(", ")
    assert shown["knobs"]["data.count"]["default"] == 40
    for run in shown["trials"].values():
        assert run["params"]["data.corpus"] == "numbers"
        assert run["params"]["data.count"] == "60"
    assert {"numbers/train", "numbers/dev", "numbers/test"} <= set(shown["datasets"])


def test_a_system_is_found(of_the_system):
    shown = of_the_system
    assert "Did you mean 'trainables.added'?" in shown["mistakes"]["system"]
    assert "added" in [system["name"] for system in shown["systems"]]
    assert shown["knobs"]["read"]["allowed"] == "first, second, both"
    assert '"read"' in shown["schema"]
    assert shown["of_the_study"]["system"] == "trainables.added"
    assert "trainables.added" in shown["report"]


def test_a_system_without_toys_fails_one_test_which_says_what_to_add(house):
    left_out = shutil.ignore_patterns("adding", "test_adding.py", "conftest.py")  # the last is for stores
    for name in ("tests/contract", "examples"):
        shutil.copytree(ROOT / name, house / name, ignore=left_out)
    for name in ("pyproject.toml", "tests/conftest.py", "tests/small_studies.py"):
        shutil.copy(ROOT / name, house / name)
    options = ("-q", "-k", "added", "-p", "no:cacheprovider")
    done = run_in(house, "-m", "pytest", *options, "tests/contract/test_systems.py")
    failed = re.findall(r"^(?:FAILED|ERROR) \S*::(\S+)", done.stdout, re.M)
    assert failed == ["test_a_system_has_toys[trainables.added]"], (done.stdout + done.stderr)[-3000:]
    assert "tests/contract/toys/added.py is missing or empty: give it ARMS" in done.stdout


def test_a_merge_strategy_is_found(of_the_merge):
    shown = of_the_merge
    assert "Did you mean 'scaled'?" in shown["mistakes"]["merge"]
    assert "scaled_factor has no effect with merge 'sum'" in shown["mistakes"]["setting"]
    assert "scaled" in shown["knobs"]["fusion.merge"]["allowed"].split(", ")
    assert shown["knobs"]["fusion.scaled_factor"]["read_when"] == [{"fusion.merge": ["scaled"]}]
    assert '"scaled"' in shown["schema"]
    assert '"scaled_factor"' in shown["schema"]
    by_merge = {run["params"]["fusion.merge"]: run["params"] for run in shown["trials"].values()}
    assert by_merge["scaled"]["fusion.scaled_factor"] == "0.25"
    assert {"fusion.site", "fusion.side", "fusion.layers", "pretraining.tokenizer.vocab_size"} <= set(
        by_merge["scaled"]
    )
    assert set(by_merge["scaled"]) - set(by_merge["sum"]) == {"fusion.scaled_factor"}
    assert "merge=scaled" in shown["report"]
