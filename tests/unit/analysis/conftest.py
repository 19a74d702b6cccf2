"""A small system whose stages make up their results, run through the real store, and studies over it."""

import copy
import json
import sys
import types
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from nlgraft.analysis.data.provenance import Provenance
from nlgraft.analysis.data.trials import CellResult, TrialResult
from nlgraft.analysis.study_result import StudyResult
from nlgraft.basics.errors import TrialFailed
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.evaluation.artifact import write_evaluation, write_metrics
from nlgraft.evaluation.scores import Evaluation, Score, evaluate_text
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import TrialRecord, run_trial
from nlgraft.study.data.design import cells
from nlgraft.study.data.system import Metric
from nlgraft.study.planning.selection import (
    Proposal,
    best_proposal,
    load_proposals,
    save_proposal,
    search_seed,
)
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_config
from nlgraft.study.reading.system_import import load_system

SYSTEM = "made_up_system"
WORDS = [f"wort{index}" for index in range(60)]
WRONG = {"random_init": 0.36, "single_run": 0.46, "avg_eg": 0.31, "att_eg": 0.305, "patt_eg": 0.29}
LENGTH = {"random_init": 1.0, "single_run": 1.0, "avg_eg": 0.86, "att_eg": 0.86, "patt_eg": 0.86}


class Config(StrictConfig):
    """Settings of the made-up system."""

    arm: str = "random_init"
    lr: float = 1e-3
    segments: int = 40
    fails_with_seed: int = -1
    upstream: str = "a"
    upstream_seed: int | None = None
    is_per_seed: bool = False
    lines_per_document: int = 0
    data: Mapping[str, Any] = {}


def stage_graph(config, *, seed, splits):
    run = f"{SYSTEM}:{{}}".format
    upstream = Stage(
        name="upstream",
        run=run("train_upstream"),
        config={"segments": config.segments, "upstream": config.upstream},
        seed=seed if config.is_per_seed else config.upstream_seed,
    )
    settings = config.model_dump(exclude={"data"})
    finetune = Stage(
        name="finetune", run=run("finetune"), config=settings, inputs={"upstream": upstream}, seed=seed
    )
    score = {**settings, "splits": list(splits)}
    inputs = {"model": finetune}
    if config.lines_per_document:
        sizes = {"segments": config.segments, "lines_per_document": config.lines_per_document}
        inputs["corpus"] = Stage(name="corpus", run=run("load_documents"), config=sizes)
    return StageGraph(Stage(name="scores", run=run("score"), config=score, inputs=inputs, seed=seed))


def load_documents(context):
    size, number = context.config["lines_per_document"], context.config["segments"]
    for split in ("dev", "test"):
        (context.directory / split).mkdir()
        lines = "".join(f"document {index // size}\n" for index in range(number))
        (context.directory / split / "document.txt").write_text(lines)


def write_curves(context, curves):
    (context.directory / "curves.json").write_text(json.dumps(curves))


def train_upstream(context):
    points = [[step, 5 * np.exp(-step / 300) + 2.1, 1_700_000_000_000 + step] for step in range(0, 1001, 100)]
    write_curves(context, {"dev/loss": points, "train/loss": points, "train/lr": points})


def finetune(context):
    if context.config["fails_with_seed"] == context.seed:
        raise RuntimeError("CUDA out of memory, as it were")
    rng = np.random.default_rng(context.seed)
    end = 1.5 + 2 * WRONG[context.config["arm"]] + 0.04 * rng.standard_normal()
    steps = range(0, 501, 25)
    dev = [[s, end + 1.4 * np.exp(-s / 120) + 0.01 * rng.standard_normal(), 0] for s in steps]
    write_curves(context, {"dev/loss": dev, "train/loss": [[s, v - 0.15, t] for s, v, t in dev]})


@cache
def scored_text(arm, lr, num_segments, seed, split):
    """Guesses, references and scores, which many studies share."""
    quality = np.random.default_rng([seed, len(arm)])
    wrong = WRONG[arm] + 0.02 * quality.standard_normal()
    wrong += 0.05 * abs(np.log10(lr / 1e-3))
    text = np.random.default_rng(7 if split == "test" else 8)
    lines = [list(text.choice(WORDS, text.integers(6, 18))) for _ in range(num_segments)]
    noise = np.random.default_rng([seed, len(split), sum(map(ord, arm))])
    guesses = [" ".join(w if noise.random() > wrong else noise.choice(WORDS) for w in line) for line in lines]
    references = [" ".join(line) for line in lines]
    evaluation = evaluate_text(guesses, references, metrics=("bleu",))
    lengths = np.array([[1.7 * len(line) * LENGTH[arm], 1.0] for line in lines])
    right = np.array([[line[0] == guess.split()[0], 1.0] for line, guess in zip(lines, guesses, strict=True)])
    for name, rows in (("reference_length", lengths), ("accuracy", right)):
        evaluation |= Evaluation.of({name: rows}, "made up")
    return guesses, references, evaluation


