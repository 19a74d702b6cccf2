"""Registered studies as a user meets them: registered, run, edited afterwards and reported."""

import copy
import json
import sys
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from typing import ClassVar

import numpy as np
import pytest
from click.testing import CliRunner
from ruamel.yaml import YAML

import nlgraft
from nlgraft import api
from nlgraft.analysis.data import frozen
from nlgraft.analysis.data.registration import open_registrations
from nlgraft.cli import main
from nlgraft.conditions import ReadWhen, as_read
from nlgraft.errors import DataError, TrialFailed
from nlgraft.evaluation.artifact import write_evaluation
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.pipeline.stage import NullReporter, Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages import seq2seq_graph
from nlgraft.strict_config import StrictConfig
from nlgraft.study.data.design import cells
from nlgraft.study.data.metric import Metric
from nlgraft.study.data.study import Analysis
from nlgraft.study.reading.system_import import load_system
from nlgraft.text.corpora import read_corpus
from nlgraft.text.corpus_config import CorpusConfig
from nlgraft.text.files import InputPath, file_digest

SYSTEM = "registered_system"
RIGHT = {"plain": 0.5, "avg": 0.7, "att": 0.8}


class Config(StrictConfig):
    """Settings of a system that guesses the references."""

    READ_WHEN: ClassVar[ReadWhen] = {"patience": ({"arm": ("att",)},)}

    data: CorpusConfig
    arm: str = "plain"
    lr: float = 1e-3
    steps: int = 10
    patience: int = 1
    dictionary: InputPath | None = None


def stage_graph(config, *, seed, splits):
    run = f"{SYSTEM}:{{}}".format
    settings = as_read(config).model_dump(mode="json", exclude={"data", "dictionary"})
    if config.dictionary is not None:
        settings["dictionary"] = file_digest(config.dictionary)
    version = sys.modules[SYSTEM].VERSION
    train = Stage(name="train", run=run("train"), version=version, config=settings, seed=seed)
    corpus = seq2seq_graph.corpus("text", config.data)
    inputs = {"model": train, "corpus": corpus}
    return StageGraph(Stage(name="scores", run=run("score"), config={"splits": list(splits)}, inputs=inputs))


def train(context):
    (context.directory / "model.json").write_text(json.dumps([context.config, context.seed]))


def score(context):
    config, seed = json.loads((context.inputs["model"] / "model.json").read_text())
    if seed == 13:
        raise RuntimeError("no luck")
    for split in context.config["splits"]:
        references = read_corpus(context.inputs["corpus"] / split).target
        rng = np.random.default_rng([seed, len(config["arm"])])
        right = RIGHT[config["arm"]] + 0.01 * config["steps"]
        guesses = [" ".join(w if rng.random() < right else "?" for w in line.split()) for line in references]
        found = evaluate_text(guesses, references, metrics=("bleu", "chrf"))
        write_evaluation(context.directory, split, guesses, references, found)


@pytest.fixture(scope="session", autouse=True)
def _registered_system():
    module = types.ModuleType(SYSTEM)
    module.__dict__.update({one.__name__: one for one in (Config, stage_graph, train, score)})
    module.VERSION, module.DESCRIPTION, module.PAPER = 1, "Guesses", "Nobody (2026)"
    module.METRICS = {
        f"{split}/{name}": Metric(direction="maximize", unit="points", split=split)
        for split in ("dev", "test")
        for name in ("bleu", "chrf")
    }
    sys.modules[SYSTEM] = module
    yield
    del sys.modules[SYSTEM]


STUDY = """\
# Which arm guesses best?
name: guesses
description: Which arm guesses best?
system: registered_system
data:
  corpus: files
  train: {sources: train.en, target: train.de}
  dev: {sources: dev.en, target: dev.de}
  test: {sources: test.en, target: test.de}
base: {steps: 10, dictionary: words}
factors:
  arm:
    levels: {plain: {arm: plain}, avg: {arm: avg}, att: {arm: att}}
    baseline: plain
components:
  schooling: {without: {lr: 0.1}}
objective: {metric: dev/bleu, direction: maximize}
seeds: [1, 2, 3]
published:
  - {source: Table 1, metric: test/bleu, values: {avg: 31.0, plain: 30.0, att: 32.0}}
claims:
  - {better: avg, worse: plain}
  - {better: att, worse: avg, margin: 1.0}
scales:
  tiny: {base: {steps: 2}}
resources: {cpus_per_worker: 1}
storage: {path: store}
"""


