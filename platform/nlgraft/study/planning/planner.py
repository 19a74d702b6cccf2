"""Planning: cells, trials, stages, concurrency, cost and disk of a run, without running anything."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from nlgraft.basics.errors import DataError
from nlgraft.basics.wording import count, grouped, name_some
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import load_function
from nlgraft.study.data.design import Cell, cells, idle_note
from nlgraft.study.data.plan import Plan
from nlgraft.study.data.space import corner
from nlgraft.study.data.study import Search, Study
from nlgraft.study.data.system import SEARCH_SPLITS, Findings
from nlgraft.study.planning.cost import (
    Cost,
    TextSize,
    capacity_problems,
    cost_of,
    gpu_notes,
    max_allowed,
    max_concurrent,
    memory_problems,
)
from nlgraft.study.planning.selection import search_seed
from nlgraft.study.reading.resolving import ResolvedCell, resolve_cell
from nlgraft.study.reading.rules import warnings
from nlgraft.text.corpora import Corpus
from nlgraft.text.files import looking_below


@dataclass
class _Stages:
    """Stages summed over trials: distinct ones by fingerprint, those of future proposals by an example."""

    num_planned: int = 0
    distinct: dict[str, Stage] = field(default_factory=dict)
    future: list[tuple[Stage, int]] = field(default_factory=list)

    def add(self, graph: StageGraph) -> None:
        self.num_planned += len(graph.stages)
        self.distinct |= {stage.fingerprint: stage for stage in graph.stages}

    def add_search(
        self,
        low: StageGraph,
        high: StageGraph,
        num_trials: int,
    ) -> None:
        """Add trials with values between two corners; stages that both corners share, all trials share."""
        # What the two ends of a space share, no searched value reaches.
        shared = {stage.fingerprint for stage in high.stages}
        self.num_planned += num_trials * len(low.stages)
        for stage in low.stages:
            if stage.fingerprint in shared:
                self.distinct[stage.fingerprint] = stage
            else:
                self.future.append((stage, num_trials))


def plan(
    study: Study,
    store: ArtifactStore | None = None,
    capacity: Mapping[str, float] | None = None,
) -> Plan:
    """Plan a run without side effects.

    Args:
        study: The study.
        store: Holds finished stages and the cost of earlier ones; None: nothing is finished or estimated.
        capacity: Capacity of the cluster, by Ray's resource names; None: unknown, so that everything fits.

    Raises:
        StudyError: The design is too large, or a cell's config is refused by the system.
        DataError: A corpus is missing or unusable.
    """
    study_cells = cells(study)
    resolved = [resolve_cell(study, cell) for cell in study_cells]
    trials = [resolved_cell.trial(seed) for resolved_cell in resolved for seed in study.seeds]
    # An unpacked archive has the text of a study, which may lie nowhere else any more.
    with looking_below(study.mirror):
        data = check_data(trial.graph for trial in trials)
    stages = _Stages()
    for trial in trials:
        stages.add(trial.graph)
    merged = idle_note(study)
    notes = [merged] if merged is not None else []
    notes += _looks_note(study, len(study_cells))
    num_search_trials = 0
    if study.search is not None:
        num_search_trials = study.search.trials * len(study_cells)
        for resolved_cell in resolved:
            ends = [corner(study.search.space, resolved_cell.document, end) for end in (0, -1)]
            low, high = [_search_graph(study, resolved_cell.cell, params) for params in ends]
            stages.add_search(low, high, study.search.trials)
        notes.append(
            "stages of search trials are estimated from the two ends of the space, "
            "those of the replicates from the config without searched values"
        )
    finished = store.finished(stages.distinct) if store is not None else set()
    durations = store.durations() if store is not None else {}
    to_do = [(stage, 1) for key, stage in stages.distinct.items() if key not in finished]
    with looking_below(study.mirror):
        # The size of a training is estimated from its released weights.
        texts = {
            key: {split: _text_sizes(corpus) for split, corpus in splits.items()}
            for key, splits in data.read.items()
        }
        cost = cost_of([*to_do, *stages.future], durations, study.resources, texts)
        problems = []
        if capacity is not None:
            problems += capacity_problems(study.resources, capacity)
            memory = capacity.get("memory", math.inf)
            problems += memory_problems(stages.distinct.values(), memory)
        gpu_texts, gpu_problems = gpu_notes(stages.distinct.values(), study.resources)
    notes += gpu_texts
    notes += _cost_notes(cost) if store is not None or cost.estimated else []
    return Plan(
        study=study,
        cells=study_cells,
        trials=trials,
        num_search_trials=num_search_trials,
        stages={
            "planned": stages.num_planned,
            "distinct": len(stages.distinct) + sum(number for _, number in stages.future),
            "finished": len(finished),
        },
        max_concurrent=max_allowed(study.resources)
        if capacity is None
        else max_concurrent(study.resources, capacity),
        problems=problems + gpu_problems,
        warnings=warnings(study)
        + _small_searches(study, resolved)
        + _short_budget(study, len(trials) + num_search_trials)
        + data.warnings,
        notes=notes,
        corpora=data.corpora,
        cost_s=cost.seconds,
        disk_bytes=cost.num_bytes,
        is_cost_measured=not cost.estimated and not cost.unknown,
        is_cost_scaled=bool(cost.scaled),
    )


def _search_graph(
    study: Study,
    cell: Cell,
    params: Mapping[str, Any],
) -> StageGraph:
    return resolve_cell(study, cell, params).graph(search_seed(study), SEARCH_SPLITS)


def _small_searches(study: Study, resolved: Sequence[ResolvedCell]) -> list[str]:
    """Warn of cells in which the searched values make fewer distinct trials than the budget."""
    search = study.search
    if search is None:
        return []
    labels_by_number = grouped((_most_distinct(study, search, cell), cell.cell.label) for cell in resolved)
    return [
        f"search: {'; '.join(labels)}: at most {number:.0f} distinct of {search.trials} trials, since the "
        "searched values change little or nothing there; the budget is not that of the other cells"
        for number, labels in labels_by_number.items()
        if number < search.trials
    ]


def _most_distinct(study: Study, search: Search, resolved: ResolvedCell) -> float:
    """Count the combinations of searched values that change a stage of a cell's trials."""

    def has_effect(
        path: str,
        probes: Iterable[Any],
        end: int,
    ) -> bool:
        corners = (corner(search.space, resolved.document, end, {path: value}) for value in probes)
        trials = {_search_graph(study, resolved.cell, params).fingerprint for params in corners}
        return len(trials) > 1

    sizes = [1.0]
    for path, domain in search.space.items():
        # At both ends of the others: a domain may be read only under the values of another.
        probes = domain.probes().values()
        if has_effect(path, probes, 0) or has_effect(path, probes, -1):
            sizes.append(domain.num_values)
    return math.prod(sizes)


