"""Writes run entries to MLflow: finds or creates the run of a key and adds only what it lacks."""

from __future__ import annotations

import getpass
import hashlib
import logging
import math
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from mlflow import MlflowClient
from mlflow.entities import (
    Dataset,
    DatasetInput,
    InputTag,
    Metric,
    Param,
    Run,
    RunTag,
    ViewType,
)

from nlgraft.pipeline.manifest import git
from nlgraft.tracking.entries import (
    CELL,
    DIGEST,
    END_REASON,
    FINGERPRINT,
    KIND,
    PREDICTOR,
    STATE,
    STORE,
    STUDY_FINGERPRINT,
    BestModel,
    Point,
    RunEntry,
    RunKey,
    TrackedDataset,
)
from nlgraft.tracking.layout import now_ms, pretty

_log = logging.getLogger("nlgraft.tracking")

HELD = "nlgraft.held"
"""Tag of a study's run: digest of the ended trials that MLflow holds in full, see `held_digest`."""
MODEL = "nlgraft.model"
MODEL_TRIAL = "nlgraft.model_trial"
RUN_NAME = "mlflow.runName"
# MLflow takes 1,000 entities in a batch, of which 100 may be parameters and 100 tags.
_POINTS_PER_BATCH = 800
_DIGEST_CHARS = 36
_MAX_READ = 1000
"""Ended trials whose runs are read, a page of them, before they count as held."""


_StoredPoint = tuple[int, float | None]
"""Step and value of a point, as MLflow's databases can hold them."""


@dataclass
class _Content:
    """What a stored run holds, as far as it has been read."""

    tags: dict[str, str]
    params: dict[str, str]
    latest: dict[str, float]
    datasets: set[tuple[str, str]]
    curves: dict[str, set[_StoredPoint]] = field(default_factory=dict)


@dataclass(slots=True)
class _StoredRun:
    """A stored run. Its content is known while it is being written: a study may have 100,000 runs."""

    run_id: str
    status: str
    started_ms: int
    digest: str
    content: _Content | None = None


