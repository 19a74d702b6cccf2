"""Progress of a running sweep or trial in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import TextIO

from rich.console import Console
from rich.live import Live
from rich.text import Text

from nlgraft.basics.wording import count, duration
from nlgraft.execution.events import (
    CellSearched,
    Event,
    LookTaken,
    Notice,
    Outlook,
    SweepStarted,
    TrialEnded,
    TrialProgress,
    TrialStarted,
)
from nlgraft.study.data.design import level_text

_LINE_PAUSE_S = 60.0
"""Seconds between two lines about running trials, if the output is not a terminal."""


def clock(seconds: float) -> str:
    """Format elapsed time: ``4:05``, ``1:04:05``."""
    minutes, seconds_left = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds_left:02d}" if hours else f"{minutes}:{seconds_left:02d}"


def step_text(
    stage: str,
    step: int,
    num_steps: int | None,
    metrics: Mapping[str, float],
) -> str:
    """Describe a report of a stage: ``training step 300 of 2000, dev/loss 3.21``, ``encoded line 20000``."""
    if num_steps is None and not metrics:
        return f"{stage} line {step}"
    of = "" if num_steps is None else f" of {num_steps}"
    values = [f"{name} {value:.4g}" for name, value in metrics.items()]
    return ", ".join([f"{stage} step {step}{of}", *values])


class Progress:
    """Display of a sweep's events: a live view on a terminal, plain lines elsewhere.

    Args:
        stream: Where it is written.
        metrics: Metrics shown for a trial that has ended, if it has them; those of test sets never.
        now: Monotonic seconds; replaced in tests.
    """

    def __init__(
        self,
        stream: TextIO,
        metrics: Sequence[str] = (),
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._console = Console(file=stream, highlight=False, soft_wrap=True)
        self._metrics = metrics
        self._now = now
        self._live: Live | None = None
        self._num_trials = 0
        self._num_ended = 0
        self._max_concurrent = 1
        self._started_s = now()
        self._preparing = "starting"
        self._running: dict[str, str] = {}
        self._outlook: Outlook | None = None
        self._outlook_s = 0.0
        self._reported_stages: set[str] = set()
        self._line_s = self._started_s
        self._is_gone = False

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            # A log file would get every redrawn frame.
            self._live = Live(
                console=self._console, get_renderable=self._picture, refresh_per_second=4, transient=True
            )
            self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with suppress(OSError):  # the terminal may have been closed
                self._live.stop()

    def show(self, event: Event) -> None:
        """Show one event; a terminal that was closed ends the display, not the sweep."""
        if self._is_gone:
            return
        try:
            self._show(event)
        except OSError:
            self._is_gone = True

    def _show(self, event: Event) -> None:
        match event:
            case SweepStarted():
                self._start(event)
            case TrialStarted():
                self._running[event.trial.key] = event.trial.name
                if self._live is None:
                    self._print(f"started   {event.trial.name}")
            case TrialProgress():
                text = step_text(event.stage, event.step, event.num_steps, event.metrics)
                self._running[event.trial.key] = f"{event.trial.name}: {text}"
                self._print_running(event.trial.key)
            case TrialEnded():
                self._end(event)
            case CellSearched(cell=cell, params=params):
                best = ", ".join(f"{path}={level_text(value)}" for path, value in (params or {}).items())
                self._print(f"searched  {cell.label}: {f'best: {best}' if best else 'no trial finished'}")
            case LookTaken(num_new=num_new):
                self._num_trials += num_new
                self._print(f"look      {num_new} more replicates for what is undecided")
            case Outlook():
                self._outlook, self._outlook_s = event, self._now()
                self._print_waiting()
            case Notice(message=message):
                self._preparing = message
                self._print(message)

    def _start(self, event: SweepStarted) -> None:
        # `try` sweeps twice where it keeps a proposal.
        self._num_trials, self._num_ended = event.num_trials, 0
        self._max_concurrent = event.max_concurrent
        resumed = ""
        if event.num_resumed:
            resumed = f"{count(event.num_resumed, 'stage')} begun and going on from a checkpoint, "
        self._print(
            f"{count(event.num_trials, 'trial')} planned, {event.num_reused} finished before, {resumed}"
            f"{event.max_concurrent} at once"
        )

    def _end(self, event: TrialEnded) -> None:
        self._running.pop(event.trial.key, None)
        record = event.record
        self._num_ended += record.state != "killed"  # the next run goes on with a killed trial
        if event.is_reused:
            return
        # Test scores come with the first analysis: nobody is to choose arms or seeds by them before.
        shown = [name for name in self._metrics if name in record.metrics and not name.startswith("test")]
        values = ", ".join(f"{name} {record.metrics[name]:.4g}" for name in shown)
        note = record.reason or values
        self._print(f"{record.state:9} {event.trial.name}: {note} [{self._tail()}]")

    def _print_running(self, key: str) -> None:
        """Print the progress of a running trial from time to time, for logs."""
        if self._live is None and self._now() - self._line_s >= _LINE_PAUSE_S:
            self._line_s = self._now()
            self._print(f"running   {self._running[key]} [{self._tail()}]")

    def _print_waiting(self) -> None:
        """Print for logs why trials wait; once for the same stages."""
        if self._outlook is None or self._outlook.num_running >= self._max_concurrent:
            return
        # Numbers change with every trial that ends; the stages say what is new.
        stages = set(self._outlook.held_back)
        if self._live is None and stages - self._reported_stages:
            self._print(f"waiting   {self._waiting()}")
        self._reported_stages = stages

    def _waiting(self) -> str:
        held_back = {} if self._outlook is None else self._outlook.held_back
        return ", ".join(
            f"{count(number, 'trial')} for {stage}, which is being computed"
            for stage, number in held_back.items()
        )

    def _tail(self) -> str:
        parts = [f"{self._num_ended} of {count(self._num_trials, 'trial')}"] if self._num_trials else []
        parts.append(f"{clock(self._now() - self._started_s)} so far")
        if self._outlook is not None and self._num_ended < self._num_trials:
            parts.append(self._time_left(self._outlook.left_s))
        return ", ".join(parts)

    def _time_left(self, left_s: float | None) -> str:
        if left_s is None:
            return "time left unknown"
        left_s -= self._now() - self._outlook_s  # the estimate was made then
        return f"about {duration(left_s)} left" if left_s > 0 else "about to end"

    def _print(self, line: str) -> None:
        self._console.print(Text(line))

    def _picture(self) -> Text:
        lines = list(self._running.values())
        if not lines:
            lines = [f"{self._preparing} ..."]
        if self._waiting():
            lines.append(f"waiting: {self._waiting()}")
        return Text("\n".join([*lines, self._tail()]), overflow="ellipsis", no_wrap=True)


class LineReporter:
    """Reporter of a trial that runs in this process; prints one line per report."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def report(
        self,
        stage: str,
        step: int,
        metrics: Mapping[str, float],
    ) -> None:
        """Print the metrics."""
        print(step_text(stage, step, None, metrics), file=self._stream, flush=True)

    def should_stop(self) -> str | None:
        """Return None: nobody stops this trial."""
        return None