def score(context):
    config = context.config
    for split in config["splits"]:
        scored = scored_text(config["arm"], config["lr"], config["segments"], context.seed, split)
        write_evaluation(context.directory, split, *scored)
    saved = Score(1 - LENGTH[config["arm"]], config["segments"], "maximize", "pieces")
    write_metrics(context.directory, {"test/length_saved": saved})
    quality = np.random.default_rng([context.seed, len(config["arm"])])
    quality.standard_normal()
    speed = Score(40 + quality.random(), config["segments"], "maximize", "beam:5")
    write_metrics(context.directory, {"test/sentences_per_s": speed})


METRICS = {
    "test/bleu": Metric(direction="maximize", unit="BLEU points", split="test"),
    "test/accuracy": Metric(direction="maximize", unit="percent", split="test"),
    "dev/loss": Metric(direction="minimize", unit="nats per token", split="dev"),
    "dev/bleu": Metric(direction="maximize", unit="BLEU points", split="dev"),
    "test/reference_length": Metric(direction="minimize", unit="pieces per segment", split="test"),
    "test/length_saved": Metric(direction="maximize", unit="share", split="test", is_fixed=True),
    "dev/reference_length": Metric(direction="minimize", unit="pieces per segment", split="dev"),
    "test/sentences_per_s": Metric(direction="maximize", unit="1/s", split="test", is_time=True),
    "test/ter": Metric(direction="minimize", unit="percent", split="test"),
}

STUDY = {
    "schema_version": 1,
    "name": "made-up-table2",
    "description": "Which way of making embeddings for unseen tokens helps after the vocabulary is swapped?",
    "system": SYSTEM,
    "data": {"upstream": {"corpus": "conlang", "domain": "a"}, "downstream": {"corpus": "conlang"}},
    "factors": {
        "arm": {
            "target": "arm",
            "levels": ["random_init", "single_run", "avg_eg", "att_eg", "patt_eg"],
            "baseline": "random_init",
        }
    },
    "objective": {"metric": "dev/bleu", "direction": "maximize"},
    "seeds": [1, 2, 3],
    "published": [
        {
            "source": "Table 2, Thesis",
            "metric": "test/bleu",
            "signature": "case:mixed|tok:13a",
            "data": {"upstream.domain": "a"},
            "values": {"patt_eg": 37.72, "random_init": 36.33},
        }
    ],
    "claims": [
        {"better": "patt_eg", "worse": "random_init"},
        {"better": "patt_eg", "worse": "att_eg", "metric": "test/bleu", "source": "Table 2, Thesis"},
        {
            "better": "single_run",
            "worse": "random_init",
            "metric": "test/bleu",
            "source": "the other way round",
        },
    ],
}


@pytest.fixture(scope="session", autouse=True)
def _made_up_system():
    module = types.ModuleType(SYSTEM)
    names = (Config, stage_graph, train_upstream, load_documents, finetune, score)
    module.__dict__.update({entry.__name__: entry for entry in names})
    module.METRICS, module.DESCRIPTION, module.PAPER = METRICS, "Made up for tests", "Nobody (2026)"
    sys.modules[SYSTEM] = module
    yield
    del sys.modules[SYSTEM]


def run_unit(study, store, cell, seed, params=None, splits=("dev", "test")):
    """Run one trial as a sweep would; a failure leaves its record."""
    config = resolve_config(study, cell, params or {})
    graph = load_system(study.system).stage_graph(config, seed=seed, splits=splits)
    try:
        run_trial(graph, store, reporter=NullReporter(), config=config.model_dump(), is_waiting=False)
    except TrialFailed:
        return graph.fingerprint
    return graph.fingerprint


def run_study(study, store, skip=()):
    """Run all trials of a study in this process but those of ``skip``: (label, seed)."""
    for cell in cells(study):
        params = search(study, store, cell) if study.search else {}
        for seed in study.seeds:
            if params is not None and (cell.label, seed) not in skip:
                run_unit(study, store, cell, seed, params)
    return StudyResult.read(study, store)


def search(study, store, cell):
    """Run a search that proposes learning rates from a list."""
    seed = search_seed(study)
    for index in range(study.search.trials):
        params = {"lr": [3e-2, 1e-3, 2e-4, 5e-3][index % 4]}
        fingerprint = run_unit(study, store, cell, seed, params, splits=("dev",))
        save_proposal(study, cell, store, Proposal(index, params, seed, fingerprint))
    best = best_proposal(study.objective, load_proposals(study, cell, store))
    return None if best is None else dict(best.params)