class MlflowBackend:
    """One study's runs in one experiment of an MLflow store, through the public ``MlflowClient``.

    **Identity.** A run is found by ``nlgraft.fingerprint``, kind and cell among the runs of the study's
    fingerprint and of the store. Runs are read once, in pages; of two runs of one key (a request that was
    carried out although its response was lost) the newer one is deleted.

    **Completeness.** An ended run that carries the digest of its entry is complete: a new run is created with
    the digest and ended last, an older run gets the digest after everything else. The study's run carries a
    digest of all of these, so that a study that is complete is seen to be without reading its runs.

    **Threads.** Several may write, each another trial; everything else is called by one.

    **Failure.** Every method may raise whatever MLflow raises.
    """

    def __init__(
        self, client: MlflowClient, experiment_id: str, study_fingerprint: str, store_id: str = ""
    ) -> None:
        self.client = client
        self.experiment_id = experiment_id
        self._study_fingerprint = study_fingerprint
        self._store_id = store_id
        self._provenance = provenance_tags() | ({STORE: store_id} if store_id else {})
        self._lock = threading.RLock()
        self._runs: dict[bool, dict[RunKey, _StoredRun]] = {}
        self._parents: dict[RunKey, RunEntry] = {}

    def write(self, entry: RunEntry) -> None:
        """Make a run hold the content of its entry; writing it twice changes nothing."""
        # Kept, because writing a trial may have to create the run of its cell first.
        if entry.key.kind != "trial":
            parent = self._parents.get(entry.key)
            self._parents[entry.key] = parent.merge(entry) if parent else entry
        run = self._find(entry.key)
        digest_and_status = (entry.digest, entry.status)
        if run is not None and entry.digest and (run.digest, run.status) == digest_and_status:
            return
        entry = entry.built()
        if run is None:
            run = self._create(entry)
        content = run.content = run.content or _content(self.client.get_run(run.run_id))
        self._write_datasets(run.run_id, content, entry)
        self._write_artifacts(run, entry)
        self._write_data(run, content, entry)
        self._write_status(run, content, entry)
        if entry.model is not None:
            self._write_model(run, content, entry.model)
        for key, value in entry.experiment_tags.items():
            self.client.set_experiment_tag(self.experiment_id, key, value)
        # An ended trial is not written again; its content would only take memory.
        if entry.key.kind == "trial" and run.status != "RUNNING":
            run.content = None

    def end_orphans(self, active: Iterable[RunKey]) -> int:
        """Mark the runs that an earlier driver left RUNNING as KILLED; return their number.

        Args:
            active: Runs that are in fact running.
        """
        running = set(active)
        running_keys = [run_key(run) for run in self._search("attributes.status = 'RUNNING'")]
        orphans = [key for key in running_keys if key not in running]
        for key in orphans:
            # Without a digest: its last entry may have been written in part.
            tags = {STATE: "killed", END_REASON: "its driver ended before it", DIGEST: ""}
            self.write(RunEntry(key=key, tags=tags, status="KILLED", ended_ms=now_ms()))
        study = self._find(RunKey("study", "", self._study_fingerprint))
        if study is not None and any(key.kind == "trial" for key in orphans):
            self.client.set_tag(study.run_id, HELD, "")
        return len(orphans)

    def holds(self, entries: Sequence[RunEntry]) -> bool:
        """Tell, without reading the runs of many trials, if the store is known to hold these in full.

        Since that was noted a person may have deleted or changed runs, so up to a thousand are read, and more
        count as held only if the study has no deleted run.
        """
        study = self._find(RunKey("study", "", self._study_fingerprint))
        if study is None or len(entries) <= _MAX_READ or self._is_any_deleted():
            return False
        digest = held_digest((entry.key, entry.digest) for entry in entries)
        return self.client.get_run(study.run_id).data.tags.get(HELD) == digest

    def note_held(self) -> None:
        """Note in the study's run which ended trials the store holds; called when all entries are written."""
        study = self._find(RunKey("study", "", self._study_fingerprint))
        if study is None or True not in self._runs:
            # Without the index, nothing was written since it was noted.
            return
        ended = {key: run for key, run in self._runs[True].items() if run.status != "RUNNING"}
        held = held_digest((key, run.digest) for key, run in ended.items() if run.digest)
        self.client.set_tag(study.run_id, HELD, held)

    def is_reachable(self) -> bool:
        """Tell if the store responds at all, by reading the experiment."""
        try:
            self.client.get_experiment(self.experiment_id)
        except Exception as error:
            # Whatever the store's driver raises, it does not respond.
            _log.debug("probe of the tracking store failed: %s", error)
            return False
        return True

    def forget(self) -> None:
        """Read the runs again before the next write."""
        self._runs = {}

    def _find(self, key: RunKey) -> _StoredRun | None:
        return self._index(key.kind == "trial").get(key)

    def _index(self, has_trials: bool) -> dict[RunKey, _StoredRun]:
        """Runs of the study by key: its trials, or itself and its cells, which are read much sooner."""
        with self._lock:
            if has_trials not in self._runs:
                self._runs[has_trials] = self._read(has_trials)
            return self._runs[has_trials]

    def _read(self, has_trials: bool) -> dict[RunKey, _StoredRun]:
        runs: dict[RunKey, _StoredRun] = {}
        for stored_run in self._search(f"tags.`{KIND}` {'=' if has_trials else '!='} 'trial'"):
            key = run_key(stored_run)
            older, newer = runs.get(key), _indexed(stored_run)
            # Of two runs of one key the older is kept, in whatever order they are listed.
            if older is not None and older.started_ms > newer.started_ms:
                older, newer = newer, older
            if older is not None:
                self.client.delete_run(newer.run_id)
            runs[key] = older or newer
        return runs

    def _search(self, condition: str) -> Iterable[Run]:
        return runs_of_study(
            self.client, self.experiment_id, self._study_fingerprint, self._store_id, condition
        )

    def _is_any_deleted(self) -> bool:
        deleted = self.client.search_runs(
            [self.experiment_id],
            is_of_study(self._study_fingerprint),
            run_view_type=ViewType.DELETED_ONLY,
            max_results=1,
        )
        return len(deleted) > 0

    def _create(self, entry: RunEntry) -> _StoredRun:
        """Create a run with its tags in one call, so that it can be found even if the response is lost."""
        base = self._parents.get(entry.key, entry)
        tags = self._provenance | base.tags
        if base.parent is not None:
            with self._lock:
                parent = self._find(base.parent) or self._create(self._parents[base.parent])
            tags["mlflow.parentRunId"] = parent.run_id
        if entry.digest:
            tags[DIGEST] = entry.digest
        created = self.client.create_run(
            self.experiment_id,
            start_time=base.started_ms or now_ms(),
            tags=tags | {RUN_NAME: base.name},
            run_name=base.name,
        )
        run = self._index(entry.key.kind == "trial")[entry.key] = _indexed(created)
        run.content = _content(created)
        return run

    def _write_datasets(
        self,
        run_id: str,
        content: _Content,
        entry: RunEntry,
    ) -> None:
        inputs = map(_dataset_input, entry.datasets)
        keyed = {(logged.dataset.name, logged.dataset.digest): logged for logged in inputs}
        new = {key: logged for key, logged in keyed.items() if key not in content.datasets}
        if new:
            self.client.log_inputs(run_id, datasets=list(new.values()))
            content.datasets |= set(new)

    def _write_data(
        self,
        run: _StoredRun,
        content: _Content,
        entry: RunEntry,
    ) -> None:
        tags = {key: value for key, value in entry.tags.items() if content.tags.get(key) != value}
        stored_params = content.params
        params = {key: value for key, value in entry.params.items() if key not in stored_params}
        changed = [key for key, value in entry.params.items() if stored_params.get(key, value) != value]
        if changed:
            _log.warning(
                "run %s keeps the old values of %s: MLflow parameters cannot be changed",
                run.run_id,
                changed,
            )
        curve = self._new_curve_points(run.run_id, content, entry.curve)
        by_step = sorted(curve, key=lambda point: point.step)
        latest = content.latest | {p.key: p.value for p in by_step}
        results = [
            p for p in entry.results if p.key not in latest or _stored(latest[p.key]) != _stored(p.value)
        ]
        points = [*curve, *results]
        metrics = [Metric(p.key, p.value, p.timestamp_ms, p.step) for p in points]
        if len(metrics) > _POINTS_PER_BATCH:
            self.client.log_batch(run.run_id, metrics=metrics)
            metrics = []
        if tags or params or metrics:
            self.client.log_batch(
                run.run_id,
                metrics=metrics,
                params=[Param(key, value) for key, value in params.items()],
                tags=[RunTag(key, value) for key, value in tags.items()],
            )
        content.tags |= tags
        content.params |= params
        content.latest = latest | {p.key: p.value for p in results}
        for point in points:
            content.curves.setdefault(point.key, set()).add((point.step, _stored(point.value)))
        # After the batch, because the digest asserts that all of it is there.
        if entry.digest and content.tags.get(DIGEST) != entry.digest:
            self.client.set_tag(run.run_id, DIGEST, entry.digest)
            content.tags[DIGEST] = entry.digest
        run.digest = content.tags.get(DIGEST, "")

    def _new_curve_points(
        self,
        run_id: str,
        content: _Content,
        points: Sequence[Point],
    ) -> list[Point]:
        new: dict[tuple[str, _StoredPoint], Point] = {}
        for point in points:
            stored = (point.step, _stored(point.value))
            if stored not in self._logged_curve(run_id, content, point.key):
                new.setdefault((point.key, stored), point)
        return list(new.values())

    def _logged_curve(
        self,
        run_id: str,
        content: _Content,
        key: str,
    ) -> set[_StoredPoint]:
        if key not in content.curves:
            # A request for each metric, so only for runs that hold some of it.
            history = self.client.get_metric_history(run_id, key) if key in content.latest else []
            content.curves[key] = {(metric.step, _stored(metric.value)) for metric in history}
        return content.curves[key]

    def _write_artifacts(self, run: _StoredRun, entry: RunEntry) -> None:
        if not entry.texts and entry.files is None:
            return
        with tempfile.TemporaryDirectory(prefix="nlgraft-mlflow-") as name:
            staging = Path(name)
            for path, text in entry.texts.items():
                (staging / path).parent.mkdir(parents=True, exist_ok=True)
                (staging / path).write_text(text, "utf-8")
            if entry.files is not None:
                entry.files(staging)
            self.client.log_artifacts(run.run_id, name)

    def _write_model(
        self,
        run: _StoredRun,
        content: _Content,
        model: BestModel,
    ) -> None:
        if content.tags.get(MODEL_TRIAL) == model.fingerprint:
            return
        directory = model.find()
        if directory is None:
            _log.info("no model of trial %s is logged: no stage has a %s", model.fingerprint[:12], PREDICTOR)
            return
        # Imports mlflow.pyfunc, which takes seconds that few runs need.
        from nlgraft.tracking.served import log_model

        trials = [
            trial_run.run_id
            for key, trial_run in self._index(True).items()
            if key.fingerprint == model.fingerprint
        ]
        source = trials[0] if trials else run.run_id
        names = {STUDY_FINGERPRINT: self._study_fingerprint, FINGERPRINT: model.fingerprint}
        uri = log_model(self.client, self.experiment_id, source, directory, names)
        tags = {MODEL: uri, MODEL_TRIAL: model.fingerprint}
        run_tags = [RunTag(key, value) for key, value in tags.items()]
        self.client.log_batch(run.run_id, tags=run_tags)
        content.tags |= tags

    def _write_status(
        self,
        run: _StoredRun,
        content: _Content,
        entry: RunEntry,
    ) -> None:
        if entry.name and entry.name != content.tags.get(RUN_NAME):
            self.client.update_run(run.run_id, name=entry.name)
            content.tags[RUN_NAME] = entry.name
        if entry.status is None or entry.status == run.status:
            return
        if entry.status == "RUNNING":
            self.client.update_run(run.run_id, status="RUNNING")
        else:
            self.client.set_terminated(run.run_id, entry.status, entry.ended_ms or now_ms())
        run.status = entry.status