def _cost_notes(cost: Cost) -> list[str]:
    notes = []
    if cost.scaled:
        notes.append(
            f"time and size of {name_some(cost.scaled)} are those of earlier runs of another size, scaled by "
            "steps, tokens, weights, workers and text: on a busy machine two of three were right within a "
            "factor of 2"
        )
    if cost.estimated:
        notes.append(
            f"time and size of {', '.join(cost.estimated)} are a rough estimate from parameters x tokens x "
            "steps; the first run measures them"
        )
    if cost.unknown:
        notes.append(
            f"time and size leave out {count(len(cost.unknown), 'kind')} of stages that were never timed: "
            f"{name_some(cost.unknown)}"
        )
    return notes


def _text_sizes(corpus: Corpus) -> dict[str, TextSize]:
    sizes = {}
    for role, lines in corpus.streams().items():
        num_bytes = sum(len(line.encode()) + 1 for line in lines)
        sizes[role] = TextSize(len(lines), sum(map(len, lines)), num_bytes)
    return sizes


def _looks_note(study: Study, num_cells: int) -> list[str]:
    looks = [look for look in study.looks if look <= len(study.seeds)]
    if study.sequential is None or len(looks) < 2:
        return []
    *earlier, last = looks
    return [
        f"results are tested at {', '.join(map(str, earlier))} and {last} seeds; cells that are decided, or "
        f"never will be, stop there: {num_cells * looks[0]} to {num_cells * last} replicates; "
        f"trials, stages, time and size are those of {last} seeds in every cell"
    ]


def _short_budget(study: Study, num_trials: int) -> list[str]:
    limit = study.budget.trials
    if limit is None or limit >= num_trials:
        return []
    return [f"budget.trials: {limit} trials end a run before its {num_trials}; run it again to go on"]


# Checks of a study's data before anything runs: each stage names the function that looks at its own.


def check_cells(
    study: Study,
    cells: Iterable[Cell],
    store: ArtifactStore | None = None,
) -> Findings:
    """Check the data of some cells; see `check_data`."""
    with looking_below(study.mirror):
        graphs = (resolve_cell(study, cell).graph(study.seeds[0]) for cell in cells)
        return check_data(graphs, store)


def check_data(graphs: Iterable[StageGraph], store: ArtifactStore | None = None) -> Findings:
    """Call the checks that the stages of some graphs name.

    A check is called once, with all stages that name it, inputs first, and with the `Findings` so far, to
    which it adds. Checks are called in the order in which the stages first name them.

    Args:
        graphs: Stage graphs.
        store: Stages that it holds were checked before and are skipped; None checks everything.

    Raises:
        ContractError: A stage names a check that does not exist.
        DataError: A corpus or a released checkpoint cannot be used; lists the problems of all.
    """
    stages = {stage.fingerprint: stage for graph in graphs for stage in graph.stages}
    done = store.finished(stages) if store is not None else set()
    checked = ((stage.check, stage) for key, stage in stages.items() if stage.check and key not in done)
    findings = Findings([*stages.values()])
    for path, checked_stages in grouped(checked).items():
        load_function(checked_stages[0], path)(checked_stages, findings)
    if findings.problems:
        raise DataError("\n".join(dict.fromkeys(findings.problems)))
    findings.warnings = list(dict.fromkeys(findings.warnings))
    return findings
