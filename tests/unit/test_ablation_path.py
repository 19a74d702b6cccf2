"""From default to winner: which of a tuned config's changes made the gain."""

import pytest

import nlgraft
from nlgraft.basics.errors import NlgraftError
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.runs.ablation_path import change_blocks
from nlgraft.runs.run import Run
from nlgraft.study.data.design import cells
from nlgraft.study.data.space import CategoricalDomain
from nlgraft.study.planning.selection import Proposal, save_proposal, search_seed
from nlgraft.study.public import Study
from nlgraft.study.reading.resolving import resolve_cell
from tests.commands import json_of, write_study
from tests.commands import nlgraft as command
from tests.unit.test_proposing import sweep_here

SCRIPT = """\
awk -v lr=$1 -v optimizer=$2 -v width=$3 -v seed=$4 -v momentum=$5 'BEGIN {
  score = seed
  if (lr == 0.1) score += 3 + 0.2 * (seed == 2)
  if (optimizer == "sgd") score += 10 * momentum - 4
  if (width == 2) score += optimizer == "sgd" ? -1 : 2
  print "{\\"score\\": " score "}"
}' > out.json
"""
"""A rate gains 3, with one seed 3.2; sgd gains by its momentum; a width gains 2, but not with sgd."""

WINNER = {"settings.lr": 0.1, "settings.optimizer": "sgd", "settings.momentum": 0.9, "settings.width": 2}
IF_SGD = {"settings.optimizer": "sgd"}


def domain(low, high, kind="float", **more):
    return {"type": kind, "low": low, "high": high, **more}


@pytest.fixture
def searched(tmp_path, monkeypatch):
    """Build a study whose search has taken WINNER, and its path; `when` says where momentum is searched."""
    monkeypatch.setattr(Run, "sweep", sweep_here)
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "run.sh").write_text(SCRIPT)

    def build(winner=None, when=IF_SGD):
        declare = {
            "lr": {"type": "float", "default": 0.5},
            "optimizer": {"type": "text", "default": "adam", "choices": ["adam", "sgd"]},
            "momentum": {"type": "float", "default": 0.5, "when": {"optimizer": ["sgd"]}},
            "width": {"type": "int", "default": 1},
        }
        commanded = "sh run.sh {lr} {optimizer} {width} {seed} {momentum}"
        scored = {"direction": "maximize", "key": "score"}
        document = {
            "name": "tuned",
            "system": "trainables.command",
            "data": {"directory": "code"},
            "base": {
                "declare": declare,
                "stages": {"train": {"command": commanded, "metrics": ["out.json"]}},
                "metrics": {"dev/score": scored, "test/score": scored},
            },
            "search": {
                "trials": 1,
                "sampler": {"name": "random"},
                "space": {
                    "settings.momentum": domain(0.0, 1.0, when=when),
                    "settings.lr": domain(0.01, 1.0),
                    "settings.optimizer": {"type": "categorical", "choices": ["adam", "sgd"]},
                    "settings.width": domain(1, 3, "int"),
                },
            },
            "objective": {"metric": "dev/score", "direction": "maximize"},
            "seeds": [1, 2],
            "storage": {"path": str(tmp_path / "store")},
        }
        path = write_study(tmp_path / "study.json", document)
        study, store = Study.from_yaml(path), ArtifactStore.open(tmp_path / "store")
        (cell,), seed = cells(study), search_seed(study)
        params = WINNER if winner is None else winner
        graph = resolve_cell(study, cell, params).graph(seed, ("dev",))
        run_trial(graph, store, reporter=NullReporter(), config={}, is_waiting=True)
        save_proposal(study, cell, store, Proposal(0, params, seed, graph.fingerprint))
        return path, study

    return build