class Workplace:
    """A directory with a study and its text, as its user edits them."""

    def __init__(self, root):
        self.root = root
        words = [f"w{n}" for n in range(50)]
        rng = np.random.default_rng(3)
        for split, num in (("train", 30), ("dev", 10), ("test", 20)):
            lines = [" ".join(rng.choice(words, 8)) for _ in range(num)]
            self.write(f"{split}.en", lines)
            self.write(f"{split}.de", [line.upper() for line in lines])
        self.write("words", words)
        self.document = YAML(typ="safe").load(STUDY)
        self.text = STUDY

    def lines(self, name):
        return (self.root / name).read_text().splitlines()

    def write(self, name, lines):
        (self.root / name).write_text("".join(f"{line}\n" for line in lines))

    def study(self, *overrides, text=None):
        file = self.root / "guesses.yaml"
        if text is None:
            with file.open("w") as opened:
                YAML().dump(self.document, opened)
        else:
            file.write_text(text)
        return nlgraft.Study.from_yaml(file, [f"storage.path={self.root / 'store'}", *overrides])

    def run(self, *overrides, skip=()):
        study = self.study(*overrides)
        for cell in cells(study):
            for seed in study.seeds:
                if (cell.label, seed) not in skip and cell.label not in skip:
                    with suppress(TrialFailed):
                        api.run_one(study, cell.label, seed, NullReporter())
        return nlgraft.load(study)

    def registration(self, *overrides, text=None):
        return nlgraft.load(self.study(*overrides, text=text)).registration

    def deviations(self, *overrides, text=None):
        return [one.text for one in self.registration(*overrides, text=text).deviations]


@pytest.fixture
def here(tmp_path):
    return Workplace(tmp_path)


@pytest.fixture(scope="module")
def _finished(tmp_path_factory):
    """A study that was registered, then run."""
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


def put(path, value):
    """An edit of the file: a value set, or dropped with None."""

    def edit(place):
        *parents, last = path.split("/")
        node = place.document
        for part in parents:
            node = node[int(part)] if isinstance(node, list) else node.setdefault(part, {})
        last = int(last) if isinstance(node, list) else last
        if value is None:
            del node[last]
        else:
            node[last] = value

    return edit


def text(name, change):
    return lambda place: place.write(name, change(place.lines(name)))


def both(*edits):
    return lambda place: [edit(place) for edit in edits]


