"""Layout of a study in MLflow: the study, its cells, their trials, and the content of each run.

Cells are not nested below the study: MLflow's list shows runs without a parent first, and what a person
looks for are the cells.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import math
import shutil
import time
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import count, inert_markdown
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.study.data.design import Cell
from nlgraft.study.data.plan import SweepTrial
from nlgraft.text.corpus_config import SPLITS, ConlangConfig, CorpusConfig, digest, further_tests
from nlgraft.tracking.entries import (
    ANALYSES,
    CELL,
    END_REASON,
    FINGERPRINT,
    IMPORTANT_SETTINGS,
    INTERVAL,
    KIND,
    NOTE,
    REGISTRATION,
    STATE,
    STUDY,
    STUDY_FINGERPRINT,
    VERDICT,
    BestModel,
    Fill,
    IsRead,
    Point,
    RunEntry,
    RunKey,
    Status,
    TrackedDataset,
    distinct_levels,
    flatten,
    metric_name,
    split_params,
    tag_value,
    value_text,
)

if TYPE_CHECKING:
    from nlgraft.pipeline.trial import TrialRecord
    from nlgraft.study.public import Study


_STATUS_OF_STATE: dict[str, Status] = {
    "finished": "FINISHED",
    "stopped": "FINISHED",
    "failed": "FAILED",
    "killed": "KILLED",
}
_CONTENT_VERSION = "2"
"""Version of a trial's content, raised when a record gives another content, so that it is written again."""

_DATASETS_KEPT = 64