def scored_result(study, scores):
    """A result whose finished replicates have these scores: by label and metric, one per seed."""
    system = load_system(study.system)
    cell_results = []
    for cell in cells(study):
        trials = []
        for index, seed in enumerate(study.seeds):
            metrics = {name: float(values[index]) for name, values in scores[cell.label].items()}
            fingerprint = f"{cell.label} {seed}"
            record = TrialRecord(
                fingerprint=fingerprint,
                config={},
                seed=seed,
                state="finished",
                metrics=metrics,
                signatures=dict.fromkeys(metrics, "case:mixed|tok:13a"),
            )
            trials.append(TrialResult("replicate", cell, seed, fingerprint, "finished", record=record))
        cell_results.append(CellResult(cell, tuple(trials)))
    return StudyResult(study, system, tuple(cell_results), Provenance())


@pytest.fixture(scope="session")
def scored():
    """Build a result from scores, without running anything."""
    return scored_result


@pytest.fixture(scope="session")
def with_trials():
    """Change the replicates of a result: what ``changes`` says of a cell's label and the place of a seed."""

    def change(result, changes):
        cells = [
            replace(
                cell,
                trials=tuple(replace(trial, **changes(cell.label, n)) for n, trial in enumerate(cell.trials)),
            )
            for cell in result.cells
        ]
        return replace(result, cells=tuple(cells))

    return change


@pytest.fixture(scope="session")
def with_search():
    """Put search trials into the first cell of a result: their params, and objectives or states."""

    def put(result, tried, **fields):
        cell, metric = result.cells[0], result.study.objective.metric
        trials = []
        for number, (params, value) in enumerate(tried):
            state, metrics = (value, {}) if isinstance(value, str) else ("finished", {metric: value})
            record = TrialRecord(
                fingerprint=str(number), config={}, seed=0, state=state, metrics=metrics, **fields
            )
            identity = ("search", cell.cell, 0, str(number), state)
            trials.append(TrialResult(*identity, params=params, number=number, record=record))
        return replace(result, cells=(replace(cell, search=tuple(trials)), *result.cells[1:]))

    return put


@pytest.fixture(scope="session")
def make_study():
    """Build a variant of the made-up study; its figures are published for claims that name no metric."""

    def build(**changes):
        claims = changes.get("claims", STUDY["claims"])
        has_figures = any("metric" not in claim for claim in claims)
        return Study.from_dict({**STUDY, **({} if has_figures else {"published": []}), **changes})

    return build


@pytest.fixture(scope="session")
def make_arms(make_study):
    """Build a variant of the study with other arms, the first of them the baseline, and without claims."""

    def build(arms, **changes):
        factor = {"target": "arm", "levels": list(arms), "baseline": arms[0]}
        return make_study(**{"factors": {"arm": factor}, "claims": [], **changes})

    return build


@pytest.fixture(scope="session")
def make_small_study(make_arms):
    """Build a variant of the study with two arms and without claims."""
    return lambda **changes: make_arms(["random_init", "patt_eg"], **changes)


@pytest.fixture(scope="session")
def run():
    """Run a study in this process."""
    return run_study


@pytest.fixture
def store(tmp_path):
    """An empty local store."""
    return ArtifactStore.open(tmp_path / "store")


@pytest.fixture(scope="session")
def result(tmp_path_factory, make_study, _made_up_system):
    """The result of the whole made-up study."""
    return run_study(make_study(), ArtifactStore.open(tmp_path_factory.mktemp("whole") / "store"))


@pytest.fixture(scope="session", autouse=True)
def _registered_system():
    from tests.unit.analysis import registered

    module = types.ModuleType(registered.SYSTEM)
    module.__dict__.update({part.__name__: part for part in registered.PARTS})
    module.VERSION, module.DESCRIPTION, module.PAPER = 1, "Guesses", "Nobody (2026)"
    module.METRICS = {
        f"{split}/{name}": Metric(direction="maximize", unit="points", split=split)
        for split in ("dev", "test")
        for name in ("bleu", "chrf")
    }
    sys.modules[registered.SYSTEM] = module
    yield
    del sys.modules[registered.SYSTEM]


@pytest.fixture
def here(tmp_path):
    """A study that is neither registered nor run."""
    from tests.unit.analysis.registered import Workplace

    return Workplace(tmp_path)


@pytest.fixture(scope="module")
def _finished(tmp_path_factory):
    """A study that was registered, then run."""
    import nlgraft
    from tests.unit.analysis.registered import Workplace

    place = Workplace(tmp_path_factory.mktemp("registered"))
    nlgraft.register(place.study())
    place.run()
    return place


@pytest.fixture
def finished(_finished):
    """The registered study after its run, to be edited; edits of its file and text are undone."""
    document = copy.deepcopy(_finished.document)
    texts = {path: path.read_bytes() for path in _finished.root.iterdir() if path.is_file()}
    yield _finished
    _finished.document = document
    for path, content in texts.items():
        path.write_bytes(content)
