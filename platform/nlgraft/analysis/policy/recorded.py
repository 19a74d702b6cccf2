"""Results whose verdicts follow the rules over the store's ledger, see ``docs/validity.md``.

The first verdict that is asked for enters the analysis, before it is shown. An analysis that asks what was
asked already, with the same answers, is not entered again.
"""

from __future__ import annotations

import math
import re
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Self

from nlgraft.analysis.data.ledger import (
    EFFECTS,
    VERSION,
    Entry,
    History,
    Hypothesis,
    LedgerQuestion,
    NoisePrior,
    Plan,
    Segments,
    Training,
    history,
    output_digest,
    record,
    training_of,
)
from nlgraft.analysis.data.loading import scored_segments
from nlgraft.analysis.data.published_noise import published_noise
from nlgraft.analysis.data.registration import SHOWN_DIGITS, Registration, register
from nlgraft.analysis.data.results import Results
from nlgraft.analysis.data.trials import CellResult, cached_method
from nlgraft.analysis.estimates.comparer import Comparer
from nlgraft.analysis.estimates.comparison import SIGNS, Comparison, Question, Term
from nlgraft.analysis.estimates.effects import Contrast, Effect, GainCurve, contrasts
from nlgraft.analysis.estimates.limits import limited
from nlgraft.analysis.estimates.noise_prior import (
    StudyVariance,
    applicable,
    paired_kinds,
    prior_from,
    published_prior,
    study_variance,
)
from nlgraft.analysis.estimates.searched_settings import CellSettings, searched_settings
from nlgraft.analysis.estimates.stability import Stability, stability
from nlgraft.analysis.estimates.trivial import Trivial, has_learned, trivial_output
from nlgraft.analysis.policy.claims import ClaimResult, signatures_differ
from nlgraft.analysis.policy.registered import Conformance, conformance_of
from nlgraft.analysis.policy.rules import Rules, answered, by_rules, exploratory, over_looks
from nlgraft.basics.errors import StoreError
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.fingerprint import dotted, fingerprint
from nlgraft.study.data.claim import Claim, claims_of
from nlgraft.study.data.design import Cell, axes_of, gain_cells
from nlgraft.study.planning.selection import cell_digest, cell_key

if TYPE_CHECKING:
    import pandas as pd

_SAMPLES_AT_LEVEL = 10
"""Resamples expected beyond a difference whose p-value just passes Holm's first step."""


@dataclass(frozen=True)
class Analysis:
    """An analysis of one set of test segments, as the ledger holds it.

    Attributes:
        entry: The entry with its answers.
        past: The entries that were there when it was answered.
        rules: The rules on the segments after it.
        why_not_entered: Reason why the ledger lacks it; empty if it was entered.
    """

    entry: Entry
    past: History
    rules: Rules
    why_not_entered: str = ""

    @cached_property
    def earlier(self) -> dict[int, Entry]:
        """The analyses of the same segments that were shown before it, by number."""
        entries = {}
        for number, entry in self.past.entries.items():
            if entry == self.entry:
                break
            if entry.has_compared:
                entries[number] = entry
        return entries

    @cached_property
    def questions(self) -> dict[Hypothesis, LedgerQuestion]:
        """What it asks."""
        return {question.hypothesis: question for question in self.entry.asked}


@dataclass(frozen=True)
class Lines:
    """Test segments, and what the ledger held of them before these results entered.

    Attributes:
        segments: The segments.
        past: The entries on them.
        rules: The rules on them.
    """

    segments: Segments
    past: History
    rules: Rules