class StudyLayout:
    """Builds the run entries of one study.

    Args:
        fingerprint: The study's fingerprint. Each fingerprint has runs of its own, so that editing a study
            file never changes the runs of a finished study.
        cells: The cells that will run.
        is_read: Tells if a setting has an effect in a config; others are no parameters.
        prefix: Begins the names of cells and trials, in an experiment that holds other studies.
    """

    def __init__(
        self,
        study: Study,
        fingerprint: str,
        cells: Sequence[Cell],
        is_read: IsRead,
        prefix: str = "",
    ) -> None:
        self._study = study
        self._is_read = is_read
        self._prefix = prefix
        self.fingerprint = fingerprint
        self._yaml = study.to_yaml(is_public=True)
        self.cells = cells
        # Most trials of a study read the same text.
        self._datasets = lru_cache(_DATASETS_KEPT)(lambda data: tracked_datasets(json.loads(data)))
        self.study_key = RunKey("study", "", fingerprint)
        factors = dict.fromkeys(factor for cell in cells for factor in cell.levels)
        self._shown = {
            factor: distinct_levels(cell.levels[factor] for cell in cells if factor in cell.levels)
            for factor in factors
        }

    @property
    def experiment_tags(self) -> dict[str, str]:
        """Tags of the experiment; its kind keeps MLflow from asking which view to show."""
        return {
            "mlflow.experimentKind": "custom_model_development",
            NOTE: tag_value(inert_markdown(self._study.description or "")),
            STUDY: self._study.variant,
        }

    def start(self) -> list[RunEntry]:
        """Build the entries of the study and, after it, of its cells at the start of a run."""
        study = RunEntry(
            key=self.study_key,
            name=self._study.variant,
            started_ms=now_ms(),
            tags=self._tags(self.study_key) | {STATE: "running", END_REASON: ""},
            params=self._study_params(),
            datasets=tracked_datasets(self._study.data),
            texts={"study.yaml": self._yaml},
            status="RUNNING",
        )
        cells = [self._cell_start(cell) for cell in self.cells]
        # MLflow lists what began last first: the baseline leads, the study ends the list.
        for number, cell in enumerate(reversed(cells), start=1):
            cell.started_ms = study.started_ms + number
        return [study, *cells]

    def cell_key(self, cell: Cell) -> RunKey:
        """Return the key of a cell's run."""
        return RunKey("cell", cell.label, cell.key)

    def trial_start(self, trial: SweepTrial) -> RunEntry:
        """Build the entry of a trial that was handed to a worker, state RUNNING."""
        started_ms = now_ms()
        return RunEntry(
            key=trial_key(trial),
            name=self._trial_name(trial),
            status="RUNNING",
            build=partial(self._started, trial, started_ms),
        )

    def trial_end(
        self,
        trial: SweepTrial,
        record: TrialRecord,
        files: Fill | None = None,
    ) -> RunEntry:
        """Build the final entry of a trial; it holds everything, also what was sent while the trial ran.

        Args:
            files: Writes hypotheses, references and segment statistics.
        """
        return RunEntry(
            key=trial_key(trial),
            name=self._trial_name(trial),
            status=_STATUS_OF_STATE.get(record.state, "FAILED"),
            ended_ms=round(record.ended_at * 1000),
            digest=self._trial_digest(trial, record),
            build=partial(self._ended, trial, record, files),
        )

    def _trial_name(self, trial: SweepTrial) -> str:
        tail = f"seed {trial.seed}" if trial.number is None else f"search {trial.number}"
        return f"{self._prefix}{trial.cell.label}, {tail}"

    def _trial_digest(self, trial: SweepTrial, record: TrialRecord) -> str:
        """Digest what a trial's content depends on; of the record, what sets it apart from earlier ones."""
        content = [
            _CONTENT_VERSION,
            self._trial_name(trial),
            self._study.variant,
            trial.kind,
            trial.seed,
            trial.params,
            trial.cell.levels,
            [record.state, record.reason, record.attempt, record.host, record.started_at, record.ended_at],
            record.metrics,
            {name: len(points) for name, points in record.curves.items()},
        ]
        text = json.dumps(content, sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _started(self, trial: SweepTrial, started_ms: int) -> RunEntry:
        key = trial_key(trial)
        tags = self._tags(key) | self._factor_tags(trial.cell)
        tags |= {"nlgraft.trial_kind": trial.kind, "nlgraft.seed": str(trial.seed)}
        if trial.number is not None:
            tags["nlgraft.number"] = str(trial.number)
        if trial.params:
            tags["nlgraft.params"] = tag_value(json.dumps(dict(trial.params), default=str))
        params, texts = split_params(self._factor_params(trial.cell) | self._settings(trial.config))
        datasets = self._datasets(json.dumps(trial.config.get("data"), sort_keys=True))
        if trial.kind == "search":
            # Scored on dev only.
            datasets = tuple(dataset for dataset in datasets if not dataset.context.startswith("test"))
        return RunEntry(
            key=key,
            parent=self.cell_key(trial.cell),
            started_ms=started_ms,
            tags=tags | {STATE: "running", END_REASON: ""},
            params=params,
            datasets=datasets,
            texts=texts,
        )

    def _ended(
        self,
        trial: SweepTrial,
        record: TrialRecord,
        files: Fill | None,
    ) -> RunEntry:
        started = self._started(trial, round(record.started_at * 1000))
        ended_ms = round(record.ended_at * 1000)
        curve = [
            Point(metric_name(name), float(value), round(unix_ms), round(step))
            for name, points in record.curves.items()
            for step, value, unix_ms in points
        ]
        last_step = max((point.step for point in curve), default=0)
        return replace(
            started,
            tags=started.tags
            | {
                STATE: record.state,
                END_REASON: tag_value(
                    record.reason or ("done" if record.state == "finished" else record.state)
                ),
                "nlgraft.host": record.host,
                "nlgraft.attempt": str(record.attempt),
            },
            curve=curve,
            results=[
                Point(metric_name(name), float(value), ended_ms, last_step)
                for name, value in record.metrics.items()
            ],
            texts=started.texts
            | {
                "config.json": pretty(record.config),
                # Scores with signatures.
                "record.json": pretty(record.to_json()),
            },
            files=files,
        )

    def cell_end(
        self,
        cell: Cell,
        result: Mapping[str, Any],
        main_metric: str,
    ) -> RunEntry:
        """Build the final entry of a cell: means and the comparison with the baseline as metrics.

        Args:
            result: Its element of ``cells`` in the JSON of ``run --json``.
            main_metric: The metric of its name, sentence and comparison.
        """
        state = result["state"]
        return RunEntry(
            key=self.cell_key(cell),
            name=f"{self._prefix}{cell.label}{main_figure(result, main_metric)}",
            tags={STATE: state, END_REASON: "done" if state == "finished" else state}
            | cell_tags(result, main_metric),
            results=[
                Point(key, value, now_ms(), 0) for key, value in cell_metrics(result, main_metric).items()
            ],
            texts={"result.json": pretty(dict(result))},
            status=_STATUS_OF_STATE.get(state, "KILLED"),
            ended_ms=now_ms(),
        )

    def study_end(
        self,
        result: Mapping[str, Any],
        note: str,
        report_directory: Path | None,
        model: BestModel | None,
    ) -> RunEntry:
        """Build the entry of the study at the end of a run, state FINISHED.

        Args:
            result: The JSON of ``run --json``.
            note: The comparison table as Markdown.
            report_directory: Directory of the report, to be copied.
            model: The best trial's model.
        """
        failed = sum(cell["state"] == "failed" for cell in result.get("cells", []))
        state = "finished" if not failed else f"finished, {failed} of its cells failed"
        heading = f"{self._study.description.strip()}\n\n" if self._study.description else ""
        described = {NOTE: tag_value(inert_markdown(heading + note))}
        tags = {STATE: state, END_REASON: "done"} | described
        analyses = [f"{entry['analysis']} ({entry['metric']})" for entry in result.get("ledger", [])]
        tags |= {ANALYSES: ", ".join(analyses)} if analyses else {}
        if registered := result.get("registration"):
            deviations = [
                f"{change['what']}: {change['registered']} → {change['now']}"
                for change in registered["deviations"]
            ]
            tags[REGISTRATION] = tag_value("\n".join([registered["text"], *deviations]))
        for number, claim in enumerate(result.get("claims", []), start=1):
            tags[f"nlgraft.claim.{number}"] = tag_value(f"{claim['verdict']}: {claim['text']}")
        return RunEntry(
            key=self.study_key,
            name=self._study.variant,
            tags=tags,
            texts={"result.json": pretty(dict(result)), "study.yaml": self._yaml},
            files=None if report_directory is None else partial(_copy_report, report_directory),
            status="FINISHED",
            ended_ms=now_ms(),
            model=model,
            experiment_tags=described | cells_view(result.get("main_metric", "")),
        )

    def _cell_start(self, cell: Cell) -> RunEntry:
        key = self.cell_key(cell)
        params, texts = split_params(self._factor_params(cell))
        return RunEntry(
            key=key,
            name=f"{self._prefix}{cell.label}",
            started_ms=now_ms(),
            tags=self._tags(key) | self._factor_tags(cell) | {STATE: "running", END_REASON: ""},
            params=params,
            texts=texts,
            status="RUNNING",
        )

    def _study_params(self) -> dict[str, str]:
        params = {"system": self._study.system, "seeds": value_text(list(self._study.seeds))}
        if self._study.overrides:
            params["overrides"] = " ".join(self._study.overrides)
        # Those that are too long stand in study.yaml.
        return split_params(params)[0]

    def _tags(self, key: RunKey) -> dict[str, str]:
        tags = {
            KIND: key.kind,
            FINGERPRINT: key.fingerprint,
            STUDY: self._study.variant,
            STUDY_FINGERPRINT: self.fingerprint,
        }
        return tags | ({CELL: key.cell} if key.cell else {})

    def _settings(self, config: Mapping[str, Any]) -> dict[str, str]:
        """Format the settings that take part in a trial: neither idle nor null."""
        return {
            path: text
            for path, text in flatten(config).items()
            if text != "null" and self._is_read(path, config)
        }

    def _factor_tags(self, cell: Cell) -> dict[str, str]:
        return {
            metric_name(f"nlgraft.factor.{factor}"): tag_value(value_text(level))
            for factor, level in cell.levels.items()
        }

    def _factor_params(self, cell: Cell) -> dict[str, str]:
        """Format the levels as parameters; ``_`` makes them sort before those of the config."""
        return {
            f"_factor.{factor}": self._shown.get(factor, {}).get(value_text(level), value_text(level))
            for factor, level in cell.levels.items()
        }


def trial_key(trial: SweepTrial) -> RunKey:
    """Return the key of a trial's run."""
    return RunKey("trial", trial.cell.label, trial.fingerprint)


def _copy_report(report_directory: Path, target: Path) -> None:
    if report_directory.is_dir():
        shutil.copytree(report_directory, target / "report")


def pretty(document: Any) -> str:
    """Format JSON values with indentation."""
    return json.dumps(document, indent=2, ensure_ascii=False, default=str) + "\n"


def now_ms() -> int:
    """Return the time in Unix milliseconds."""
    return time.time_ns() // 1_000_000


# The figures of a cell in MLflow: its metrics, its name, and the view that shows them as a table.


VIEW = "mlflow.sharedViewState.cells"
"""A view of the experiment's page, offered by its menu *Views*."""


def cells_page(experiment_id: str) -> str:
    """Return the address of the view below that of a server, in MLflow's mode of experiments that train."""
    query = "workflowType=machine_learning&viewStateShareKey=cells"
    return f"#/experiments/{experiment_id}/runs?{query}"


def cell_metrics(result: Mapping[str, Any], main_metric: str) -> dict[str, float]:
    """Turn a cell's results into metrics, so that MLflow's comparison of cells is the paper's table.

    Args:
        result: One element of ``cells`` in the JSON of ``run --json``, which is among the run's artifacts.
        main_metric: The metric that is compared, e.g. ``test/bleu``.

    Returns:
        ``test/bleu.mean``, ``.std``, ``.n``, ``.difference``, ``.ci_low``, ``.ci_high`` and ``.p_holm``, and
        the means of the other metrics of its split, with four significant digits, since MLflow's columns show
        all that there are; undefined (null) values are left out.
    """
    metrics = result["metrics"]
    split = main_metric.partition("/")[0]
    on_split = [name for name in metrics if name.startswith(f"{split}/")]
    values = {f"{name}.mean": metrics[name].get("mean") for name in on_split}
    summary, comparison = _main(result, main_metric)
    low, high = comparison.get("ci") or (None, None)
    values |= {f"{main_metric}.{key}": summary.get(key) for key in ("mean", "std", "n")}
    values |= {f"{main_metric}.{key}": comparison.get(key) for key in ("difference", "p_holm")}
    values |= {f"{main_metric}.ci_low": low, f"{main_metric}.ci_high": high}
    return {
        metric_name(name): _rounded(value)
        for name, value in values.items()
        if isinstance(value, int | float) and math.isfinite(value)
    }


def _main(result: Mapping[str, Any], metric: str) -> tuple[Mapping[str, Any], Mapping[str, Any]]:
    """Return a cell's summary of a metric and its comparison with the baseline; empty where it has none."""
    comparisons = result.get("comparison", {})
    return result["metrics"].get(metric, {}), comparisons.get(metric, {})


def _rounded(value: float) -> float:
    """Round to four significant digits, or to a whole number."""
    if abs(value) >= 1000:
        return float(round(value))
    return float(f"{value:.4g}")


def main_figure(result: Mapping[str, Any], metric: str) -> str:
    """Format a cell's main metric, marked if a single seed shows no spread, to end its run's name."""
    summary, _ = _main(result, metric)
    if summary.get("mean") is None:
        return ""
    spread = " (1 seed)" if summary.get("std") is None else f" ± {summary['std']:.2f}"
    return f" {summary['mean']:.2f}{spread}"


def _sentence(result: Mapping[str, Any], metric: str) -> str:
    """Say what a cell has shown, as the note of its run; empty without a score."""
    summary, comparison = _main(result, metric)
    if summary.get("mean") is None:
        return ""
    text = f"{metric}{main_figure(result, metric)}, {count(summary['n'], 'seed')}"
    if comparison.get("ci"):
        text += f"; {comparison['difference']:+.3g} {_interval(comparison)} against the baseline"
    return f"{text}: {comparison['verdict']}." if comparison.get("verdict") else f"{text}."


def _interval(comparison: Mapping[str, Any]) -> str:
    # Short, since a column of MLflow's table has room for some ten characters.
    ends = [f"{end:.2g}" if abs(end) < 100 else f"{end:.0f}" for end in comparison["ci"]]
    return f"[{', '.join(ends)}]"


def cell_tags(result: Mapping[str, Any], metric: str) -> dict[str, str]:
    """Return a cell's sentence, interval, verdict, and settings of its search that stand out, as tags."""
    tags = {NOTE: tag_value(inert_markdown(_sentence(result, metric)))}
    _, comparison = _main(result, metric)
    if comparison.get("ci"):
        tags[INTERVAL] = _interval(comparison)
    if comparison.get("verdict"):
        tags[VERDICT] = str(comparison["verdict"])
    search = result.get("search") or {}
    settings = (search.get("settings") or {}).get("settings")
    if settings:
        leading = [
            f"{setting['setting']} {setting['importance']:.2f}"
            for setting in settings
            if setting["stands_out"]
        ]
        tags[IMPORTANT_SETTINGS] = ", ".join(leading) or "none more than by chance"
    return tags


def cells_view(main_metric: str) -> dict[str, str]:
    """Describe a view of the cells with the main metric's columns, as MLflow's *Views* menu stores it."""
    mean, difference, p = (
        f"metrics.`{metric_name(f'{main_metric}.{column}')}`" for column in ("mean", "difference", "p_holm")
    )
    columns = [mean, difference, f"tags.`{INTERVAL}`", p, f"tags.`{VERDICT}`"]
    state = {
        "searchFilter": f"tags.`{KIND}` = 'cell'",
        "selectedColumns": columns,
        "columnOrder": columns,
        "runsHiddenMode": "SHOW_ALL",
    }
    compressed = zlib.compress(json.dumps(state).encode())
    packed = base64.b64encode(compressed).decode()
    return {VIEW: json.dumps({"name": "Cells", "createdAt": 0, "state": f"deflate;{packed}"})}


# The corpora of a config as MLflow dataset inputs.


_log = logging.getLogger("nlgraft.tracking")


def tracked_datasets(data: Any) -> tuple[TrackedDataset, ...]:
    """Find the corpora in the ``data`` of a config.

    Args:
        data: JSON values. A corpus is a mapping with a key ``corpus`` that the text package knows.

    Returns:
        One dataset per corpus and split; its digest covers everything that determines the text.
    """
    return tuple(dataset for path, corpus in _corpora(data, "") for dataset in _splits(path, corpus))


def _corpora(data: Any, path: str) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if not isinstance(data, Mapping):
        return
    if "corpus" in data:
        yield path, data
        return
    for key, inner in data.items():
        yield from _corpora(inner, f"{path}{key}/")


def _splits(path: str, corpus: Mapping[str, Any]) -> list[TrackedDataset]:
    try:
        config: Any = TypeAdapter(CorpusConfig).validate_python(corpus)
        parts = digest(config)
    except (ValidationError, DataError, OSError) as error:
        _log.debug("%scorpus is not logged to MLflow: %s", path, error)
        return []
    written = config.model_dump(mode="json")
    splits = (*SPLITS, *further_tests(written))
    split_digests = {split: parts.pop(split, None) for split in splits}
    return [
        TrackedDataset(
            name=f"{path}{config.corpus}/{split}",
            digest=fingerprint([parts, split_digests[split], split]),
            source=json.dumps({**written, "split": split}, sort_keys=True),
            source_type=config.corpus,
            context=split,
            profile={"segments": getattr(config, split)} if isinstance(config, ConlangConfig) else {},
        )
        for split in splits
    ]
