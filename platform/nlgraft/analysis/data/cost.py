"""What a study used and read: the time of all its stages, lost and searched ones too, and its corpora."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass

from nlgraft.analysis.data.loading import load_manifests
from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import TrialResult
from nlgraft.pipeline.store import ArtifactStore, Decision, Manifest
from nlgraft.pipeline.trial import TRIAL_RECORD

_LOST = (str(Decision.FAILED), str(Decision.STOPPED))
_CORPUS = "corpus.json"


@dataclass(frozen=True)
class Cost:
    """Time of the stages of a study, each counted once however many trials share it.

    Attributes:
        total_s: Of all stages, those that ended without an artifact included.
        search_s: Of the stages that search trials alone needed.
        lost_s: Of the attempts on record that failed or were stopped.
        num_again: Trials that ran more than once; the time of the earlier attempts is on record only where
            their stages were stored.
        elsewhere_s: Of the trials on record in the same store that are not of this study, from start to end;
            stages that they share with this study count here again.
        num_elsewhere: Number of these trials.
    """

    total_s: float
    search_s: float
    lost_s: float
    num_again: int
    elsewhere_s: float
    num_elsewhere: int


def cost_of(result: Results) -> Cost:
    """Add up the time that the trials of a study took, whatever became of them."""
    ended = [trial for trial in result.trials if trial.record is not None]
    manifests = {} if result.store is None else load_manifests(ended, result.store)
    took = {fingerprint: manifest.duration_s for fingerprint, manifest in manifests.items()}
    lost_s = _lost(ended)
    needed = _stages(trial for trial in ended if trial.kind == "replicate")
    only_searched = _stages(trial for trial in ended if trial.kind == "search") - needed
    fingerprints = {trial.fingerprint for trial in result.trials}
    records = {} if result.store is None else result.store.list_records("trials", TRIAL_RECORD)
    others = [record for record in records.values() if record.fingerprint not in fingerprints]
    return Cost(
        total_s=sum(took.values()) + sum(lost_s.values()),
        search_s=sum(times.get(stage, 0.0) for times in (took, lost_s) for stage in only_searched),
        lost_s=sum(lost_s.values()),
        num_again=sum(trial.record.attempt > 1 for trial in ended if trial.record is not None),
        elsewhere_s=sum(record.ended_at - record.started_at for record in others),
        num_elsewhere=len(others),
    )


def _stages(trials: Iterable[TrialResult]) -> set[str]:
    return {stage["fingerprint"] for trial in trials if trial.record for stage in trial.record.stages}


def _lost(trials: Iterable[TrialResult]) -> dict[str, float]:
    """Time of stages that failed or were stopped, by fingerprint, of every trial that they ended."""
    lost_s: dict[str, float] = {}
    for record in {trial.fingerprint: trial.record for trial in trials}.values():
        for stage in record.stages if record is not None else ():
            if stage["decision"] in _LOST:
                lost_s[stage["fingerprint"]] = lost_s.get(stage["fingerprint"], 0.0) + stage["duration_s"]
    return lost_s


def split_sizes(result: Results) -> dict[str, dict[str, int]]:
    """Count the examples of each split of the corpora that finished trials read, by name of their stage.

    Cells may read corpora of unlike sizes under one name: each further one is named ``corpus (arm=b)``.
    """
    if result.store is None:
        return {}
    corpora: dict[str, dict[str, int]] = {}
    for cell in result.cells:
        trial = next((replicate for replicate in cell.trials if replicate.state == "finished"), None)
        for manifest in load_manifests([trial] if trial else [], result.store).values():
            sizes = {} if manifest.inputs else _sizes(result.store, manifest)
            namesakes = [name for name in corpora if name.split(" (")[0] == manifest.name]
            if sizes and sizes not in [corpora[name] for name in namesakes]:
                corpora[f"{manifest.name} ({cell.cell.label})" if namesakes else manifest.name] = sizes
    return corpora


def _sizes(store: ArtifactStore, manifest: Manifest) -> dict[str, int]:
    sizes = {}
    for split in ("train", "dev", *(name.partition("/")[0] for name in manifest.files)):
        if f"{split}/{_CORPUS}" in manifest.files and split not in sizes:
            data = store.read_file(manifest.fingerprint, f"{split}/{_CORPUS}")
            sizes[split] = int(json.loads(data or b"{}").get("examples", 0))
    return sizes