LEVELS = "factors/arm/levels"
RENAMED = {"plain": {"arm": "plain"}, "mean": {"arm": "avg"}, "att": {"arm": "att"}}
EDITS = {
    "seed added": (put("seeds", [1, 2, 3, 4]), "seeds: 1, 2, 3 → 1, 2, 3, 4 (4 added)"),
    "seed removed": (put("seeds", [1, 2]), "seeds: 1, 2, 3 → 1, 2 (3 left out)"),
    "seed replaced": (put("seeds", [1, 2, 9]), "seeds: 1, 2, 3 → 1, 2, 9 (3 left out; 9 added)"),
    "arm added": (
        put(f"{LEVELS}/more", {"arm": "att", "steps": 20}),
        "cell arm=more: not registered → added",
    ),
    "arm removed": (
        both(put(f"{LEVELS}/att", None), put("claims/1", None), put("published/0/values/att", None)),
        "cell arm=att: registered → left out of the study",
    ),
    "arm renamed": (
        both(
            put(LEVELS, RENAMED),
            put("claims/0/better", "mean"),
            put("claims/1/worse", "mean"),
            put("published/0/values", {"mean": 31.0, "plain": 30.0, "att": 32.0}),
        ),
        "name of a cell: arm=avg → arm=mean",
    ),
    "another arm under an old name": (put(f"{LEVELS}/avg/steps", 30), "steps in arm=avg: 10 → 30"),
    "component dropped": (put("components", None), "cell without schooling: registered → left out"),
    "cell excluded": (
        put("exclude", [{"schooling": "without"}]),
        "cell without schooling: registered → left",
    ),
    "objective": (put("objective/metric", "dev/chrf"), "objective.metric: dev/bleu → dev/chrf"),
    "baseline": (put("factors/arm/baseline", "avg"), "baseline: arm=plain, schooling=full → arm=avg, school"),
    "base setting": (put("base/steps", 11), "steps: 10 → 11"),
    "setting that one arm reads": (put("base/patience", 2), "patience in arm=att: 1 → 2"),
    "alpha": (put("analysis/alpha", 0.1), "analysis.alpha: 0.05 → 0.1"),
    "correction": (put("analysis/correction", "none"), "analysis.correction: holm → none"),
    "family": (put("analysis/family", "claims"), "analysis.family: all_cells → claims"),
    "kind of test": (
        put("analysis/test", "approximate_randomisation"),
        "analysis.test: paired_bootstrap → approximate_randomisation",
    ),
    "samples": (put("analysis/samples", 5000), "analysis.samples: 1000 → 5000"),
    "margin": (
        put("analysis/margin", {"test/bleu": 0.5}),
        "analysis.margin.test/bleu: none → 0.5",
    ),
    "looks planned": (
        both(put("sequential", {"looks": [3, 4]}), put("seeds", [1, 2, 3, 4])),
        "sequential.looks: none → [3, 4]",
    ),
    "any time": (put("sequential", {"kind": "anytime"}), "sequential.kind: none → anytime"),
    "claim cut": (
        put("claims/1", None),
        "claim “arm=att better than arm=avg on test/bleu”: registered → left out",
    ),
    "claim added": (
        lambda place: place.document["claims"].append({"better": "att", "worse": "plain"}),
        "claim “arm=att better than baseline on test/bleu”: not registered → added",
    ),
    "claim reversed": (
        both(put("claims/0", {"better": "plain", "worse": "avg"}), put("published/0/values/plain", 31.5)),
        "claim reversed: “arm=avg better than baseline on test/bleu” → “baseline better than arm=avg on",
    ),
    "claim's margin": (put("claims/1/margin", 2.0), "on test/bleu”, margin: 1.0 → 2.0"),
    "claim's margin dropped": (put("claims/1/margin", None), "on test/bleu”, margin: 1.0 → none"),
    "claim's metric": (
        put("claims/0", {"better": "avg", "worse": "plain", "metric": "test/chrf", "source": "Table 1"}),
        "claim “arm=avg better than baseline on test/bleu”, metric: test/bleu → test/chrf",
    ),
    "claim's figure": (
        put("published/0/values/avg", 30.5),
        "claim “arm=avg better than baseline on test/bleu”, figures: [31.0, 30.0] → [30.5, 30.0]",
    ),
    "search": (
        both(
            put("search", {"space": {"steps": {"type": "int", "low": 5, "high": 15}}, "trials": 4}),
            put("base/steps", None),
        ),
        "search.trials: none → 4",
    ),
    "test line changed": (text("test.de", lambda lines: ["?", *lines[1:]]), "data.test target: 20 lines"),
    "test line dropped": (
        both(text("test.de", lambda lines: lines[1:]), text("test.en", lambda lines: lines[1:])),
        "→ 19 lines",
    ),
    "test line added": (
        both(text("test.de", lambda lines: [*lines, "X"]), text("test.en", lambda lines: [*lines, "x"])),
        "→ 21 lines",
    ),
    "test lines in another order": (text("test.de", lambda lines: lines[::-1]), "data.test target: 20 lines"),
    "training data": (text("train.en", lambda lines: [*lines[:-1], "w1"]), "data.train source 0: 30 lines"),
    "dev data": (text("dev.en", lambda lines: [*lines[:-1], "w1"]), "data.dev source 0: 10 lines"),
    "limit of the data": (put("data/limits", {"train": 20}), "data.limits.train: none → 20"),
    "a file that a setting names": (
        text("words", lambda lines: lines[1:]),
        "what stage train reads, though no setting differs (a file or the system's code)",
    ),
}


