"""A proposal in the ledger: an analysis of the dev segments, which no later report may take for unseen."""

from __future__ import annotations

from nlgraft.analysis.data.ledger import VERSION, Entry, LedgerQuestion, Plan, history, record
from nlgraft.analysis.data.loading import load_dev_trial, scored_segments
from nlgraft.analysis.policy.answer import Gain
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.design import cells
from nlgraft.study.data.study import Study
from nlgraft.study.planning.selection import cell_digest, cell_key
from nlgraft.study.reading.system_import import load_system


def enter_seen(pair: Study, variant: str, gain: Gain, store: ArtifactStore) -> None:
    """Enter what was seen of a proposal beside what is kept, before it is shown.

    Its question belongs to no family and is not judged by the ledger: the stream's own levels decide. What
    the entry changes is that later questions about these cells on these segments are afterthoughts.

    Args:
        pair: The study of both cells.
        variant: Name of the study that proposed it.
        gain: Gains by seed; nothing is entered without any.
    """
    if gain.mean is None:
        return
    kept, proposal = cells(pair)
    objective = pair.objective
    metrics = load_system(pair.system).metrics
    scored = [name for name, metric in metrics.items() if name.startswith("dev/") and not metric.is_time]
    keys = {cell.label: cell_digest(pair, cell) for cell in (kept, proposal)}
    question = LedgerQuestion(
        metric=objective.metric,
        cells=(keys[proposal.label], keys[kept.label]),
        labels=(proposal.label, "kept"),
        seeds=gain.seeds,
        is_judged=False,
        difference=gain.mean if objective.direction == "maximize" else -gain.mean,
    )
    segments = scored_segments([load_dev_trial(pair, kept, gain.seeds[0], store)], ["dev"], pair.data)
    entry = Entry(
        version=VERSION,
        time=timestamp(),
        study=pair.name.removesuffix("-stream"),
        variant=variant,
        system=pair.system,
        segments=segments,
        baseline=keys[kept.label],
        cells=tuple(keys.values()),
        metrics=tuple(dict.fromkeys([objective.metric, *scored])),
        plan=Plan(seeds=gain.seeds, looks=()),
        alpha=pair.analysis.alpha,
        asked=(question,),
        configs={keys[cell.label]: cell_key(pair, cell, {}) for cell in (kept, proposal)},
    )
    record(store, entry, history(store, segments))
