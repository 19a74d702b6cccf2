"""Edits of a registered study after the fact: each is shown by name, and nothing else."""

import sys
from dataclasses import replace

import pytest

import nlgraft
from nlgraft.analysis.data import registration
from nlgraft.analysis.policy.registered import deviations_of
from nlgraft.study.data.study import Analysis
from nlgraft.study.reading.system_import import load_system
from tests.unit.analysis.registered import STUDY, SYSTEM, Workplace, put


def text(name, change):
    return lambda place: place.write(name, change(place.lines(name)))


def both(*edits):
    return lambda place: [edit(place) for edit in edits]


LEVELS = "factors/arm/levels"
RENAMED = {"plain": {"arm": "plain"}, "mean": {"arm": "avg"}, "att": {"arm": "att"}}
EDITS = {
    "seed added": (put("seeds", [1, 2, 3, 4]), "seeds: 1, 2, 3 → 1, 2, 3, 4"),
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
        "cell arm=mean: not registered → added",
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
    "family": (put("analysis/family", "claims"), "analysis.family: all_cells → claims"),
    "margin": (
        put("analysis/margin", {"test/bleu": 0.5}),
        "analysis.margin.test/bleu: none → 0.5",
    ),
    "looks planned": (
        both(put("sequential", {"looks": [3, 4]}), put("seeds", [1, 2, 3, 4])),
        "sequential.looks: none → [3, 4]",
    ),
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
        "claim “baseline better than arm=avg on test/bleu”: not registered → added",
    ),
    "claim's margin": (put("claims/1/margin", 2.0), "on test/bleu”, margin: 1.0 → 2.0"),
    "claim's metric": (
        put("claims/0", {"better": "avg", "worse": "plain", "metric": "test/chrf", "source": "Table 1"}),
        "claim “arm=avg better than baseline on test/chrf”: not registered → added",
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
    "arm renamed": 5,  # the cell under its old name, and two claims under either
    "component dropped": 1,  # the baseline has no such component
    "looks planned": 2,  # their kind, and a seed more
    "baseline": 7,  # cells and claims are named after it, and the arm of the cell without the component
    "claim's figure": 1,  # two claims have it
    "limit of the data": 2,  # the lines of either side
    "claim reversed": 1,  # the claim that was registered
    "claim's metric": 1,  # likewise
    "search": 8,  # its space and sampler
    "test line dropped": 1,  # on the other side, too
}
"""Number of further lines that an edit is shown by; none for most."""


@pytest.mark.parametrize("name", EDITS)
def test_an_edit_after_the_fact_is_shown_by_name_and_nothing_else(finished, name):
    edit, expected = EDITS[name]
    edit(finished)
    deviations = [text for text in finished.deviations() if not text.startswith(("trials of", "seed 4 of"))]
    assert [text for text in deviations if expected in text], deviations
    assert len(deviations) == 1 + FOLLOWS.get(name, 0), deviations


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
    here.register()
    here.put(path, value)
    assert here.deviations() == [expected]


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["steps=20"], "steps: 10 → 20"),
        (["@tiny"], "steps: 10 → 2"),
        (["analysis.alpha=0.1"], "analysis.alpha: 0.05 → 0.1"),
        (["seeds=[1, 2]"], "seeds: 1, 2, 3 → 1, 2"),
    ],
)
def test_a_variant_does_not_escape(finished, overrides, expected):
    standing = finished.registration(*overrides)
    assert expected in [deviation.text for deviation in standing.deviations]
    assert "Registered as guesses (" in str(standing)


def test_another_version_of_the_system_is_shown(finished, monkeypatch):
    monkeypatch.setattr(sys.modules[SYSTEM], "VERSION", 2)
    assert "stage train of the system: version 1 → version 2" in finished.deviations()


def test_another_meaning_of_a_metric_is_shown(finished, monkeypatch):
    system = load_system(SYSTEM)
    changed = {"test/bleu": replace(system.metrics["test/bleu"], unit="percent")}
    other = replace(system, metrics={**system.metrics, **changed})
    monkeypatch.setattr(registration, "system_of", lambda _: other)
    assert finished.deviations() == ["metric test/bleu: maximize, points → maximize, percent"]


def test_another_system_is_shown(finished, monkeypatch):
    monkeypatch.setitem(sys.modules, "other_system", sys.modules[SYSTEM])
    finished.document["system"] = "other_system"
    assert "system: registered_system → other_system" in finished.deviations()


def test_a_new_setting_of_the_analysis_is_compared_without_further_code(here, monkeypatch):
    """A field that is added, and is off, changes no digest; one that is on is a deviation."""
    here.register()
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
    here.put("analysis/margin", {"test/bleu": 0.5})
    here.register()
    here.put("analysis/margin", margin)
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
    standing = finished.registration(text=edited)
    assert standing.is_as_registered, standing.deviations
    assert standing.registration.digest == before.registration.digest


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
    deviations = finished.deviations()
    assert not [text for text in deviations if text.startswith("data.")], deviations
    assert [text for text in deviations if "what stage text_corpus reads" in text], (
        "yet the trials are others"
    )


def test_settings_that_nlgraft_has_no_more_are_no_deviation_at_what_takes_their_place(finished):
    now = finished.registration().registration.content

    def deviations(test):
        old = {"analysis.test": test, "analysis.correction": "holm"}
        return [each.text for each in deviations_of(replace(now, settings=now.settings | old), now)]

    assert deviations("paired_bootstrap") == []
    assert deviations("approximate_randomisation") == ["analysis.test: approximate_randomisation → none"]