@dataclass(eq=False)
class RecordedResults(Results):
    """Results that enter the ledger of their store when their verdicts are asked for."""

    @property
    def analyses(self) -> dict[str, Analysis]:
        """The analyses that these results are, by the first metric of each; entered when first asked for."""
        return {} if self.store is None else self._analyses

    @cached_property
    def _analyses(self) -> dict[str, Analysis]:
        """The same, without a store as if nothing else had been asked."""
        entries = self._entries() if self.metrics else []
        return {entry.metrics[0]: self._enter(entry) for entry in entries}

    def alone(self, **changes: Any) -> Self:
        """Return the same results without the ledger, as if nothing else had been asked; see `view`."""
        view = self.view(store=None, **changes)
        view.prior_of = self.prior_of
        return view

    def view(self, **changes: Any) -> Self:
        """Return the results with other attributes, and the same resamples."""
        view = replace(self, **changes)
        view._comparer = self._comparer
        return view

    def declare(self) -> None:
        """Enter what the study asks, before scores are shown, unless all of it has been entered."""
        if self.store is not None and self.metrics:
            for entry in self._entries():
                if self._lines_of(entry.metrics[0]).rules.declarable(entry):
                    self._enter(entry)

    def enter_seen(
        self,
        study: str,
        variant: str,
        seeds: tuple[int, ...],
        difference: float,
    ) -> None:
        """Enter that the last cell was seen beside the baseline on these seeds, which declares nothing.

        Args:
            study: Name of the study that showed it.
            variant: Its name with overrides.
            seeds: The seeds.
            difference: Mean difference on the main metric.
        """
        assert self.store is not None
        lines = self._lines_of(self.main_metric)
        [*_, question] = self.cell_questions(self.main_metric)
        seen = LedgerQuestion(
            metric=question.metric,
            cells=tuple(self._keys[label] for label in question.labels),
            labels=question.labels,
            seeds=seeds,
            is_judged=False,
            difference=difference,
        )
        entry = replace(
            self._entry(lines.segments, (seen,)),
            study=study,
            variant=variant,
            plan=Plan(seeds, ()),
            scores={},
        )
        record(self.store, entry)

    def frame(self) -> pd.DataFrame:
        """Return all trials as a data frame, see `Results.frame`; their scores enter the ledger first."""
        _ = self.analyses
        return super().frame()

    def prior_of(self, metric: str, labels: Sequence[str]) -> NoisePrior | None:
        """What the store's earlier studies said when the first question about the cells was asked."""
        if self.store is None or (kinds := paired_kinds([self.trainings[label] for label in labels])) is None:
            return None
        priors = self._lines_of(metric).rules.priors
        compared = metric, tuple(sorted(self._keys[label] for label in labels))
        return priors[compared] if compared in priors else self._present_prior(metric, kinds)

    @cached_method
    def _present_prior(self, metric: str, kinds: tuple[str, str]) -> NoisePrior | None:
        """What earlier studies, or published ones, say now of two kinds of training."""
        if self.study.analysis.prior == "none":
            return None
        entries = self._lines_of(metric).past.whole.values()
        # A variant of this study shares its trials, so that its noise would be counted twice.
        others = [entry for entry in entries if entry.study != self.study.name]
        seeds = self.own_plan.seeds
        if prior := prior_from(others, metric, kinds, dict.fromkeys(self._keys.values(), seeds)):
            return prior
        trainings = [training for training in self.trainings.values() if training.kind in kinds]
        judged = dict.fromkeys(self._configs.values(), seeds)
        size = self.num_segments(metric)
        return published_prior(published_noise(), self.study.system, metric, trainings, size, judged)

    def num_segments(self, metric: str) -> int:
        """Count what a metric is scored on: test lines or documents; 1 where the store does not hold them."""
        return self._lines_of(metric).segments.num

    @cached_property
    def registration(self) -> Conformance | None:
        """How they relate to the registration of their study; None if it is not registered."""
        if self.store is None:
            return None
        return conformance_of(self, self.store, self._configs, self._lines_of(self.main_metric).past)

    def register(self) -> Registration:
        """Register the study, or find the registration that froze the same.

        Raises:
            DataError: Text cannot be read.
        """
        assert self.store is not None
        return register(self, self.store, self._lines_of(self.main_metric).segments)

    def _difference(
        self,
        metric: str,
        labels: Sequence[str],
        null: float = 0.0,
        second_metric: str | None = None,
    ) -> Question:
        """Ask for the difference of two cells, or of two differences."""
        terms = tuple(
            Term(sign, self.cell(label), (second_metric if place else None) or metric)
            for place, (sign, label) in enumerate(zip(SIGNS, labels, strict=False))
        )
        a, b = labels if len(terms) == 2 else (" over ".join(pair) for pair in (labels[:2], labels[2:]))
        # The study's margin is that of differences which are tested against zero.
        margin = self.margin(metric) if null == 0 and second_metric is None else None
        return Question(metric, a, b, terms, null, margin, second_metric)

    def _effect(self, metric: str, contrast: Contrast) -> Question:
        """Ask for an effect."""
        base = "both effects added" if len(contrast.levels) > 1 else "the factor's baseline"
        terms = tuple(Term(weight, self.cell(cell), metric) for weight, cell in contrast.terms)
        return Question(metric, contrast.label, base, terms, margin=self.margin(metric), is_effect=True)

    @cached_property
    def _contrasts(self) -> list[Contrast]:
        """The effects of crossed factors."""
        return contrasts(axes_of(self.study), [cell.cell for cell in self.cells])

    @cached_method
    def _compared(self, question: Question) -> Comparison:
        """Compare at the looks of its cells."""
        # Every trial at once: resamples are drawn once per metric, not once per pair.
        for metric in {term.metric for term in question.terms}:
            trials = [trial for cell in self.cells for trial in cell.measured(metric).values()]
            self._comparer.prepare(metric, trials)
        cells = [self._keys[label] for label in question.labels]
        plan = self._lines_of(question.metric).rules.plan(cells, self.own_plan)
        compared = over_looks(plan, partial(self._over_seeds, question))
        return self._limited(compared, question.terms)

    @cached_property
    def places(self) -> dict[str, int]:
        """Places of the cells by label."""
        return {cell.label: place for place, cell in enumerate(self.cells)}

    def _over_seeds(self, question: Question, seeds: Sequence[int] | None) -> Comparison:
        """Compare over some seeds, or all finished ones, with what earlier studies say of their noise."""
        metric, labels = question.metric, question.labels
        # Draws of t are not symmetric: for one interval from either side the study's last cell is positive.
        last = max(question.terms, key=lambda term: self.places[term.cell.label])
        sign = math.copysign(1.0, last.weight)
        sides = [(sign * term.weight, term.cell.measured(term.metric, seeds)) for term in question.terms]
        is_of_one = {term.metric for term in question.terms} == {metric}
        prior = usable = self.prior_of(metric, labels) if is_of_one else None
        kinds = paired_kinds([self.trainings[label] for label in labels]) if prior else None
        if prior and kinds:
            common = tuple(seed for seed in sides[0][1] if all(seed in trials for _, trials in sides))
            usable = applicable(prior, self._noise(metric, kinds, common), len(common))
        compared = self._comparer.contrast(
            metric, question.a, question.b, sides, sign * question.null, usable
        )
        compared = replace(compared, prior=prior, is_unlike=usable != prior, margin=question.margin)
        return compared if sign > 0 else compared.negated()

    @cached_method
    def _noise(
        self,
        metric: str,
        kinds: tuple[str, str],
        seeds: tuple[int, ...],
    ) -> StudyVariance:
        """Pool the noise of the whole study."""
        scores = {cell.label: cell.values(metric, seeds) for cell in self.cells}
        return study_variance(self.trainings, scores, kinds)

    @cached_property
    def trainings(self) -> dict[str, Training]:
        """What varies with the seed, by the cells' labels."""
        return {cell.label: training_of(self.study, cell.cell) for cell in self.cells}

    def margin(self, metric: str) -> float | None:
        """The difference on a metric that the study declares too small to matter."""
        return self.study.analysis.margin.get(metric)

    @cached_property
    def own_plan(self) -> Plan:
        """When the study's own questions are answered."""
        return Plan(self.study.look_seeds, self.study.looks)

    def _limited(self, comparison: Comparison, terms: Sequence[Term]) -> Comparison:
        """Leave open what no number of seeds can decide, and name the stages that were trained once."""
        metric = self.system.metrics[comparison.metric]
        comparison = limited(
            replace(comparison, unit=metric.unit), metric, terms, self.provenance.crowded, self.main_metric
        )
        is_main = comparison.metric == self.main_metric
        if comparison.open_because or not is_main or not all(self.unlearned(term.cell) for term in terms):
            return comparison
        which = "neither cell has" if len(terms) == 2 else "none of its cells has"
        return replace(comparison, open_because=f"{which} learned")

    @cached_property
    def trivial(self) -> Trivial | None:
        """The best trivial output on the main metric."""
        return trivial_output(self.cells, self.main_metric)

    def unlearned(self, cell: CellResult) -> bool:
        """True if a cell is on average hardly better than a trivial output, or worse."""
        mean = cell.mean(self.main_metric)
        return (
            self.trivial is not None
            and mean is not None
            and not has_learned(mean, self.trivial, self.main_metric)
        )

    @cached_property
    def searched_settings(self) -> list[CellSettings]:
        """Which searched settings mattered, by cell; a description, see `estimates.searched_settings`."""
        cells = self.cells
        return [settings for cell in cells if (settings := searched_settings(self, cell)) is not None]

    @cached_property
    def stabilities(self) -> list[Stability]:
        """How stable the finished cells are on the main metric."""
        main = self.main_metric
        if main not in self.metrics:
            return []
        floor = self.trivial.value if self.trivial is not None and main.endswith("/accuracy") else 0.0
        metric = self.metrics[main]
        return [
            examined for cell in self.cells if (examined := stability(cell, main, metric, floor)) is not None
        ]

    @cached_property
    def samples(self) -> int:
        """Number of resamples: more than the study asks for where its family is large.

        The smallest p-value is 1 / (samples + 1), and Holm multiplies it by the size of the family.
        """
        settings = self.study.analysis
        largest = max(map(len, self._families.values()), default=0)
        # With too few resamples Holm could never reach alpha in a large family.
        return max(settings.samples, math.ceil(_SAMPLES_AT_LEVEL * largest / settings.alpha))

    @cached_property
    def _comparer(self) -> Comparer:
        return Comparer(samples=self.samples, alpha=self.alpha)

    @cached_property
    def claimed(self) -> dict[Hashable, Question]:
        """The questions of the claims, by what they ask."""
        questions = map(self._claim_question, claims_of(self.study))
        return {question.key: question for question in questions}

    @cached_property
    def _families(self) -> dict[str, list[Question]]:
        """The questions that are corrected together, by the name of their family: a metric's, or ``claims``.

        ``all_cells``: one family for the main metric and each of the claims' metrics, of every cell against
        the baseline and the claims on that metric. ``claims``: one family of the claims. A family is what the
        study declares, whether it has been run or not; there is no question about a metric that a finished
        cell does not have.
        """
        claimed = [*self.claimed.values()]
        families = {"claims": claimed}
        if self.study.analysis.family == "all_cells":
            families = {
                name: [
                    *self.cell_questions(name),
                    *(question for question in claimed if question.metric == name),
                ]
                for name in dict.fromkeys([self.main_metric, *(question.metric for question in claimed)])
            }
        return {
            name: list(
                {
                    question.key: question
                    for question in family
                    if not any(term.cell.lacks(term.metric) for term in question.terms)
                }.values()
            )
            for name, family in families.items()
        }

    def cell_questions(self, metric: str) -> list[Question]:
        """Ask for every cell's difference from the baseline."""
        return [self._difference(metric, (cell.label, self.baseline.label)) for cell in self.cells[1:]]

    def _claim_question(self, claim: Claim) -> Question:
        sign = -1 if self.system.metrics[claim.metric].direction == "maximize" else 1
        labels = [self.cell(text).label for text in claim.cells]
        return self._difference(claim.metric, labels, sign * claim.margin, claim.worse_metric)

    def compare(
        self,
        a: str | Cell,
        b: str | Cell = "baseline",
        *,
        metric: str | None = None,
    ) -> Comparison:
        """Compare two cells.

        Args:
            a: The first cell, or a text that names it.
            b: The cell to subtract.
            metric: A metric of the system; the main metric when left out.

        Returns:
            ``a`` minus ``b``. ``p_holm`` is set for comparisons of the study's declared family.

        Raises:
            NlgraftError: The system has no such metric.
            StudyError: The study has no such cell.
        """
        labels = (self.cell(a).label, self.cell(b).label)
        return self._judged(self._difference(self.metric_named(metric), labels))

    def effects(self, metric: str | None = None) -> list[Effect]:
        """Estimate the main effect of each level and the interactions of two.

        Args:
            metric: A metric of the system; the main metric when left out.

        Returns:
            Main effects, then interactions; ``p_holm`` is adjusted over all of them. Empty where the design
            crosses no factors: one_factor, leave_one_out.

        Raises:
            NlgraftError: The system has no such metric.
        """
        metric = self.metric_named(metric)
        return [
            Effect(contrast, self._judged(self._effect(metric, contrast))) for contrast in self._contrasts
        ]

    def gains(self, metric: str | None = None) -> list[GainCurve]:
        """Compare levels with their factor's baseline at each level of ``analysis.gains_over``.

        Args:
            metric: A metric of the system; the main metric when left out.

        Returns:
            One curve for each level; empty where the study names no factor.

        Raises:
            NlgraftError: The system has no such metric.
        """
        pairs = gain_cells(self.study, [cell.cell for cell in self.cells])
        return [
            GainCurve(label, tuple((level, self.compare(a, b, metric=metric)) for level, a, b in level_pairs))
            for label, level_pairs in pairs.items()
        ]

    @cached_property
    def claims(self) -> list[ClaimResult]:
        """The answer to every claim of the study, in its order."""
        results = []
        for claim in claims_of(self.study):
            cells = [self.cell(text) for text in claim.cells]
            signatures = (trial.signature for trial in cells[0].measured(claim.metric).values())
            why_not = signatures_differ(claim.signature, next(signatures, None))
            other_data = claim.other_data(self.study.data)
            results.append(
                ClaimResult(
                    claim=claim,
                    comparison=self._judged(self._claim_question(claim)),
                    values=tuple(
                        cell.mean(metric) for cell, metric in zip(cells, claim.metrics, strict=True)
                    ),
                    direction=self.system.metrics[claim.metric].direction,
                    alpha=self.alpha,
                    other_data=other_data,
                    why_not=f"other data: {other_data}" if other_data else why_not,
                    has_run=all(cell.has_started for cell in cells),
                )
            )
        return results

    @cached_method
    def _judged(self, question: Question) -> Comparison:
        """Compare as the rules have it, and write the verdict into it."""
        answer = self._answered(question)
        # "better" says nothing of a difference that is tested against a margin, or is left to claims.
        if question.null or (answer.basis == "exploratory" and self._is_left_to_claims(question)):
            return answer
        is_up = self.system.metrics[question.metric].direction == "maximize"
        return answer.judged(self.alpha, is_up=is_up)

    def against_baseline(self, metric: str | None = None) -> list[Comparison]:
        """Compare every other cell with the baseline, as `compare` does."""
        return [self.compare(cell.cell, metric=metric) for cell in self.cells[1:]]

    def _answered(self, question: Question) -> Comparison:
        compared, hypothesis = self._compared(question), self._ledger_question(question).hypothesis
        if not self._analyses:
            return compared
        analysis = next((each for each in self._analyses.values() if hypothesis in each.questions), None)
        if analysis is not None:
            family = analysis.questions[hypothesis].family
            members = [each for each in analysis.entry.asked if family and each.family == family]
            size = sum(not each.is_certain for each in members)
            compared = replace(compared, family=(size, sum(bool(each.looks) for each in members)))
        if compared.is_exact:  # certain, and no part of any correction
            return compared
        if analysis is None:
            return self._exploratory(question, "the study does not declare it")
        entered = analysis.questions[hypothesis]
        answer = analysis.rules.answer(analysis.entry, entered)
        if answer.basis == "exploratory":
            return self._exploratory(question, answer.reason)
        plan = analysis.rules.plan(entered.cells, self.own_plan)
        if entered.family is None and compared.p is not None:
            note = f"not in the family '{self.study.analysis.family}' that the study corrects for"
            compared = compared.noted(note)
        compared = by_rules(compared, answer, plan, analysis.entry.alpha)
        if set(entered.cells) & self._renewed:
            note = "its text or the code of its stages is not that of an earlier analysis"
            compared = compared.noted(note)
        return compared

    def _is_left_to_claims(self, question: Question) -> bool:
        """True if the study asks about the first cell in claims alone, and not this."""
        if self.study.analysis.family != "claims" or question.is_effect:
            return False
        is_claimed = any(question.labels[0] in claimed.labels for claimed in self.claimed.values())
        return is_claimed and question.key not in self.claimed

    def _exploratory(self, question: Question, reason: str) -> Comparison:
        """Compare over all finished seeds, whatever the looks."""
        compared = self._limited(self._over_seeds(question, None), question.terms)
        if self._is_left_to_claims(question):
            return exploratory(compared, "no verdict here: what the study asks about it stands in its claims")
        # A score on dev asks for no fresh test lines.
        is_on_test = question.metric.startswith("test")
        where = "in a claim, " if self.study.analysis.family == "claims" else ""
        advice = f"; declare it {where}on test lines that nobody has scored: {self._command}"
        return exploratory(compared, f"exploratory, no verdict: {reason}{advice if is_on_test else ''}")

    @cached_property
    def _command(self) -> str:
        """The command that would declare the study's questions on fresh test lines."""
        paths = [path for path, _ in dotted(self.study.data) if ".limits." not in path]
        texts = [match[0] for path in paths if (match := re.match(r"(?:\w+\.)*?test\w*", path))]
        # What a model is pretrained on may have test lines of its own.
        texts.sort(key=lambda text: not text.startswith(("downstream.", "task.")))
        return f"nlgraft register {self.study.name} data.{next(iter([*texts, *paths]), 'test')}=..."

    @cached_property
    def _renewed(self) -> set[str]:
        """Digests of the cells whose settings were seen before, with other text or versions of stages."""
        first = {}
        for entry in self._lines_of(self.main_metric).past.entries.values():
            for cell, config in entry.configs.items():
                first.setdefault(config, cell)
        pairs = [(self._keys[label], config) for label, config in self._configs.items()] if first else []
        return {key for key, config in pairs if first.get(config, key) != key}

    def _enter(self, entry: Entry) -> Analysis:
        """Judge an analysis, and enter it into the ledger if there is one."""
        past, why_not = self._lines_of(entry.metrics[0]).past, ""
        rules = Rules([*past.entries.values(), entry])
        entry = answered(entry, rules)
        if self.store is not None and entry not in past.entries.values():
            try:
                record(self.store, self._documented(entry))
            # A store that is read only can still be reported on; the report says that it was not entered.
            except (OSError, StoreError) as error:
                why_not = str(error)
        return Analysis(entry, past, rules, why_not)

    def _documented(self, entry: Entry) -> Entry:
        """Add to an entry what later analyses need to know."""
        keys, place = self._keys, entry.metrics[0].partition("/")[0]
        metrics = {question.metric for question in entry.asked} - {entry.metrics[0]}
        documented = replace(
            entry,
            outputs={
                keys[cell.label]: tuple(
                    output_digest(texts[0])
                    for trial in cell.finished
                    if (texts := trial.read_texts(place)) is not None
                )
                for cell in self.cells
            },
            further_scores={metric: self._scores(metric) for metric in metrics},
            winners=tuple(
                cell_digest(self.study, cell.cell, cell.params) for cell in self.cells if cell.params
            ),
            trainings={keys[label]: training for label, training in self.trainings.items()},
        )
        conformance = self.registration
        if conformance is None:
            return documented
        deviations = tuple(deviation.text for deviation in conformance.deviations)
        registration = conformance.registration.digest[:SHOWN_DIGITS]
        return replace(documented, registration=registration, deviations=deviations)

    def _entries(self) -> list[Entry]:
        """List what these results ask, one entry for each set of segments."""
        main = self.main_metric
        by_segments: dict[Segments, list[LedgerQuestion]] = {}
        for name, questions in self._families.items():
            segments = self._lines_of(main if name == "claims" else name).segments
            by_segments.setdefault(segments, []).extend(
                self._ledger_question(question, name) for question in questions
            )
        # Lines that no family is about are entered as well: scores on them are shown.
        for name in (main, *(name for name in self._scored if name.startswith("test"))):
            by_segments.setdefault(self._lines_of(name).segments, [])
        on_main = by_segments[self._lines_of(main).segments]
        effects = (self._effect(main, contrast) for contrast in self._contrasts)
        on_main += [self._ledger_question(effect, f"{EFFECTS}{main}") for effect in effects]
        # A report shows comparisons that the study's family leaves out, too.
        shown = self.cell_questions(main)
        for curve in gain_cells(self.study, [cell.cell for cell in self.cells]).values():
            shown += [self._difference(main, (a.label, b.label)) for _, a, b in curve]
        beside = {question.hypothesis: question for question in map(self._ledger_question, shown)}
        for question in on_main:
            beside.pop(question.hypothesis, None)
        on_main += beside.values()
        return [self._entry(segments, tuple(questions)) for segments, questions in by_segments.items()]

    def _entry(self, segments: Segments, questions: tuple[LedgerQuestion, ...]) -> Entry:
        keys, main = self._keys, self.main_metric
        is_main = self._lines_of(main).segments == segments
        scored = [name for name in self._scored if self._lines_of(name).segments == segments]
        deciding = main if is_main else questions[0].metric if questions else scored[0]
        return Entry(
            version=VERSION,
            time=timestamp(),
            study=self.study.name,
            variant=self.study.variant,
            system=self.study.system,
            segments=segments,
            baseline=keys[self.baseline.label],
            cells=tuple(dict.fromkeys(keys.values())),
            metrics=tuple(dict.fromkeys([deciding, *scored])),
            plan=self.own_plan,
            alpha=self.alpha,
            asked=questions,
            scores=self._scores(deciding),
            configs={}
            if self.store is None
            else {keys[label]: config for label, config in self._configs.items()},
        )

    @property
    def _scored(self) -> list[str]:
        """The metrics of splits, but times."""
        return [name for name, metric in self.metrics.items() if metric.split and not metric.is_time]

    def _scores(self, metric: str) -> dict[str, dict[int, float]]:
        return {self._keys[cell.label]: cell.values(metric) for cell in self.cells}

    @cached_property
    def _configs(self) -> dict[str, str]:
        """Digests of the cells' settings by label, with those of the search."""
        configs = {cell.label: cell_key(self.study, cell.cell) for cell in self.cells}
        if self.study.search is None:
            return configs
        search = self.study.search.model_dump(mode="json")
        return {label: fingerprint({"cell": config, "search": search}) for label, config in configs.items()}

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Digests of the cells by label: of the trials, or of an earlier cell that has the same scores.

        A stage whose version was raised, or a metric that was added, asks nothing new if all scores are the
        same. Without a store labels will do.
        """
        if self.store is None:
            return {cell.label: cell.label for cell in self.cells}
        keys = {cell.label: cell_digest(self.study, cell.cell) for cell in self.cells}
        if self.study.search is not None:
            # Without searched values, which some arms alone read, cells may be equal.
            for label, key in keys.items():
                keys[label] = fingerprint({"cell": key, "searched": self._configs[label]})
        main, own_keys = self.main_metric, {*keys.values()}
        scores = [
            (cell, values, entry.configs.get(cell))
            for entry in self._lines_of(main).past.entries.values()
            if entry.metrics[0] == main
            for cell, values in entry.scores.items()
            if cell not in own_keys
        ]
        for cell in self.cells if scores else ():
            values = cell.values(main)
            config = self._configs[cell.label]
            # The same settings come first: their scores are the likeliest to be the same question.
            alike = sorted(scores, key=lambda seen: seen[2] != config)
            for key, others, settings in alike:
                common = values.keys() & others.keys()
                # One score may tie by chance, between cells of unlike settings.
                is_enough = len(common) >= (1 if settings == config else 2)
                if is_enough and all(values[seed] == others[seed] for seed in common):
                    keys[cell.label] = key
                    break
        return keys

    def _ledger_question(self, question: Question, family: str | None = None) -> LedgerQuestion:
        """Describe a question and its answer."""
        compared = self._compared(question)
        scores = (term.cell.measured(question.metric).values() for term in question.terms)
        return LedgerQuestion(
            metric=question.metric,
            cells=tuple(self._keys[label] for label in question.labels),
            labels=question.labels,
            null=question.null,
            second_metric=question.second_metric,
            is_effect=question.is_effect,
            signature=next((score.signature for score in chain.from_iterable(scores)), None),
            family=family,
            seeds=compared.seeds,
            looks=compared.looks,
            is_judged=not compared.open_because and compared.num_seeds >= 2,
            is_certain=compared.is_exact,
            difference=compared.difference,
            p=compared.p,
            equal_margin=compared.margin,
            prior=compared.prior,
        )

    def _lines_of(self, metric: str) -> Lines:
        """What a metric is scored on."""
        split = self.system.metrics[metric].split
        if split:
            return self._lines(metric.partition("/")[0], split)
        split = self.system.metrics[self.main_metric].split or "test"
        return self._lines(split, split)

    @cached_method
    def _lines(self, place: str, split: str) -> Lines:
        finished = [cell.finished[0] for cell in self.cells if cell.finished]
        segments = scored_segments(finished, (place, split), self.study.data)
        past = history(self.store, segments)
        return Lines(segments, past, Rules(past.entries.values()))