def held_digest(trials: Iterable[tuple[RunKey, str]]) -> str:
    """Digest the trials that a store holds in full, given the digests of their entries."""
    lines = sorted(f"{key.cell}\t{key.fingerprint}\t{digest}" for key, digest in trials)
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:32]


def _indexed(run: Run) -> _StoredRun:
    return _StoredRun(
        run.info.run_id, run.info.status, run.info.start_time or 0, run.data.tags.get(DIGEST, "")
    )


def _content(run: Run) -> _Content:
    return _Content(
        tags=dict(run.data.tags),
        params=dict(run.data.params),
        latest=dict(run.data.metrics),
        datasets={
            (dataset_input.dataset.name, dataset_input.dataset.digest)
            for dataset_input in (run.inputs.dataset_inputs if run.inputs else [])
        },
    )


def _stored(value: float) -> float | None:
    """Map a value to the form in which MLflow returns it: NaN to None, infinity to the largest float."""
    if math.isnan(value):
        return None
    return max(-sys.float_info.max, min(value, sys.float_info.max))


def _dataset_input(dataset: TrackedDataset) -> DatasetInput:
    return DatasetInput(
        Dataset(
            name=dataset.name,
            digest=dataset.digest[:_DIGEST_CHARS],
            source_type=dataset.source_type,
            source=dataset.source,
            profile=pretty(dict(dataset.profile)) if dataset.profile else None,
        ),
        tags=[InputTag("mlflow.data.context", dataset.context)],
    )


