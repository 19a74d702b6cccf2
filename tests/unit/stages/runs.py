"""Runs of stage graphs through the pipeline, for tests of stages."""

from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.trial import RecordingReporter, StageRunner, run_trial

TRAIN = {"max_steps": 6, "batch_tokens": 300, "warmup_steps": 1, "peak_lr": 0.01, "eval_every_steps": 3}


class StopsAt(NullReporter):
    """Stops a trial once a stage has reported a step."""

    def __init__(self, stage, step):
        self.stage, self.step, self.is_due = stage, step, False

    def report(self, stage, step, metrics):
        self.is_due |= stage == self.stage and step >= self.step

    def should_stop(self):
        return "enough" if self.is_due else None


def run(store, graph, reporter=None):
    return run_trial(graph, store, reporter=reporter or NullReporter(), config={}, is_waiting=True)


def finish(store, graph, config=None, metrics=None):
    """Run a trial to its end; return its record, and the function that finds its artifacts by name."""
    document = {} if config is None else config.model_dump(mode="json")
    record = run_trial(graph, store, reporter=NullReporter(), config=document, is_waiting=True)
    assert record.state == "finished", record.reason
    assert metrics is None or set(record.metrics) <= set(metrics)
    return record, lambda name: store.fetch(graph.find(name))


def artifact(store, graph, name):
    return store.fetch(graph.find(name))


def decisions(graph, record):
    return {stage.name: entry["decision"] for stage, entry in zip(graph.stages, record.stages, strict=True)}


def made(store, stage):
    """Make a stage that gives no result of a trial, and what it reads; gives its artifact."""
    reporter = RecordingReporter(NullReporter())
    StageRunner(store, reporter, is_waiting=True, distribute=None, device="cpu").ensure(stage)
    return store.fetch(stage)
