"""Results whose verdicts are corrected over the store's ledger, see ``docs/validity.md``.

The first verdict that is asked for enters the analysis, before it is shown. An analysis that asks what was
asked already, with the same answers, is not entered again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from nlgraft.analysis.data.ledger import EFFECTS, Asked, Entry, History, Segments, history, segments_of
from nlgraft.analysis.data.registration import SHOWN_DIGITS, Registration, register
from nlgraft.analysis.statistics.anytime import anytime_p
from nlgraft.analysis.statistics.budget import Budget, answered, record
from nlgraft.analysis.statistics.compared import ComparedResults
from nlgraft.analysis.statistics.comparison import Comparison
from nlgraft.analysis.statistics.effects import Effect
from nlgraft.analysis.statistics.equivalence import equal_p_at_any_time
from nlgraft.analysis.statistics.question import Question
from nlgraft.analysis.statistics.registered import Conformance, conformance_of
from nlgraft.basics.errors import StoreError
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.fingerprint import fingerprint
from nlgraft.study.data.design import gain_cells
from nlgraft.study.planning.looks import cell_key

_FEW = 2


@dataclass(frozen=True)
class Analysis:
    """An analysis of one set of test segments, as the ledger holds it.

    Attributes:
        entry: The entry with its answers.
        past: The entries that were there when it was answered.
        why_not_entered: Reason why the ledger lacks it; empty if it was entered.
    """

    entry: Entry
    past: History
    why_not_entered: str = ""

    @cached_property
    def earlier(self) -> dict[int, Entry]:
        """The analyses of the same segments that were shown before it, by number."""
        found = {}
        for number, one in self.past.entries.items():
            if replace(one, time=self.entry.time) == self.entry:
                break
            found[number] = one
        return found

    @cached_property
    def budget(self) -> Budget:
        """The error budget of the segments after this analysis."""
        budget = Budget(self.past.entries)
        budget.add(self.past.last + 1, self.entry)
        return budget

    @cached_property
    def hypotheses(self) -> set[tuple[object, ...]]:
        """What it asks."""
        return {one.hypothesis for one in self.entry.asked}

    def has(self, cells: Sequence[str]) -> bool:
        """True if it asks about these cells."""
        return any(sorted(one.cells) == sorted(cells) for one in self.entry.asked)


@dataclass(eq=False)
class RecordedResults(ComparedResults):
    """Results that enter the ledger of their store when their verdicts are asked for."""

    @cached_property
    def analyses(self) -> dict[str, Analysis]:
        """The analyses that these results are, by the first metric of each; entered when first asked for."""
        if self.store is None or not self.metrics:
            return {}
        return {entry.metrics[0]: self._enter(entry) for entry in self._entries()}

    @cached_property
    def registration(self) -> Conformance | None:
        """How they relate to the registration of their study; None if it is not registered."""
        if self.store is None:
            return None
        past = history(self.store, self._segments_of(self.main_metric))
        return conformance_of(self, self.store, self._keys, past)

    def register(self) -> Registration:
        """Register the study, or find the registration that froze the same.

        Raises:
            DataError: Text cannot be read.
        """
        assert self.store is not None
        return register(self, self.store, self._keys, self._segments_of(self.main_metric))

    def effects(self, metric: str | None = None) -> list[Effect]:
        """Estimate the effects as `ComparedResults.effects` does, corrected over the ledger."""
        effects = super().effects(metric)
        if not self.analyses:
            return effects
        return [
            replace(one, comparison=self.judged(self._answered(self._ledger_effect(one), one.comparison)))
            for one in effects
        ]

    def _ask(self, question: Question) -> Comparison:
        found = self._declared(question)
        if not self.analyses or found.is_exact:
            return found
        return self._answered(self._ledger_question(question), found)

    def _answered(self, asked: Asked, found: Comparison) -> Comparison:
        """Put the ledger's answer in the place of the study's own."""
        analysis = self._analysis_of(asked)
        if analysis is None:
            reason = "the study declares no question about its split"
            return _withheld(found, f"{asked.metric} is shown as a description: {reason}")
        answer = analysis.budget.answer(analysis.entry, asked)
        if answer.p is None and answer.basis == "declared":
            notes = (*found.notes, answer.reason)
            return replace(found, p_holm=None, p_equal_holm=None, basis="declared", notes=notes)
        if answer.p is None:
            return _withheld(found, answer.reason)
        p = None if asked.is_certain else answer.p
        note = ""
        if answer.basis == "afterthought":
            level = answer.share * analysis.entry.alpha
            note = (
                f"an afterthought, {answer.reason}: it is judged at the level {level:.2g} by a test that "
                "holds at every number of seeds; p (Holm) allows for that"
            )
        elif answer.share < 1:
            note = f"p (Holm) allows for earlier declarations, which left {answer.share:.2g} of the level"
        late = f"{answer.equal_reason}: 'equal' is judged as an afterthought" if answer.equal_reason else ""
        notes = (*found.notes, *filter(None, (note, late)))
        return replace(found, p_holm=p, p_equal_holm=answer.p_equal, basis=answer.basis, notes=notes)

    def _analysis_of(self, asked: Asked) -> Analysis | None:
        """Find the analysis that a question belongs to; a pair of cells that no report shows is entered."""
        for one in self.analyses.values():
            if asked.hypothesis in one.hypotheses:
                return one
        found = next((one for one in self.analyses.values() if asked.metric in one.entry.metrics), None)
        if found is None or found.has(asked.cells):
            return found
        if asked.cells not in self._further:
            self._further[asked.cells] = self._enter(replace(found.entry, asked=(asked,)))
        return self._further[asked.cells]

    @cached_property
    def _further(self) -> dict[tuple[str, ...], Analysis]:
        return {}

    def _enter(self, entry: Entry) -> Analysis:
        assert self.store is not None
        try:
            return Analysis(*record(self.store, entry))
        except (OSError, StoreError) as error:
            past = history(self.store, entry.segments)
            return Analysis(answered(entry, past), past, str(error))

    def _entries(self) -> list[Entry]:
        """List what these results ask, one entry for each set of segments."""
        main = self.main_metric
        families = self._asked_of(dict.fromkeys([main, *(one.metric for one in self._claimed)]))
        by_segments: dict[Segments, list[Asked]] = {}
        for name, questions in families.items():
            segments = self._segments_of(main if name == "claims" else name)
            by_segments.setdefault(segments, []).extend(self._ledger_question(one, name) for one in questions)
        own = by_segments.setdefault(self._segments_of(main), [])
        own += [self._ledger_effect(one, f"{EFFECTS}{main}") for one in super().effects()]
        own += self._shown_beside(own)
        entries = [self._entry(segments, asked) for segments, asked in by_segments.items()]
        return [one for one in entries if one.asked or one.alone]

    def _alone(self, asked: Iterable[Asked]) -> dict[str, tuple[int, ...]]:
        """List the seeds of each cell that a report shows and that are in no question about the cell."""
        found: dict[str, set[int]] = {}
        for cell in self.cells:
            key = self._keys[cell.cell.label]
            found.setdefault(key, set()).update(cell.measured(self.main_metric))
        for one in asked:
            for key in one.cells:
                found[key] -= set(one.seeds)
        return {key: tuple(sorted(seeds)) for key, seeds in found.items() if seeds}

    def _shown_beside(self, declared: Sequence[Asked]) -> list[Asked]:
        """List comparisons that a report shows though the study's family leaves them out."""
        base = self.baseline.cell.label
        pairs = [(found.cell.label, base) for found in self.cells[1:]]
        for curve in gain_cells(self.study, [found.cell for found in self.cells]).values():
            pairs += [(a.label, b.label) for _, a, b in curve]
        asked = [self._ledger_question(Question(self.main_metric, pair)) for pair in pairs]
        known = {one.hypothesis for one in declared}
        return list({one.hypothesis: one for one in asked if one.hypothesis not in known}.values())

    def _entry(self, segments: Segments, asked: Iterable[Asked]) -> Entry:
        found = tuple(asked)
        keys = self._keys
        main = self.main_metric
        is_main = self._segments_of(main) == segments
        deciding = main if is_main else found[0].metric
        scored = [
            name
            for name, metric in self.system.metrics.items()
            if metric.split is not None and not metric.is_time and self._segments_of(name) == segments
        ]
        return Entry(
            time=timestamp(),
            study=self.study.name,
            variant=self.study.variant,
            system=self.study.system,
            segments=segments,
            baseline=keys[self.baseline.cell.label],
            cells=tuple(dict.fromkeys(keys.values())),
            metrics=tuple(dict.fromkeys([deciding, *scored])),
            plan=self._plan,
            alpha=self.study.analysis.alpha,
            asked=found,
            alone=self._alone(found) if is_main else {},
            **self._registered,
        )

    @property
    def _registered(self) -> dict[str, Any]:
        """What an entry says of the registration."""
        own = self.registration
        if own is None or not own.is_own:
            return {}
        deviations = tuple(one.text for one in own.deviations)
        return {"registration": own.registration.digest[:SHOWN_DIGITS], "deviations": deviations}

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Digests of the cells by label: of the config and, where values are searched, of the search."""
        keys = {}
        search = self.study.search
        for found in self.cells:
            key = cell_key(self.study, found.cell, {})
            if search is not None:
                key = fingerprint({"cell": key, "search": search.model_dump(mode="json")})
            keys[found.cell.label] = key
        return keys

    @property
    def _plan(self) -> str:
        """What determines a p-value apart from the question."""
        study, settings = self.study, self.study.analysis
        if study.is_anytime:
            return "any time"
        seeds: Sequence[int] = sorted(study.seeds)
        looks = ""
        if study.planned_looks is not None:
            seeds, looks = study.seeds, f", looks {list(study.planned_looks.looks)}"
        return f"seeds {list(seeds)}{looks}, {settings.test}, {settings.samples} resamples"

    def _ledger_question(self, question: Question, family: str | None = None) -> Asked:
        found = self._compared(question)
        is_figure = len(question.cells) == 1
        return replace(
            self._ledger_asked(found, question.cells, family),
            null=question.value if is_figure else question.null,
            margin=question.margin,
            second_metric=question.second_metric,
        )

    def _ledger_effect(self, effect: Effect, family: str | None = None) -> Asked:
        """Describe an effect by its cells, those with positive weights first, which tells effects apart."""
        terms = sorted(effect.contrast.terms, key=lambda term: (-term[0], term[1].label))
        asked = self._ledger_asked(effect.comparison, [cell.label for _, cell in terms], family)
        return replace(asked, is_effect=True)

    def _ledger_asked(self, found: Comparison, labels: Sequence[str], family: str | None) -> Asked:
        cells = tuple(self._keys[label] for label in labels)
        seeds = set(found.seeds)
        left_out = self._seen.get(tuple(sorted(cells)), set()) - seeds
        # Seeds of one cell may be chosen by its scores, though no comparison was ever shown.
        early = set(self.study.seeds[: self.study.first_seeds])
        left_out |= {seed for cell in cells for seed in self._shown.get(cell, ())} - early
        p_anytime = None
        if found.difference is not None and found.seed_variance is not None:
            noise = (found.seed_variance, found.segment_variance)
            p_anytime = anytime_p(found.difference - found.null, *noise, found.num_seeds)
        signature = next(
            (one.signature for label in labels for one in self.cell(label).measured(found.metric).values()),
            None,
        )
        return Asked(
            metric=found.metric,
            cells=cells,
            labels=tuple(labels),
            signature=signature,
            family=family,
            seeds=found.seeds,
            left_out=tuple(sorted(left_out)),
            is_complete=self._is_complete(seeds, left_out),
            is_judged=not found.open_because and found.num_seeds >= _FEW,
            is_certain=found.is_exact,
            difference=found.difference,
            p=found.p,
            p_anytime=p_anytime,
            equal_margin=found.margin,
            p_equal=found.p_equal,
            p_equal_anytime=equal_p_at_any_time(found),
        )

    def _is_complete(self, seeds: set[int], left_out: set[int]) -> bool:
        if self.study.is_anytime:
            return not left_out
        if self.study.planned_looks is not None:
            return any(seeds == set(self.study.seeds[:look]) for look in self.study.planned_looks.looks)
        return seeds == set(self.study.seeds)

    @cached_property
    def _seen(self) -> dict[tuple[str, ...], set[int]]:
        """Seeds that were seen before of the same cells, where a test is to hold at any time."""
        found: dict[tuple[str, ...], set[int]] = {}
        if self.study.is_anytime:
            for entry in self._past.entries.values():
                for one in entry.asked:
                    found.setdefault(tuple(sorted(one.cells)), set()).update(one.seeds)
        return found

    @cached_property
    def _shown(self) -> dict[str, set[int]]:
        """Seeds of each cell, by its digest, that were shown under another plan."""
        found: dict[str, set[int]] = {}
        for entry in self._past.entries.values():
            if entry.plan != self._plan:
                for cell, seeds in entry.alone.items():
                    found.setdefault(cell, set()).update(seeds)
                for one in entry.asked:
                    for cell in one.cells:
                        found.setdefault(cell, set()).update(one.seeds)
        return found

    @cached_property
    def _past(self) -> History:
        """The entries on the segments of the main metric before these results entered."""
        if self.store is None:
            return History({})
        return history(self.store, self._segments_of(self.main_metric))

    def _segments_of(self, metric: str) -> Segments:
        """Describe what a metric is scored on: source and reference, or the data if lines are not stored."""
        split = self.system.metrics[metric].split or self.system.metrics[self.main_metric].split or "test"
        place = metric.partition("/")[0] if self.system.metrics[metric].split else split
        if (metric_place := (place, split)) not in self._lines:
            found = self._read_lines(place) or self._read_lines(split)
            self._lines[metric_place] = segments_of(found, split, self.study.data)
        return self._lines[metric_place]

    @cached_property
    def _lines(self) -> dict[tuple[str, str], Segments]:
        return {}

    def _read_lines(self, split: str) -> list[str]:
        """Read the lines that a trial was scored on, the first of the first cell that has them stored."""
        for cell in self.cells:
            trial = next((one for one in cell.trials if one.state == "finished"), None)
            if trial is not None and (lines := trial.scored_lines(split)):
                return lines
        return []


def _withheld(found: Comparison, reason: str) -> Comparison:
    """Withhold the verdict of a comparison."""
    notes = (*found.notes, f"no verdict: {reason}")
    return replace(
        found,
        p_holm=None,
        p_equal_holm=None,
        basis="described",
        open_because=found.open_because or reason,
        notes=notes,
    )