FOLLOWS = {
    "arm removed": 1,  # its claim
    "looks planned": 2,  # their kind, and a seed more
    "baseline": 1,  # the arm of the cell without the component
    "claim's figure": 1,  # two claims have it
    "limit of the data": 2,  # the lines of either side
    "claim reversed": 1,  # its figures
    "claim's metric": 1,  # its figures
    "search": 8,  # its space and sampler
    "test line dropped": 1,  # on the other side, too
    "test line added": 1,
}
"""Number of further lines that an edit is shown by; none for most."""


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_after_the_fact_is_shown_by_name_and_nothing_else(finished, name):
    edit, expected = EDITS[name]
    edit(finished)
    found = [
        one for one in finished.deviations() if not one.startswith(("trials of", "seed 4 of", "seed 9 of"))
    ]
    assert [one for one in found if expected in one], found
    assert len(found) == 1 + FOLLOWS.get(name, 0), found


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    [
        ("search/trials", 8, "search.trials: 4 → 8"),
        ("search/sampler/seed", 7, "search.sampler.seed: 0 → 7"),
        ("search/space/steps/high", 20, "search.space.steps.high: 15 → 20"),
    ],
)
def test_an_edited_search_is_shown(here, path, value, expected):
    EDITS["search"][0](here)
    nlgraft.register(here.study())
    put(path, value)(here)
    assert here.deviations() == [expected]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["steps=20"], "steps: 10 → 20"),
        (["@tiny"], "steps: 10 → 2"),
        (["analysis.alpha=0.1"], "analysis.alpha: 0.05 → 0.1"),
        (["seeds=[1, 2]"], "seeds: 1, 2, 3 → 1, 2 (3 left out)"),
    ],
)
def test_a_variant_does_not_escape(finished, overrides, expected):
    found = finished.registration(*overrides)
    assert expected in [one.text for one in found.deviations]
    assert "Registered as guesses (" in str(found)


def test_another_version_of_the_system_is_shown(finished, monkeypatch):
    monkeypatch.setattr(sys.modules[SYSTEM], "VERSION", 2)
    assert "stage train of the system: version 1 → version 2" in finished.deviations()


def test_another_meaning_of_a_metric_is_shown(finished, monkeypatch):
    system = load_system(SYSTEM)
    changed = {"test/bleu": replace(system.metrics["test/bleu"], unit="percent")}
    other = replace(system, metrics={**system.metrics, **changed})
    monkeypatch.setattr(frozen, "load_system", lambda _: other)
    assert finished.deviations() == ["metric test/bleu: maximize, points → maximize, percent"]


def test_another_system_is_shown(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "other_system", sys.modules[SYSTEM])
    finished.document["system"] = "other_system"
    assert "system: registered_system → other_system" in finished.deviations()


def test_a_new_setting_of_the_analysis_is_compared_without_further_code(here, monkeypatch):
    """A field that is added, and is off, changes no digest; one that is on is a deviation."""
    nlgraft.register(here.study())
    added = {**Analysis().model_dump(mode="json"), "trimmed": {}}
    monkeypatch.setattr(Analysis, "model_dump", lambda *_, **__: added)
    assert here.registration().is_as_registered
    added["trimmed"] = {"test/bleu": 0.5}
    assert here.deviations() == ["analysis.trimmed.test/bleu: none → 0.5"]


@pytest.mark.parametrize(
    ("margin", "expected"),
    [
        ({"test/bleu": 2.0}, "analysis.margin.test/bleu: 0.5 → 2.0"),
        ({}, "analysis.margin.test/bleu: 0.5 → none"),
    ],
)
def test_a_registered_margin_that_is_widened_or_dropped_is_shown(here, margin, expected):
    put("analysis/margin", {"test/bleu": 0.5})(here)
    nlgraft.register(here.study())
    put("analysis/margin", margin)(here)
    assert here.deviations() == [expected]


