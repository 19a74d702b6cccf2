"""An agent that edits a script: 100 proposals of which five help, by the rule of ``nlgraft try`` and others.

``python -m benchmarks.agent_loop`` edits ``agent_script/train.py``, a small language model, line by line.
What does not help changes nothing but which random numbers are drawn. With ``--whole N`` as many
proposals run through `nlgraft.propose`, in this process and without Ray, and must be decided as by the
rule alone.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import chdir
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from types import CodeType
from typing import Any
from unittest import mock

import numpy as np

from nlgraft import api
from nlgraft.analysis.data.stream import Proposal, Step
from nlgraft.analysis.policy.proposals import FRESH_SEEDS, LOOKS, decide, noise_of, stream_level
from nlgraft.execution.events import Driver
from nlgraft.execution.sweep import SweepOutcome
from nlgraft.execution.trial_queue import TrialQueue
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.trial import run_trial
from nlgraft.runs.proposing import seeds_of
from nlgraft.runs.run import Run
from nlgraft.study.public import Study

SCRIPT = Path(__file__).parent / "agent_script" / "train.py"
TEXT = Path(__file__).parents[1] / "search_spaces" / "command" / "nanogpt" / "text.txt"
COMMAND = "python train.py {data.text} {seed}"
HELPFUL = ("learning_rate = 0.4", "width = 48", "context = 3", "batch = 32", "steps = 180")
NUM = 100
NUM_JUDGED = 30
"""Seeds, used for nothing else, on which the final scripts are measured."""
ALPHA = 0.05


@dataclass
class Outcome:
    """What a rule made of a stream.

    Attributes:
        source: The script in the end.
        kept: Edits that were kept.
        num_runs: Runs of the script.
        decisions: Decision by proposal, of rules that have one.
    """

    source: str
    kept: list[str] = field(default_factory=list)
    num_runs: int = 0
    decisions: list[str] = field(default_factory=list)


def edited(source: str, edit: str) -> str:
    """Put a line ``name = value`` in place of the one of that name."""
    name = edit.partition(" =")[0]
    changed, num = re.subn(rf"(?m)^{name} = .*$", edit, source)
    assert num == 1, edit
    return changed


def proposals(number: int) -> list[str]:
    """The edits of a stream, in random order."""
    edits = [*HELPFUL, *(f"salt = {place}" for place in range(1, NUM - len(HELPFUL) + 1))]
    return list(np.random.default_rng(number).permutation(edits))


@lru_cache(maxsize=512)
def _compiled(source: str) -> CodeType:
    return compile(source, str(SCRIPT), "exec")


@lru_cache(maxsize=100_000)
def loss(source: str, seed: int) -> float:
    """Run a script in this process; return its loss on held-out text."""
    values: dict[str, Any] = {"__name__": "__main__"}
    with tempfile.TemporaryDirectory() as folder, chdir(folder):
        with mock.patch.object(sys, "argv", ["train.py", str(TEXT), str(seed)]):
            exec(_compiled(source), values)
        return json.loads(Path("result.json").read_text())["dev/loss"]


def keep_if_better(num_seeds: int) -> Callable[[Sequence[str]], Outcome]:
    """Keep an edit if the mean loss over the first seeds is lower than that of what is kept."""

    def stream(edits: Sequence[str]) -> Outcome:
        def mean(source: str) -> float:
            outcome.num_runs += num_seeds
            return float(np.mean([loss(source, seed) for seed in range(num_seeds)]))

        outcome = Outcome(SCRIPT.read_text())
        best = mean(outcome.source)
        for edit in edits:
            source = edited(outcome.source, edit)
            if (value := mean(source)) < best:
                outcome.source, best = source, value
                outcome.kept.append(edit)
        return outcome

    return stream


def keep_by_stream(edits: Sequence[str]) -> Outcome:
    """Decide by the rule of ``nlgraft try``, without its store."""
    outcome, before, block = Outcome(SCRIPT.read_text()), list[Proposal](), 0
    runs: set[tuple[str, int]] = set()

    def gain(source: str, seed: int) -> float:
        runs.update([(source, seed), (outcome.source, seed)])
        return loss(outcome.source, seed) - loss(source, seed)

    for number, edit in enumerate(edits, 1):
        source = edited(outcome.source, edit)
        level, prior = stream_level(number - 1, len(outcome.kept), ALPHA), noise_of(before)
        gains: list[float] = []
        decision = "MORE"
        while decision == "MORE":
            look = next(look for look in LOOKS if look > len(gains))
            gains += [gain(source, seed) for seed in seeds_of(block, look)[len(gains) :]]
            decision = decide(gains, level, prior)
        step = Step(kind="decided", stream="", gains=tuple(gains))
        before.append(Proposal(step, step))
        outcome.decisions.append(decision)
        if decision == "KEEP":
            # Measured again beside what it replaces, on fresh seeds.
            for seed in seeds_of(number, FRESH_SEEDS):
                gain(source, seed)
            outcome.source, block = source, number
            outcome.kept.append(edit)
    outcome.num_runs = len(runs)
    return outcome


def keep_by_propose(edits: Sequence[str]) -> Iterator[str]:
    """Decide by `nlgraft.propose`, an edited copy of the script each; yield the decisions."""
    with tempfile.TemporaryDirectory() as folder, mock.patch.object(Run, "sweep", _sweep):
        place = Path(folder)
        for name in ("script", "draft"):
            (place / name).mkdir()
        source = SCRIPT.read_text()
        (place / "script" / "train.py").write_text(source)
        document = {
            "name": "agent",
            "system": "trainables.command",
            "data": {"directory": str(place / "script"), "files": {"text": str(TEXT)}},
            "base": {
                "stages": {"train": {"command": COMMAND, "metrics": ["result.json"]}},
                "metrics": {"dev/loss": {"direction": "minimize"}},
            },
            "objective": {"metric": "dev/loss", "direction": "minimize"},
            "seeds": [1, 2, 3],
            "storage": {"path": str(place / "store")},
        }
        study = Study.from_dict(document)
        for edit in edits:
            (place / "draft" / "train.py").write_text(edited(source, edit))
            answer = api.propose(study, [f"data.directory={place / 'draft'}"])
            if answer.decision == "KEEP":
                source = edited(source, edit)
            yield answer.decision


def _sweep(run: Run, grant: Any, note: Any) -> SweepOutcome:
    """Do what a sweep does, one trial after another in this process."""
    driver = Driver(lambda _: None, grant=grant, splits=("dev",))
    queue = TrialQueue(run.study, run.store, list(run._cells), lambda _: None, driver, 1)
    queue.open()
    while not queue.is_done and (trial := queue.take()) is not None:
        settings: dict[str, Any] = {"reporter": NullReporter(), "config": dict(trial.config)}
        queue.end(trial, run_trial(trial.graph, run.store, is_waiting=True, **settings))
    note()
    return SweepOutcome(queue.num_run, queue.num_reused, queue.num_failed, queue.stop_reason)


def judged(source: str) -> float:
    """Mean loss on seeds that no rule uses."""
    return float(np.mean([loss(source, seed) for seed in range(10_000, 10_000 + NUM_JUDGED)]))


def report(num_streams: int) -> Iterator[str]:
    """Run streams in different orders under each rule; yield a Markdown table."""
    source = whole = SCRIPT.read_text()
    for edit in HELPFUL:
        seeds = range(10_000, 10_000 + NUM_JUDGED)
        gains = [loss(source, seed) - loss(edited(source, edit), seed) for seed in seeds]
        yield f"{edit}: gain {np.mean(gains):.3f}, {np.mean(gains) / np.std(gains, ddof=1):.1f} deviations"
        whole = edited(whole, edit)
    rules = {
        "better with one seed": keep_if_better(1),
        "better on the mean of 3 seeds": keep_if_better(3),
        "better on the mean of 6 seeds": keep_if_better(6),
        "`nlgraft try`": keep_by_stream,
    }
    yield f"{num_streams} orders; loss {judged(source):.3f}, with all that helps {judged(whole):.3f}"
    yield ""
    yield "| kept if | helpful, of 5 | false, of 95 | runs | loss in the end |"
    yield "|---|---|---|---|---|"
    for name, rule in rules.items():
        outcomes = [rule(proposals(number)) for number in range(num_streams)]
        helpful = [sum(edit in HELPFUL for edit in outcome.kept) for outcome in outcomes]
        false = [len(outcome.kept) - num for outcome, num in zip(outcomes, helpful, strict=True)]
        runs = np.mean([outcome.num_runs for outcome in outcomes])
        losses = np.mean([judged(outcome.source) for outcome in outcomes])
        yield f"| {name} | {np.mean(helpful):.1f} | {np.mean(false):.1f} | {runs:.0f} | {losses:.3f} |"


def main() -> None:
    """Print the table, or compare a whole stream with the rule alone."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.agent_loop", description=__doc__)
    parser.add_argument("--num", type=int, default=10, help="streams of each rule")
    parser.add_argument("--whole", type=int, help="so many proposals through nlgraft.propose")
    options = parser.parse_args()
    if options.whole is None:
        for line in report(options.num):
            print(line, flush=True)
        return
    edits = proposals(3)[: options.whole]  # the fourth of them helps
    expected = keep_by_stream(edits)
    for edit, decision, same in zip(edits, keep_by_propose(edits), expected.decisions, strict=True):
        print(edit, decision, flush=True)
        assert decision == same, (edit, decision, same)


if __name__ == "__main__":
    main()
