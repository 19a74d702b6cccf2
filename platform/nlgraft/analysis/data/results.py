"""The result of a study: its trials as the store remembers them, compared and judged."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nlgraft.analysis.data.provenance import Provenance, has_constructed_data, read_provenance
from nlgraft.analysis.data.trials import CellResult, TrialResult, load_cell
from nlgraft.analysis.rendering.document import result_document
from nlgraft.analysis.rendering.tables import comparison_table, effects_table, short_note
from nlgraft.analysis.statistics.claims import ClaimResult, judge_figure, judge_ordering, why_not_comparable
from nlgraft.analysis.statistics.comparison import Comparer, Comparison
from nlgraft.analysis.statistics.effects import Effect, contrasts
from nlgraft.analysis.statistics.resampling import holm
from nlgraft.errors import NlgraftError, nearest
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.study.data.claim import Claim
from nlgraft.study.data.design import Cell, axes_of, cells, find_cell
from nlgraft.study.data.study import Study
from nlgraft.study.reading.system import Metric, System, load_system

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Invocation:
    """What one ``nlgraft run`` did.

    Attributes:
        num_run: Trials it ran.
        num_reused: Trials that were finished before.
        num_failed: Trials that failed.
        report_dir: Where it writes the report.
        tracking_uri: Where it tracks.
        experiment: Its MLflow experiment.
    """

    num_run: int
    num_reused: int
    num_failed: int
    report_dir: str | None = None
    tracking_uri: str | None = None
    experiment: str | None = None


@dataclass(eq=False)
class StudyResult:
    """What is known of a study now; trials that have not ended are left out of every figure.

    **Determinism.** Figures depend on the finished trials' scores and the study's analysis settings only.

    Attributes:
        study: The study.
        system: Its system.
        cells: One per cell, the baseline first.
        provenance: Where and at what cost the trials ran.
        invocation: What the run did that ends with this result; None when it was only read.
    """

    study: Study
    system: System
    cells: tuple[CellResult, ...]
    provenance: Provenance
    invocation: Invocation | None = None

    @property
    def baseline(self) -> CellResult:
        """The cell that the others are compared with."""
        return self.cells[0]

    @cached_property
    def metrics(self) -> dict[str, Metric]:
        """The declared metrics that some finished replicate has, in the system's order."""
        declared = self.system.metrics.items()
        return {name: metric for name, metric in declared if any(c.measured(name) for c in self.cells)}

    @property
    def main_metric(self) -> str:
        """What the report leads with: the first objective, on test where the system scores it there."""
        objective = self.study.objectives[0].metric
        on_test = "test/" + objective.removeprefix("dev/")
        return next((name for name in (on_test, objective) if name in self.metrics), objective)

    @property
    def is_constructed(self) -> bool:
        """Whether any of the data is constructed."""
        return has_constructed_data(self.study.data)

    @property
    def is_corrected(self) -> bool:
        """Whether Holm-adjusted p-values decide."""
        return self.study.analysis.correction == "holm"

    def cell(self, cell: str | Cell) -> CellResult:
        """Find a cell.

        Args:
            cell: A cell, or a text that names one: ``baseline``, ``arm=avg_eg``, ``without x``.

        Returns:
            Its result.
        """
        label = cell.label if isinstance(cell, Cell) else find_cell(self.study, cell).label
        return next(found for found in self.cells if found.cell.label == label)

    def compare(self, a: str | Cell, b: str | Cell = "baseline", *, metric: str | None = None) -> Comparison:
        """Compare two cells.

        Args:
            a: The first cell, or a text that names it.
            b: The cell it is held against.
            metric: A metric of the system; the report's main metric when left out.

        Returns:
            ``a`` minus ``b``. ``p_holm`` is given for comparisons of the study's declared family.

        Raises:
            NlgraftError: The system has no such metric.
        """
        metric = self._known(metric)
        first, second = self.cell(a), self.cell(b)
        found = self._compare(first, second, metric)
        key = (metric, frozenset((first.cell.label, second.cell.label)))
        if key in self._adjusted:
            return replace(found, p_holm=self._adjusted[key])
        if self.is_corrected and found.p is not None:
            note = f"not in the family '{self.study.analysis.family}' that the study corrects for"
            return replace(found, notes=(*found.notes, note))
        return found

    def effects(self, metric: str | None = None) -> list[Effect]:
        """Tell what each level does on average over the other factors, and which levels need each other.

        Args:
            metric: A metric of the system; the report's main metric when left out.

        Returns:
            Main effects, then interactions of two; ``p_holm`` is adjusted over all of them. Nothing where the
            design crosses no factors: one_factor, leave_one_out.

        Raises:
            NlgraftError: The system has no such metric.
        """
        metric = self._known(metric)
        known = contrasts(axes_of(self.study), [found.cell for found in self.cells])
        measured = {found.cell.label: found.measured(metric) for found in self.cells}
        self._comparer.prepare(metric, [trial for trials in measured.values() for trial in trials.values()])
        compared = [
            self._comparer.contrast(
                metric,
                contrast.label,
                "both effects added" if len(contrast.levels) > 1 else "the factor's baseline",
                [(weight, measured[cell.label]) for weight, cell in contrast.terms],
            )
            for contrast in known
        ]
        if self.is_corrected:
            adjusted = holm([found.p for found in compared])
            compared = [replace(found, p_holm=p) for found, p in zip(compared, adjusted, strict=True)]
        return [Effect(contrast, found) for contrast, found in zip(known, compared, strict=True)]

    def _known(self, metric: str | None) -> str:
        metric = self.main_metric if metric is None else metric
        if metric not in self.system.metrics:
            raise NlgraftError(
                f"{self.system.path} has no metric '{metric}'. {nearest(metric, list(self.system.metrics))}"
            )
        return metric

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The answer to every claim of the study, in its order."""
        return [self._judge(claim) for claim in self.study.claims]

    def best(self, cell: str | Cell | None = None) -> TrialResult | None:
        """Find the replicate with the best value of the first objective.

        Args:
            cell: Only among this cell's replicates; among all when left out.

        Returns:
            The trial, the earlier one at a tie; None when none has finished.
        """
        objective = self.study.objectives[0]
        sign = 1.0 if objective.direction == "maximize" else -1.0
        among = self.cells if cell is None else (self.cell(cell),)
        scored = [
            (sign * measured.value, trial)
            for found in among
            for trial in found.trials
            if (measured := trial.measured(objective.metric)) is not None
        ]
        return max(scored, key=lambda pair: pair[0])[1] if scored else None

    @property
    def trials(self) -> list[TrialResult]:
        """All trials, cell by cell, search trials before replicates."""
        return [trial for cell in self.cells for trial in (*cell.search, *cell.trials)]

    def frame(self) -> pd.DataFrame:
        """Give all trials as a table.

        Returns:
            One row per trial: ``cell``, ``kind``, ``number``, ``seed``, ``state``, ``reason``,
            ``factor.<name>``, ``param.<path>``, every metric on record, ``fingerprint``.
        """
        import pandas as pd  # half a second that a status line need not pay

        rows = []
        for trial in self.trials:
            row: dict[str, Any] = {
                "cell": trial.cell.label,
                "kind": trial.kind,
                "number": trial.number,
                "seed": trial.seed,
                "state": trial.state,
                "reason": trial.reason,
            }
            row |= {f"factor.{name}": level for name, level in trial.cell.levels.items()}
            row |= {f"param.{path}": value for path, value in trial.params.items()}
            row |= trial.metrics
            rows.append(row | {"fingerprint": trial.fingerprint})
        frame = pd.DataFrame(rows)
        return frame.astype({"number": "Int64", "seed": "Int64"}) if rows else frame

    def attach_run(
        self,
        num_run: int,
        num_reused: int,
        num_failed: int,
        *,
        report_dir: str | None = None,
        tracking_uri: str | None = None,
        experiment: str | None = None,
    ) -> None:
        """Say what the invocation that ends with this result did, for `to_json`.

        Args:
            num_run: Trials it ran.
            num_reused: Trials that were finished before.
            num_failed: Trials that failed.
            report_dir: Where it writes the report.
            tracking_uri: Where it tracks.
            experiment: Its MLflow experiment.
        """
        self.invocation = Invocation(num_run, num_reused, num_failed, report_dir, tracking_uri, experiment)

    def to_json(self) -> dict[str, Any]:
        """Give the result as the JSON of ``run --json`` and ``report --format json``.

        Returns:
            JSON values; see `nlgraft.analysis.rendering.document`.
        """
        return result_document(self)

    def rows(self) -> list[list[str]]:
        """Give the comparison table of the main metric for a terminal, its header first."""
        return comparison_table(self, self.main_metric).plain()

    def effect_rows(self) -> list[list[str]]:
        """Give the effects on the main metric for a terminal, the header first; nothing without effects."""
        table = effects_table(self, self.main_metric)
        return [] if table is None else table.plain()

    def note(self) -> str:
        """Give the comparison table and the claims as Markdown, short enough for a note."""
        return short_note(self)

    def render(self, kind: str) -> str:
        """Write the report as text.

        Args:
            kind: ``md``, ``html``, ``latex``, ``csv`` or ``json``.

        Returns:
            The text of the report's main file.

        Raises:
            NlgraftError: There is no such format.
        """
        from nlgraft.analysis.rendering.report import (
            render,  # matplotlib and jinja2 only when something is drawn
        )

        return render(self, kind)

    def report(self, out: str | Path, formats: Sequence[str] = ("html", "md")) -> list[Path]:
        """Write the report to files.

        Args:
            out: Directory to write into; made when missing.
            formats: Any of ``html``, ``md``, ``latex``, ``csv``, ``json``.

        Returns:
            What was written.

        Raises:
            NlgraftError: There is no such format.
        """
        from nlgraft.analysis.rendering.report import (
            write_report,  # matplotlib and jinja2 only when something is drawn
        )

        return write_report(self, Path(out), formats)

    def _compare(self, a: CellResult, b: CellResult, metric: str) -> Comparison:
        key = (a.cell.label, b.cell.label, metric)
        if key not in self._compared:
            # every trial at once: the resamples are drawn once for a metric, not once for a pair
            trials = [trial for cell in self.cells for trial in cell.measured(metric).values()]
            self._comparer.prepare(metric, trials)
            left, right = a.measured(metric), b.measured(metric)
            found = self._comparer.compare(metric, a.cell.label, left, b.cell.label, right)
            self._compared[key] = found
        return self._compared[key]

    @cached_property
    def _compared(self) -> dict[tuple[str, str, str], Comparison]:
        return {}

    @cached_property
    def _comparer(self) -> Comparer:
        settings = self.study.analysis
        return Comparer(test=settings.test, samples=settings.samples, alpha=settings.alpha)

    @cached_property
    def _adjusted(self) -> dict[tuple[str, frozenset[str]], float | None]:
        """Holm-adjusted p-values of the declared family, by metric and pair of labels.

        ``all_cells``: one family per metric: every cell against the baseline, and the claims' pairs on that
        metric. ``claims``: one family: the claims' pairs.
        """
        if not self.is_corrected:
            return {}
        orderings = [claim for claim in self.study.claims if claim.is_ordering]
        claimed = [
            (claim.metric, self.cell(claim.better or ""), self.cell(claim.worse or "")) for claim in orderings
        ]
        if self.study.analysis.family == "claims":
            return self._adjust(claimed)
        adjusted: dict[tuple[str, frozenset[str]], float | None] = {}
        for name in self.metrics:
            against_baseline = [(name, cell, self.baseline) for cell in self.cells[1:]]
            adjusted |= self._adjust([*against_baseline, *(pair for pair in claimed if pair[0] == name)])
        return adjusted

    def _adjust(
        self, family: Iterable[tuple[str, CellResult, CellResult]]
    ) -> dict[tuple[str, frozenset[str]], float | None]:
        pairs = {(metric, frozenset((a.cell.label, b.cell.label))): (a, b, metric) for metric, a, b in family}
        raw = [self._compare(*pair).p for pair in pairs.values()]
        return dict(zip(pairs, holm(raw), strict=True))

    def _judge(self, claim: Claim) -> ClaimResult:
        direction = self.system.metrics[claim.metric].direction
        if claim.better is None or claim.worse is None:
            cell = self.cell(claim.cell or "")
            why_not = self._why_not(claim, cell)
            comparison = self._comparer.against_value(
                claim.metric, cell.cell.label, cell.measured(claim.metric), claim.value or 0.0
            )
            return judge_figure(claim, comparison, cell.mean(claim.metric), why_not=why_not)
        better, worse = self.cell(claim.better), self.cell(claim.worse)
        return judge_ordering(
            claim,
            self.compare(better.cell, worse.cell, metric=claim.metric),
            (better.mean(claim.metric), worse.mean(claim.metric)),
            direction=direction,
            alpha=self.study.analysis.alpha,
            is_corrected=self.is_corrected,
            why_not=self._why_not(claim, better),
        )

    def _why_not(self, claim: Claim, cell: CellResult) -> str:
        ours = next((trial.signature for trial in cell.measured(claim.metric).values()), None)
        return why_not_comparable(claim.signature, ours, self.is_constructed)


def collect(study: Study, store: ArtifactStore) -> StudyResult:
    """Read what the store knows of a study.

    Nothing runs and nothing need be complete: trials that have not ended are there as ``planned`` or
    ``running``.

    Args:
        study: The study.
        store: Where its trials are.

    Returns:
        The result so far.
    """
    busy = store.leases.busy()
    found = tuple(load_cell(study, cell, store, busy) for cell in cells(study))
    trials = [trial for cell in found for trial in (*cell.search, *cell.trials)]
    return StudyResult(study, load_system(study.system), found, read_provenance(trials, store))
