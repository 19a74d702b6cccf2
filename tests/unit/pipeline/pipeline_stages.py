"""Stages small enough to follow by hand; imported by name, as real ones are."""

import json
import os
import sys
import time
from pathlib import Path

from nlgraft.pipeline.stage import Stage, StageGraph, TrialStopped

HERE = "pipeline_stages"


def number(value, **options):
    return Stage(name="number", run=f"{HERE}:run_number", config={"value": value}, **options)


def total(*values):
    """A graph whose result is the sum of its inputs."""
    inputs = {f"number{position}": number(value) for position, value in enumerate(values)}
    return StageGraph(Stage(name="total", run=f"{HERE}:run_total", inputs=inputs, seed=7))


def alone(function, **config):
    """A graph of one stage that behaves in one way."""
    return StageGraph(Stage(name=function, run=f"{HERE}:run_{function}", config=config))


def run_number(context):
    (context.directory / "number.txt").write_text(str(context.config["value"]))


def run_total(context):
    value = sum(int((path / "number.txt").read_text()) for path in context.inputs.values())
    _score(context, "test/total", value)


def run_slow(context):
    """Note who computes, take some time, leave a result."""
    with Path(context.config["log"]).open("a") as log:
        log.write(f"{os.getpid()}\n")
    time.sleep(context.config["pause_s"])
    _score(context, "test/slow", 1)


def run_gated(context):
    """Note who computes, wait until the gate is there, leave a result."""
    log = Path(context.config["log"])
    with log.open("a") as lines:
        lines.write(f"{os.getpid()}\n")
    while not log.with_name("gate").exists():
        time.sleep(0.02)
    _score(context, "test/gated", 1)


def run_raising(context):
    context.report(1, {"train/loss": 2.5})
    raise ValueError("the reason\nand a second line")


def run_leaving(context):
    sys.exit(3)


def run_interrupted(context):
    raise KeyboardInterrupt


def run_dying(context):
    context.checkpoints.save(1, lambda path: (path / "state.json").write_text("1"))
    os._exit(17)


def run_not_finite(context):
    (context.directory / "metrics.json").write_text('{"test/bleu": {"value": NaN}}')


def run_worded(context):
    (context.directory / "metrics.json").write_text('{"test/bleu": {"value": "high"}}')


def run_silent(context):
    (context.directory / "note.txt").write_text("no metric here")


def run_stepping(context):
    """Take three steps, one checkpoint each, ask after each; go on from the last checkpoint."""
    latest = context.checkpoints.latest()
    for step in range(latest[0] + 1 if latest else 1, 4):
        context.report(step, {"train/loss": 1 / step})
        context.checkpoints.save(step, lambda path: (path / "state.json").write_text("{}"))
        if reason := context.should_stop():
            raise TrialStopped(reason)
    _score(context, "test/first_step", latest[0] + 1 if latest else 1)
    (context.directory / "curves.json").write_text('{"train/loss": [[3, 0.25, 1000]]}')


def run_ranked(context):
    _score(context, "test/rank", context.rank)


def _score(context, name, value):
    document = {name: {"value": value, "signature": "by hand", "n": 1}}
    (context.directory / "metrics.json").write_text(json.dumps(document))