# Tags on user, code and host; unlike MLflow's fluent API, ``MlflowClient.create_run`` sets none.


def provenance_tags() -> dict[str, str]:
    """Return MLflow's system tags for user, source and git state, and ``nlgraft.host``.

    Git tags are left out if neither the code nor the working directory lies in a git work tree.
    """
    tags = {
        "mlflow.user": _user(),
        "mlflow.source.name": sys.argv[0] or "nlgraft",
        "mlflow.source.type": "JOB" if "RAY_JOB_CONFIG_JSON_ENV_VAR" in os.environ else "LOCAL",
        "nlgraft.host": socket.gethostname(),
    }
    for place in (Path(__file__).resolve().parents[1], Path.cwd()):
        if commit_tags := git_tags(place):
            return tags | commit_tags
    return tags


def git_tags(directory: Path) -> dict[str, str]:
    """Return ``mlflow.source.git.commit``, ``.branch`` (unless the head is detached) and ``.dirty``.

    Empty without git, outside a work tree and before the first commit.
    """
    commit = _git(directory, "rev-parse", "--verify", "HEAD")
    if not commit:
        return {}
    tags = {"mlflow.source.git.commit": commit}
    branch = _git(directory, "symbolic-ref", "--short", "--quiet", "HEAD")
    if branch:
        tags["mlflow.source.git.branch"] = branch
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    if changes is not None:
        tags["mlflow.source.git.dirty"] = "true" if changes else "false"
    return tags


def _git(directory: Path, *arguments: str) -> str | None:
    try:
        return git(directory, *arguments)
    except (OSError, subprocess.SubprocessError):
        return None


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        # A container user without a name.
        return str(os.getuid())


# The runs of one study as an MLflow store holds them.


_RUNS_PER_PAGE = 1000


def is_of_study(fingerprint: str) -> str:
    """Return MLflow's condition for the runs of a study, given its fingerprint."""
    return f"tags.`{STUDY_FINGERPRINT}` = '{fingerprint}'"


def runs_of_study(
    client: MlflowClient,
    experiment_id: str,
    fingerprint: str,
    store_id: str,
    condition: str = "",
) -> Iterator[Run]:
    """Read the runs of a study that are not deleted, in pages; of those that fulfil a condition, if given.

    Two stores may report one study to one server. Runs without the id of a store, which earlier versions
    wrote, count as runs of each.
    """
    # Every run that nlgraft writes has a kind, which its key needs.
    conditions = [is_of_study(fingerprint), f"tags.`{KIND}` LIKE '%'", *([condition] if condition else [])]
    token: str | None = None
    while True:
        page = client.search_runs(
            [experiment_id], " AND ".join(conditions), max_results=_RUNS_PER_PAGE, page_token=token
        )
        yield from (run for run in page if run.data.tags.get(STORE, store_id) == store_id)
        token = page.token
        if not token:
            return


def run_key(run: Run) -> RunKey:
    """Return which run of the study it is, by its tags."""
    tags = run.data.tags
    return RunKey(tags[KIND], tags.get(CELL, ""), tags[FINGERPRINT])