def test_each_step_takes_what_gains_most_and_what_exists_with_a_change_moves_with_it(searched, tmp_path):
    path, study = searched()
    before = command("path", path)
    assert "4 configs" in before.stdout
    assert "--run" in before.stderr
    outcome = json_of("path", path, "--run", "--json")
    assert (outcome["num_waiting"], outcome["remaining"]) == (0, {})
    steps = outcome["steps"]
    assert [{name.removeprefix("settings.") for name in step["changes"]} for step in steps] == [
        {"optimizer", "momentum"},  # 5 = 10 x .9 - 4, of 3.1 and 2
        {"lr"},
        {"width"},  # after sgd a loss, though by itself a gain of 2
    ]
    assert [step["gain"]["mean"] for step in steps] == pytest.approx([5, 3.1, -1])
    assert [step["num_candidates"] for step in steps] == [3, 2, 1]
    assert outcome["whole"]["mean"] == pytest.approx(7.1)
    # Of 3 and 3.2 the standard error is .1; Student's t of one degree of freedom is 12.706 at .975.
    assert steps[1]["gain"]["interval"] == pytest.approx([3.1 - 1.2706, 3.1 + 1.2706], abs=1e-4)
    assert steps[1]["p"] == pytest.approx(0.02053, abs=1e-5)
    out = tmp_path / "path.yaml"
    shown = command("path", path, "--out", out).stdout
    declared = Study.from_yaml(out)
    assert (declared.seeds, declared.search) == ([3, 4], None), "seeds that chose nothing"
    assert [cell.label for cell in cells(declared)] == ["baseline", "proposal=1", "proposal=2", "proposal=3"]
    assert "exploratory" in shown
    assert "+3.100" in shown
    entries = nlgraft.api.ledger(storage=study.storage.path).values()
    assert entries, "what was seen on dev is entered"
    assert {metric for entry in entries for metric in entry.metrics} == {"dev/score"}


def test_a_change_without_effect_waits_for_what_gives_it_one(searched):
    _, study = searched(when=None)
    outcome = nlgraft.api.ablation_path(study, is_running=True)
    names = [" ".join(step.changes).replace("settings.", "") for step in outcome.steps]
    # sgd with the default's momentum gains 1, and takes 3 of the width's gain; momentum then gains 4.
    assert names == ["lr", "width", "optimizer", "momentum"]
    assert [step.gain.mean for step in outcome.steps] == pytest.approx([3.1, 2, -2, 4])
    assert [step.num_candidates for step in outcome.steps] == [3, 2, 1, 1]
    assert outcome.whole.mean == pytest.approx(7.1)


def test_what_has_no_effect_is_no_step(searched):
    _, study = searched(
        {"settings.lr": 0.1, "settings.momentum": 0.9, "settings.optimizer": "adam"}, when=None
    )
    outcome = nlgraft.api.ablation_path(study, is_running=True)
    assert [dict(step.changes) for step in outcome.steps] == [{"settings.lr": 0.1}]
    assert outcome.remaining == {"settings.momentum": 0.9}


def test_without_changes_or_a_search_there_is_no_path(searched):
    path, study = searched({"settings.lr": 0.5, "settings.optimizer": "adam", "settings.width": 1})
    with pytest.raises(NlgraftError, match="chose the default"):
        nlgraft.api.ablation_path(study)
    with pytest.raises(NlgraftError, match="no search has ended"):
        nlgraft.api.ablation_path(Study.from_yaml(path, ["search.trials=2"]))


def test_a_setting_moves_with_every_change_that_it_needs():
    needs = {"a": None, "b": None, "c": {"a": 1, "b": 1}, "d": {"c": 2}, "e": {"f": 0}, "f": None}
    space = {
        path: CategoricalDomain(type="categorical", choices=[0, 1, 2], when=when)
        for path, when in needs.items()
    }
    params = {"a": 1, "b": 1, "c": 2, "d": 1, "e": 2, "f": 0}
    blocks = change_blocks(params, space, dict.fromkeys(needs, 0))
    assert blocks == [{"e": 2}, {"a": 1, "b": 1, "c": 2, "d": 1}], (
        "e exists in the default, too; f is as it was"
    )