HARMLESS = {
    "comment": lambda s: s.replace("# Which arm", "# Whichever arm"),
    "description": lambda s: s.replace("description: Which arm guesses best?", "description: Guesses."),
    "resources": lambda s: s.replace("cpus_per_worker: 1", "cpus_per_worker: 2, max_concurrent: 1"),
    "order of keys": lambda s: "\n".join(s.splitlines()[-2:] + s.splitlines()[:-2]),
    "order of levels": lambda s: s.replace(
        "plain: {arm: plain}, avg: {arm: avg}, att: {arm: att}",
        "att: {arm: att}, plain: {arm: plain}, avg: {arm: avg}",
    ),
    "order of claims": lambda s: s.replace(
        "  - {better: avg, worse: plain}\n  - {better: att, worse: avg, margin: 1.0}",
        "  - {better: att, worse: avg, margin: 1.0}\n  - {better: avg, worse: plain}",
    ),
    "order of seeds": lambda s: s.replace("[1, 2, 3]", "[3, 1, 2]"),
    "a default written out": lambda s: s + "analysis: {alpha: 0.05}\n",
    "a budget of the run": lambda s: s + "budget: {wall_clock: 2h}\n",
    "tracking": lambda s: s + "tracking: {experiment: elsewhere}\n",
    "a scale that is not used": lambda s: s.replace("steps: 2}", "steps: 3}"),
}


@pytest.mark.parametrize("name", HARMLESS)
def test_what_changes_nothing_is_no_deviation(finished, name):
    edited = HARMLESS[name](STUDY)
    assert edited != STUDY
    before = finished.registration()
    found = finished.registration(text=edited)
    assert found.is_as_registered, found.deviations
    assert found.registration.digest == before.registration.digest


def test_another_store_and_moved_files_are_no_deviation(finished, tmp_path):
    for path in finished.root.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "store").symlink_to(finished.root / "store")
    moved = Workplace.__new__(Workplace)
    moved.root, moved.document = tmp_path, finished.document
    assert moved.registration().is_as_registered
    (tmp_path / "store").unlink()
    elsewhere = nlgraft.register(moved.study())
    assert elsewhere.digest == finished.registration().registration.digest, "a reader of a paper can check it"


def test_text_that_is_only_stored_otherwise_is_the_same_text(finished):
    finished.write("test.de", [f"{line}\r" for line in finished.lines("test.de")])
    found = finished.deviations()
    assert not [one for one in found if one.startswith("data.")], found
    assert [one for one in found if "what stage text_corpus reads" in one], "yet the trials are others"


def test_registering_the_same_again_keeps_date_and_digest(here):
    first = nlgraft.register(here.study())
    assert nlgraft.register(here.study(text="# a comment\n" + STUDY)) == first
    store = ArtifactStore.open(str(here.root / "store"))
    assert len(open_registrations(store).read().documents) == 1


def test_drivers_that_register_at_once_agree(here):
    study = here.study()
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda _: nlgraft.register(study), range(4)))
    assert len({one.time for one in found}) == 1
    store = ArtifactStore.open(str(here.root / "store"))
    assert len(open_registrations(store).read().documents) == 1


def test_registering_something_else_makes_a_further_registration(here):
    first = nlgraft.register(here.study())
    put("base/steps", 11)(here)
    second = nlgraft.register(here.study())
    assert second.digest != first.digest
    standing = here.registration()
    assert standing.is_as_registered
    assert f"{second.name}, registration 2 of 2 under this name" in str(standing)
    put("base/steps", 12)(here)
    assert here.deviations() == ["steps: 11 → 12"], "compared with the newest"
    put("base/steps", 10)(here)
    assert f"{first.name}, registration 1 of 2 under this name" in str(here.registration())


