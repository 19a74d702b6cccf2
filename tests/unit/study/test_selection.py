"""Which proposals have ended, and which of them is replicated."""

import math
from dataclasses import replace

import pytest

from nlgraft.pipeline.trial import TrialRecord
from nlgraft.study.data.study import Objective
from nlgraft.study.planning.selection import Proposal, best_proposal


def proposal(number, value, state="finished"):
    record = TrialRecord(fingerprint=str(number), config={}, seed=1, state=state, metrics={"dev/loss": value})
    return Proposal(number, {}, 1, str(number), record)


@pytest.mark.parametrize(("direction", "best"), [("minimize", 2), ("maximize", 8)])
def test_the_best_proposal_follows_the_direction_and_the_first_wins_a_tie(direction, best):
    objective = Objective.model_validate({"metric": "dev/loss", "direction": direction})
    proposals = [
        proposal(3, 1.0),
        proposal(2, 1.0),
        proposal(1, 9.0, "stopped"),
        proposal(0, 3.0),
        proposal(8, 4.0),
        proposal(9, 4.0),
        proposal(4, math.nan),
        proposal(5, 0.0, "failed"),
        proposal(6, 0.0, "killed"),
        replace(proposal(7, 0.0), record=None),
    ]
    chosen = best_proposal(objective, proposals)
    assert chosen.number == best


def test_a_killed_proposal_has_not_ended():
    states = ["finished", "failed", "stopped", "killed"]
    assert [proposal(0, 1.0, state).has_ended for state in states] == [True, True, True, False]
    assert not replace(proposal(0, 1.0), record=None).has_ended
