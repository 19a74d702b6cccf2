"""A system whose trials take no time: to watch the machinery, not the modelling."""

import json
import math
import os
import signal
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from nlgraft.basics.errors import HostFault
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.pipeline.stage import Stage, StageGraph, TrialStopped
from nlgraft.study.data.system import Metric

DESCRIPTION = "A toy"
PAPER = "none"
METRICS = {
    "dev/score": Metric(direction="maximize", unit="points", split="dev"),
    "test/score": Metric(direction="maximize", unit="points", split="test"),
}


class Config(StrictConfig):
    """Settings of the toy."""

    data: Mapping[str, Any] = {}
    behaviour: Literal["good", "nan", "raise", "exit", "full"] = "good"
    upstream: int = 0
    gain: float = 0.0
    noise: float = 0.0
    steps: int = 3
    pause_s: float = 0.0
    upstream_pause_s: float = 0.0
    hold: str = ""
    """A file; no training takes a step while it exists."""
    num_losses: int = 0
    """How often the last worker of a group is killed while the others wait for it; counted in ``log``."""
    num_bytes: int = 0
    """Bytes that the training leaves in the store."""
    log: str = ""


def stage_graph(config, *, seed, splits):
    """corpus -> upstream -> training -> scores."""
    upstream = Stage(
        name="upstream",
        run=f"{__name__}:run_upstream",
        config={
            "upstream": config.upstream,
            "log": config.log,
            "pause_s": config.upstream_pause_s,
        },
    )
    training = Stage(
        name="training",
        run=f"{__name__}:run_training",
        config=config.model_dump(exclude={"data", "upstream", "upstream_pause_s"}),
        inputs={"upstream": upstream},
        seed=seed,
        workers="train",
    )
    scores = Stage(
        name="scores",
        run=f"{__name__}:run_scores",
        config={"splits": list(splits)},
        inputs={"training": training},
    )
    return StageGraph(scores)


def _note(context, first_step=1):
    if context.rank == 0:
        _log(context, context.stage.name, first_step)


def _log(context, event, step=1):
    path = context.config["log"]
    if path:
        with Path(path).open("a") as file:
            file.write(f"{event} {context.stage.fingerprint} {os.getpid()} {step}\n")


def run_upstream(context):
    """Wait a little and leave a file."""
    _note(context)
    end_s = time.monotonic() + context.config["pause_s"]
    while time.monotonic() < end_s:
        time.sleep(0.01)
        if reason := context.should_stop():
            raise TrialStopped(reason)
    (context.directory / "upstream.json").write_text(json.dumps(context.config["upstream"]))


def run_training(context):
    """Report a rising score; behave as the config says."""
    config = context.config
    latest = context.checkpoints.latest()
    first = 1 + (latest[0] if latest else 0)
    _note(context, first)
    if context.rank == 0:
        _log(context, f"of-{context.world_size}", first)
    score = math.nan
    for step in range(first, config["steps"] + 1):
        _pause(context, config["pause_s"], config["hold"])
        is_last = context.rank == context.world_size - 1
        if is_last and step == 3:
            _be_lost(context)
        if config["behaviour"] == "raise" and step == 2 and is_last:
            raise ValueError("this arm cannot work")
        if config["behaviour"] == "full" and step > 2:
            _fill_first_node(context)
        if config["behaviour"] == "exit" and step == 2:
            os._exit(17)
        score = math.nan if config["behaviour"] == "nan" else 10 * config["gain"] + step + context.seed / 10
        if config["behaviour"] == "nan":
            raise FloatingPointError(f"loss is nan at step {step}")
        context.report(step, {"dev/score": score, "train/loss": _mean_over_workers(context, 1 / step)})
        if reason := _asked_to_stop(context):
            if context.world_size > 1:
                context.checkpoints.save(step, _write_state)
                _log(context, "stopped", step)
            raise TrialStopped(reason)
        context.checkpoints.save(step, _write_state)
    (context.directory / "weights").write_bytes(bytes(config["num_bytes"]))
    noise = config["noise"] * (7 * context.seed % 5)
    score = 10 * config["gain"] + config["steps"] + context.seed / 10 + noise
    (context.directory / "score.json").write_text(json.dumps(score))
    (context.directory / "curves.json").write_text(
        json.dumps({"dev/score": [[config["steps"], score, 1000]]})
    )


def _write_state(directory):
    (directory / "state.json").write_text("{}")


def _asked_to_stop(context):
    """Ask as the training loop does: the first worker for all, or some would wait for the others for ever."""
    if context.world_size == 1:
        return context.should_stop()
    import torch

    from nlgraft.training.step import Workers

    group = Workers(context.rank, context.world_size, torch.device("cpu"))
    return group.compute_on_first(context.should_stop)


def _pause(context, pause_s, hold):
    """Wait as a training does: one that is alone asks many times between two reports whether to stop."""
    end_s = time.monotonic() + pause_s
    while time.monotonic() < end_s or (hold and Path(hold).exists()):
        time.sleep(0.01)
        if context.world_size == 1 and (reason := context.should_stop()):
            raise TrialStopped(reason)


def _be_lost(context):
    """Die as a worker dies whose node is taken away, if that has not happened often enough."""
    num_losses = context.config["num_losses"]
    if num_losses and Path(context.config["log"]).read_text().count("lost ") < num_losses:
        _log(context, "lost")
        os.kill(os.getpid(), signal.SIGKILL)


def _fill_first_node(context):
    """Find the disk full on the node that comes here first."""
    import ray

    mark, node = Path(f"{context.config['log']}.full"), ray.get_runtime_context().get_node_id()
    with suppress(FileExistsError), mark.open("x") as file:
        file.write(node)
    if mark.read_text() == node:
        raise HostFault(f"host {node} cannot use /cache: No space left on device")


def _mean_over_workers(context, value):
    """Wait for every worker, as a training does in each step."""
    if context.world_size == 1:
        return value
    import torch
    import torch.distributed as dist

    total = torch.tensor(value, dtype=torch.float64)
    dist.all_reduce(total)
    return total.item() / context.world_size


def run_scores(context):
    """Score the splits."""
    score = json.loads((context.inputs["training"] / "score.json").read_text())
    values = {
        f"{split}/score": {"value": score + (0.5 if split == "test" else 0.0), "n": 10, "signature": "toy"}
        for split in context.config["splits"]
    }
    (context.directory / "metrics.json").write_text(json.dumps(values))