def test_a_variant_can_be_registered_itself(here):
    nlgraft.register(here.study())
    variant = nlgraft.register(here.study("@tiny"))
    standing = here.registration("@tiny")
    assert standing.is_as_registered
    assert standing.registration == variant
    assert here.registration().registration.variant == "guesses"
    assert here.deviations("steps=3") == ["steps: 10 → 3"], "compared with the study itself"


def test_a_study_that_nobody_registered_says_nothing(here):
    result = here.run()
    assert result.registration is None
    assert "registration" not in result.render("md").lower()
    assert result.to_json()["registration"] is None


def test_a_renamed_study_is_told_of_the_registration_of_its_cells(here):
    found = nlgraft.register(here.study())
    here.document["name"] = "anew"
    standing = here.registration()
    assert not standing.is_as_registered
    assert str(standing) == f"Not registered; 4 of its cells are registered as study guesses ({found.name})."


def test_what_had_been_seen_is_said(here):
    here.run(skip=[("arm=avg", 3)])
    registered = nlgraft.register(here.study())
    assert (registered.num_finished, registered.num_planned) == (11, 12)
    standing = here.registration()
    assert "before any analysis of its test segments in this store; 11 of its 12 replicates" in str(standing)


@pytest.mark.parametrize("name", ["guesses", "another"])
def test_analyses_before_the_registration_are_counted(here, name):
    """Of the same study, or of any other one on the same test set."""
    here.document["name"] = name
    here.run().render("md")
    here.document["name"] = "guesses"
    if name == "another":
        here.document["base"]["steps"] = 12
    registered = nlgraft.register(here.study())
    assert registered.analyses == (1,)
    for _ in range(2):  # what is shown afterwards does not count
        here.run().render("md")
        assert "after 1 analysis of its test segments" in str(here.registration())
    put("seeds", [1, 2, 3, 4])(here)
    here.run().render("md")
    assert nlgraft.register(here.study()).analyses == ((1, 2) if name == "guesses" else (1, 2, 3))


def test_cells_left_out_by_only_and_failed_seeds_are_shown(here):
    put("seeds", [1, 2, 13])(here)
    nlgraft.register(here.study())
    assert here.deviations() == [], "nothing has run yet"
    here.run(skip=["arm=att", ("arm=avg", 2)])
    found = here.deviations()
    assert "trials of arm=att: 3 seeds → not run" in found
    assert "seed 2 of arm=avg: to be finished → not run" in found
    assert any("seed 13 of arm=avg: to be finished → failed: " in one and "no luck" in one for one in found)
    assert len(found) == 5


def test_seeds_that_finished_beyond_the_registered_ones_are_shown_for_ever(here):
    nlgraft.register(here.study())
    put("seeds", [1, 2, 3, 4, 5])(here)
    here.run().render("md")
    assert here.deviations() == ["seeds: 1, 2, 3 → 1, 2, 3, 4, 5 (4, 5 added)"]
    put("seeds", [1, 2, 3])(here)
    found = here.deviations()
    assert len(found) == 4
    assert "seeds 4, 5 of arm=avg: not registered → finished, shown, and left out" in found


def test_planned_looks_that_stop_a_cell_are_as_registered(here):
    put("sequential", {"looks": [3, 4]})(here)
    put("seeds", [1, 2, 3, 4])(here)
    nlgraft.register(here.study())
    put("seeds", [1, 2, 4, 3])(here)
    assert here.deviations() == ["seeds: 1, 2, 3, 4 → 1, 2, 4, 3 (another order, in which looks take them)"]
    put("seeds", [1, 2, 3, 4])(here)
    result = here.run(skip=[("arm=att", 4), ("baseline", 4), ("arm=avg", 4), ("without schooling", 4)])
    stopped = [label for label, stop in result.stops.items() if stop.num_seeds == 3]
    assert stopped
    assert not [one for one in result.registration.deviations if any(label in one.what for label in stopped)]


def test_a_registration_needs_its_text(here):
    (here.root / "test.de").unlink()
    with pytest.raises(DataError, match=r"test\.de"):
        nlgraft.register(here.study())


