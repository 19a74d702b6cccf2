"""Where the trials of a study ran, on what data, at what cost, and what sharing stages saved."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nlgraft.analysis.data.loading import load_manifests
from nlgraft.analysis.data.trials import CellResult, TrialResult
from nlgraft.basics.wording import grouped
from nlgraft.pipeline.store import ArtifactStore, Decision, Manifest
from nlgraft.pipeline.trial import TRIAL_RECORD

_CLOCK_S = 0.05
"""Shorter overlaps are those of clocks."""
_LOST = (str(Decision.FAILED), str(Decision.STOPPED))
_CORPUS = "corpus.json"


@dataclass(frozen=True)
class Provenance:
    """Facts about the runs, which differ from one run of a study to the next.

    Attributes:
        hosts: Machines that computed artifacts of the study.
        versions: Versions of Python and packages; several values where the machines differed.
        commits: Git commits of the code, with ``+`` where the checkout was dirty.
        num_stages: Stages over all trials that have ended.
        num_distinct: Distinct stages among them, i.e. those that had to be computed.
        computed_s: Time that the distinct stages took.
        saved_s: Further time that computing every stage for every trial would have taken.
        ended_at: Unix seconds of the end of the last trial; None when none has ended.
        crowded: Fingerprints of the stages that shared their machine with another stage of the study.
    """

    hosts: tuple[str, ...] = ()
    versions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    commits: tuple[str, ...] = ()
    num_stages: int = 0
    num_distinct: int = 0
    computed_s: float = 0.0
    saved_s: float = 0.0
    ended_at: float | None = None
    crowded: frozenset[str] = frozenset()


def read_provenance(trials: Sequence[TrialResult], store: ArtifactStore) -> Provenance:
    """Read where trials ran from the manifests of their stages.

    A stage counts once in ``computed_s``; each further trial that used it adds its duration to ``saved_s``.
    """
    records = {trial.fingerprint: trial.record for trial in trials if trial.record is not None}
    manifests = load_manifests(trials, store)
    # A trial that stands in several cells counts once: records are by fingerprint.
    used = [stage["fingerprint"] for record in records.values() for stage in record.stages]
    computed_s = sum(manifest.duration_s for manifest in manifests.values())
    needed_s = sum(manifests[stage].duration_s for stage in used if stage in manifests)
    versions = grouped(item for manifest in manifests.values() for item in manifest.versions.items())
    gits = [manifest.git for manifest in manifests.values() if manifest.git]
    commits = {git["commit"][:12] + ("+" if git.get("is_dirty") else "") for git in gits}
    return Provenance(
        hosts=tuple(sorted({manifest.host for manifest in manifests.values() if manifest.host})),
        versions={package: tuple(sorted({*numbers})) for package, numbers in sorted(versions.items())},
        commits=tuple(sorted(commits)),
        num_stages=len(used),
        num_distinct=len(set(used)),
        computed_s=computed_s,
        saved_s=max(0.0, needed_s - computed_s),
        ended_at=max((record.ended_at for record in records.values()), default=None),
        crowded=frozenset(crowded_stages(manifests.values())),
    )


def crowded_stages(manifests: Iterable[Manifest]) -> set[str]:
    """Find the stages during which another one ran on the same machine."""
    crowded = set()
    by_host = grouped((manifest.host, manifest) for manifest in manifests)
    for stages in by_host.values():
        running: list[Manifest] = []
        # A sweep over start times: what began earlier and has not ended shares the machine.
        for stage in sorted(stages, key=lambda manifest: manifest.started_at):
            running = [earlier for earlier in running if earlier.ended_at > stage.started_at + _CLOCK_S]
            if running and stage.duration_s > _CLOCK_S:
                crowded |= {manifest.fingerprint for manifest in (stage, *running)}
            running.append(stage)
    return crowded


def corpora(data: Any) -> list[str]:
    """List the values of all ``corpus`` keys in a study's ``data``, each once, in file order."""
    named = [data["corpus"]] if isinstance(data, Mapping) and isinstance(data.get("corpus"), str) else []
    parts = data.values() if isinstance(data, Mapping) else data if isinstance(data, list | tuple) else ()
    return list(dict.fromkeys([*named, *(corpus for part in parts for corpus in corpora(part))]))


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


def cost_of(trials: Sequence[TrialResult], store: ArtifactStore | None) -> Cost:
    """Add up the time that trials took, whatever became of them.

    Args:
        trials: All trials of a study.
        store: Where they come from; None for results that are only supposed.
    """
    manifests = {} if store is None else load_manifests(trials, store)
    took = {fingerprint: manifest.duration_s for fingerprint, manifest in manifests.items()}
    lost_s = defaultdict(float)
    for trial in {trial.fingerprint: trial for trial in trials}.values():
        for stage in trial.stages:
            if stage["decision"] in _LOST:
                lost_s[stage["fingerprint"]] += stage["duration_s"]
    needed, searched = (_stages(trials, kind) for kind in ("replicate", "search"))
    fingerprints = {trial.fingerprint for trial in trials}
    records = {} if store is None else store.records.list("trials", TRIAL_RECORD)
    others = [record for record in records.values() if record.fingerprint not in fingerprints]
    return Cost(
        total_s=sum(took.values()) + sum(lost_s.values()),
        search_s=sum(times.get(stage, 0.0) for times in (took, lost_s) for stage in searched - needed),
        lost_s=sum(lost_s.values()),
        num_again=sum(trial.record.attempt > 1 for trial in trials if trial.record is not None),
        elsewhere_s=sum(record.duration_s for record in others),
        num_elsewhere=len(others),
    )


def _stages(trials: Iterable[TrialResult], kind: str) -> set[str]:
    return {stage["fingerprint"] for trial in trials if trial.kind == kind for stage in trial.stages}


def split_sizes(cells: Iterable[CellResult], store: ArtifactStore | None) -> dict[str, dict[str, int]]:
    """Count the examples of each split of the corpora that finished trials read, by name of their stage.

    Cells may read corpora of unlike sizes under one name: each further one is named ``corpus (arm=b)``.
    """
    sizes_of = {}
    if store is None:
        return sizes_of
    for cell in cells:
        for manifest in load_manifests(cell.finished[:1], store).values():
            sizes = {} if manifest.inputs else _sizes(store, manifest)
            namesakes = [name for name in sizes_of if name.split(" (")[0] == manifest.name]
            if sizes and sizes not in [sizes_of[name] for name in namesakes]:
                sizes_of[f"{manifest.name} ({cell.label})" if namesakes else manifest.name] = sizes
    return sizes_of


def _sizes(store: ArtifactStore, manifest: Manifest) -> dict[str, int]:
    sizes = {}
    for split in ("train", "dev", *(name.partition("/")[0] for name in manifest.files)):
        if f"{split}/{_CORPUS}" in manifest.files and split not in sizes:
            data = store.read_file(manifest.fingerprint, f"{split}/{_CORPUS}")
            sizes[split] = int(json.loads(data or b"{}").get("examples", 0))
    return sizes