def test_edited_text_that_cannot_be_read_stops_no_report(finished, monkeypatch):
    def refuse(_):
        raise DataError("the hub is away")

    monkeypatch.setattr(frozen, "load_corpus", refuse)
    assert finished.registration().is_as_registered, "the registered text need not be read again"
    put("data/limits", {"train": 20})(finished)
    assert finished.deviations() == ["text: readable → cannot be read: the hub is away"]


def test_reports_say_as_registered(finished):
    result = nlgraft.load(finished.study())
    name = result.registration.registration.name
    expected = f"As registered ({name}), before any analysis of its test segments in this store."
    for kind in ("md", "html", "latex"):
        shown = result.render(kind)
        assert expected in shown, kind
        assert "eviations" not in shown
    document = json.loads(result.render("json"))["registration"]
    assert document["is_as_registered"]
    assert document["text"] == expected
    assert len(document["digest"]) == 64


def test_reports_list_every_deviation(finished):
    put("base/steps", 11)(finished)
    put("analysis/alpha", 0.1)(finished)
    result = nlgraft.load(finished.study())
    assert "2 deviations" in str(result.registration)
    for kind in ("md", "html", "latex"):
        shown = result.render(kind)
        assert "with 2 deviations" in shown
        assert "eviations from the registration" in shown
        assert "steps" in shown
        assert "analysis.alpha" in shown
    assert result.to_json()["registration"]["deviations"] == [
        {"what": "analysis.alpha", "registered": "0.05", "now": "0.1"},
        {"what": "steps", "registered": "10", "now": "11"},
    ]


def test_the_ledger_says_how_an_analysis_stood_to_the_registration(here):
    here.run().render("md")
    digest = nlgraft.register(here.study()).digest[:12]
    here.run().render("md")
    put("seeds", [1, 2, 3, 4])(here)
    here.run().render("md")
    study = str(here.root / "guesses.yaml")
    store = ["--storage", str(here.root / "store")]
    listed = CliRunner(env={"COLUMNS": "300"}).invoke(main, ["ledger", study, *store])
    rows = [line for line in listed.output.splitlines() if line[:1].isdigit()]
    assert {row.split()[0] for row in rows} == {"1", "2"}, (
        "the same analysis shown again is the one before the registration"
    )
    assert f"1 deviation from {digest}" in listed.output
    entries = api.ledger(study, str(here.root / "store"))
    assert [entries[n].registration for n in (1, 2)] == ["", digest]
    assert entries[2].deviations == ("seeds: 1, 2, 3 → 1, 2, 3, 4 (4 added)",)


def test_a_damaged_registration_is_named(here):
    nlgraft.register(here.study())
    put("base/steps", 11)(here)
    nlgraft.register(here.study())
    entry = next((here.root / "store" / "registrations").rglob("00000001.json"))
    entry.chmod(0o600)
    entry.write_text("{}")
    standing = here.registration()
    assert standing.is_as_registered
    assert "00000001.json: cannot be read" in str(standing)


def test_the_command_registers_once_and_shows(here):
    study, store = str(here.root / "guesses.yaml"), ["--storage", str(here.root / "store")]
    here.study()
    call = CliRunner(env={"COLUMNS": "200"}).invoke
    nothing = call(main, ["register", study, "--show", *store])
    assert nothing.exit_code == 0
    assert "guesses is not registered" in nothing.output
    first = json.loads(call(main, ["register", study, "--json", *store]).output)
    assert json.loads(call(main, ["register", study, "--json", *store]).output) == first
    shown = call(main, ["register", study, *store]).output
    assert first["digest"] in shown
    assert first["time"] in shown
    assert "no analyses of its test segments; 0 of 12 replicates finished" in shown
    call(main, ["register", study, "steps=20", *store])
    listed = json.loads(call(main, ["register", study, "--show", "--json", *store]).output)
    assert [one["variant"].partition("@")[0] for one in listed] == ["guesses", "guesses"]
    assert [one["content"]["cells"][0]["settings"]["steps"] for one in listed] == [10, 20]


def test_results_without_a_store_have_no_registration(finished):
    assert replace(nlgraft.load(finished.study()), store=None).registration is None
