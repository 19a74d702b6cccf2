"""Results whose verdicts follow the rules over the store's ledger, see ``docs/validity.md``.

The first verdict that is asked for enters the analysis, before it is shown. An analysis that asks what was
asked already, with the same answers, is not entered again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

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
    history,
    record,
)
from nlgraft.analysis.data.loading import scored_segments
from nlgraft.analysis.data.published_noise import published_noise
from nlgraft.analysis.data.registration import SHOWN_DIGITS, Registration, register
from nlgraft.analysis.data.trials import cached_method
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.effects import Contrast, Effect
from nlgraft.analysis.estimates.noise_prior import paired_kinds, prior_from, published_prior
from nlgraft.analysis.estimates.question import Question
from nlgraft.analysis.policy.compared import ComparedResults, Weighted
from nlgraft.analysis.policy.planned import by_rules, exploratory
from nlgraft.analysis.policy.registered import Conformance, conformance_of
from nlgraft.analysis.policy.rules import Rules, answered
from nlgraft.basics.errors import StoreError
from nlgraft.basics.wording import timestamp
from nlgraft.pipeline.fingerprint import dotted, fingerprint
from nlgraft.study.data.design import gain_cells
from nlgraft.study.planning.selection import cell_digest, cell_key

if TYPE_CHECKING:
    import pandas as pd

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
        entries = {}
        for number, entry in self.past.entries.items():
            if replace(entry, time=self.entry.time) == self.entry:
                break
            if entry.has_compared:
                entries[number] = entry
        return entries

    @cached_property
    def rules(self) -> Rules:
        """The rules on the segments after this analysis."""
        return Rules([*self.past.entries.values(), self.entry])

    @cached_property
    def questions(self) -> dict[Hypothesis, LedgerQuestion]:
        """What it asks."""
        return {question.hypothesis: question for question in self.entry.asked}


@dataclass(eq=False)
class RecordedResults(ComparedResults):
    """Results that enter the ledger of their store when their verdicts are asked for."""

    @cached_property
    def analyses(self) -> dict[str, Analysis]:
        """The analyses that these results are, by the first metric of each; entered when first asked for."""
        if self.store is None or not self.metrics:
            return {}
        return {entry.metrics[0]: self._enter(entry) for entry in self._entries()}

    def declare(self) -> None:
        """Enter what the study asks, before scores are shown, unless all of it has been entered."""
        if self.store is not None and self.metrics:
            for entry in self._entries():
                if self._rules_of(entry.metrics[0]).fresh(entry):
                    self._enter(entry)

    def frame(self) -> pd.DataFrame:
        """Return all trials as a data frame, see `Results.frame`; their scores enter the ledger first."""
        _ = self.analyses
        return super().frame()

    @cached_property
    def prior_of(self) -> Callable[[str, Sequence[str]], NoisePrior | None]:
        """What the store's earlier studies said when the first question about the cells was asked."""
        return self._frozen_prior if self.store is not None else lambda metric, labels: None

    def _frozen_prior(self, metric: str, labels: Sequence[str]) -> NoisePrior | None:
        fresh = partial(self._fresh_prior, metric, labels)
        return self._rules_of(metric).prior(metric, [self._keys[label] for label in labels], fresh)

    def _fresh_prior(self, metric: str, labels: Sequence[str]) -> NoisePrior | None:
        kinds = paired_kinds([self.trainings[label] for label in labels])
        if kinds is None or self.study.analysis.prior == "none":
            return None
        if (metric, kinds) not in self._fresh_priors:
            entries = self._past_of(metric).whole.values()
            # A variant of this study shares its trials, so that its noise would be counted twice.
            others = [entry for entry in entries if entry.study != self.study.name]
            judged = dict.fromkeys(self._keys.values(), self.own_plan.seeds)
            prior = prior_from(others, metric, kinds, judged)
            self._fresh_priors[metric, kinds] = prior or self._published_prior(metric, labels)
        return self._fresh_priors[metric, kinds]

    def _published_prior(self, metric: str, labels: Sequence[str]) -> NoisePrior | None:
        judged = dict.fromkeys(self._configs.values(), self.own_plan.seeds)
        compared = [self.trainings[label] for label in labels]
        rows, num_segments = published_noise(), self.num_segments(metric)
        return published_prior(rows, self.study.system, metric, compared, num_segments, judged)

    def num_segments(self, metric: str) -> int:
        """Count what a metric is scored on: test lines or documents; 1 where the store does not hold them."""
        return self._segments_of(metric).num

    @cached_property
    def _fresh_priors(self) -> dict[tuple[str, tuple[str, str]], NoisePrior | None]:
        return {}

    @cached_property
    def registration(self) -> Conformance | None:
        """How they relate to the registration of their study; None if it is not registered."""
        if self.store is None:
            return None
        return conformance_of(self, self.store, self._configs, self._past_of(self.main_metric))

    def register(self) -> Registration:
        """Register the study, or find the registration that froze the same.

        Raises:
            DataError: Text cannot be read.
        """
        assert self.store is not None
        return register(self, self.store, self._configs, self._segments_of(self.main_metric))

    def effects(self, metric: str | None = None) -> list[Effect]:
        """Estimate the effects as `ComparedResults.effects` does, judged over the ledger."""
        effects = super().effects(metric)
        if not self.analyses:
            return effects
        return [replace(effect, comparison=self._judged_effect(effect)) for effect in effects]

    def _judged_effect(self, effect: Effect) -> Comparison:
        weighted = self._weigh_effect(effect.comparison.metric, effect.contrast)
        return self.judged(self._answered(self._ledger_effect(effect), effect.comparison, weighted))

    def _answer(self, question: Question) -> Comparison:
        compared = self._declared(question)
        if not self.analyses or compared.is_exact:
            return compared
        return self._answered(self._ledger_question(question), compared, self._weigh_question(question))

    def _answered(self, question: LedgerQuestion, compared: Comparison, weighted: Weighted) -> Comparison:
        """Put the answer by the rules in the place of the study's own."""
        hypothesis = question.hypothesis
        analysis = next((each for each in self.analyses.values() if hypothesis in each.questions), None)
        if analysis is None:
            return self._exploratory(weighted, "the study does not declare it")
        answer = analysis.rules.answer(analysis.entry, analysis.questions[hypothesis])
        if answer.basis == "exploratory":
            return self._exploratory(weighted, answer.reason)
        plan = analysis.rules.plan(question.cells, self.own_plan)
        compared = by_rules(compared, answer, plan, analysis.entry.alpha)
        if set(question.cells) & self._renewed:
            note = "its text or the code of its stages is not that of an earlier analysis"
            compared = replace(compared, notes=(*compared.notes, note))
        return compared

    def _exploratory(self, weighted: Weighted, reason: str) -> Comparison:
        """Compare over all finished seeds, whatever the looks."""
        compared = replace(self._over_seeds(weighted, None), margin=weighted.margin)
        advice = f"declare it on test lines that nobody has scored: {self._command}"
        note = f"exploratory, no verdict: {reason}; {advice}"
        return exploratory(self._limited(compared, weighted.terms), note)

    @cached_property
    def _command(self) -> str:
        """The command that would declare the study's questions on fresh test lines."""
        texts = [path for path, _ in dotted(self.study.data) if path.rpartition(".")[2].startswith("test")]
        return f"nlgraft register {self.study.name} data.{next(iter(texts), 'test')}=..."

    @cached_property
    def _renewed(self) -> set[str]:
        """Digests of the cells whose settings were seen before, with other text or versions of stages."""
        past = self._past_of(self.main_metric).entries.values()
        first: dict[str, str] = {}
        for entry in past:
            for cell, config in entry.configs.items():
                first.setdefault(config, cell)
        pairs = [(self._keys[label], config) for label, config in self._configs.items()]
        return {key for key, config in pairs if first.get(config, key) != key}

    def _enter(self, entry: Entry) -> Analysis:
        assert self.store is not None
        past = self._past_of(entry.metrics[0])
        entry = answered(entry, past.entries.values())
        try:
            record(self.store, entry, past)
        # A store that is read only can still be reported on; the report says that it was not entered.
        except (OSError, StoreError) as error:
            return Analysis(entry, past, str(error))
        return Analysis(entry, past)

    def _entries(self) -> list[Entry]:
        """List what these results ask, one entry for each set of segments."""
        main = self.main_metric
        families = self._families_of(dict.fromkeys([main, *(question.metric for question in self._claimed)]))
        by_segments: dict[Segments, list[LedgerQuestion]] = {}
        for name, questions in families.items():
            segments = self._segments_of(main if name == "claims" else name)
            by_segments.setdefault(segments, []).extend(
                self._ledger_question(question, name) for question in questions
            )
        # A study whose families are empty enters its main lines as well, since their scores are shown.
        on_main = by_segments.setdefault(self._segments_of(main), [])
        on_main += [self._ledger_effect(effect, f"{EFFECTS}{main}") for effect in super().effects()]
        on_main += self._shown_beside(on_main)
        return [self._entry(segments, entry_questions) for segments, entry_questions in by_segments.items()]

    def _shown_beside(self, declared: Sequence[LedgerQuestion]) -> list[LedgerQuestion]:
        """List comparisons that a report shows though the study's family leaves them out."""
        base = self.baseline.cell.label
        pairs = [(cell.cell.label, base) for cell in self.cells[1:]]
        for curve in gain_cells(self.study, [cell.cell for cell in self.cells]).values():
            pairs += [(a.label, b.label) for _, a, b in curve]
        questions = [self._ledger_question(Question(self.main_metric, pair)) for pair in pairs]
        hypotheses = {question.hypothesis for question in declared}
        return list(
            {
                question.hypothesis: question
                for question in questions
                if question.hypothesis not in hypotheses
            }.values()
        )

    def _entry(self, segments: Segments, entry_questions: Iterable[LedgerQuestion]) -> Entry:
        questions = tuple(entry_questions)
        keys, main = self._keys, self.main_metric
        is_main = self._segments_of(main) == segments
        deciding = main if is_main else questions[0].metric
        scored = [
            name
            for name, metric in self.system.metrics.items()
            if metric.split is not None and not metric.is_time and name in self.metrics
            if self._segments_of(name) == segments
        ]
        return Entry(
            version=VERSION,
            time=timestamp(),
            study=self.study.name,
            variant=self.study.variant,
            system=self.study.system,
            segments=segments,
            baseline=keys[self.baseline.cell.label],
            cells=tuple(dict.fromkeys(keys.values())),
            metrics=tuple(dict.fromkeys([deciding, *scored])),
            plan=self.own_plan,
            alpha=self.study.analysis.alpha,
            asked=questions,
            scores=self._scores(deciding),
            further_scores={
                metric: self._scores(metric)
                for metric in {question.metric for question in questions} - {deciding}
            },
            configs={keys[label]: config for label, config in self._configs.items()},
            trainings={keys[label]: training for label, training in self.trainings.items()},
            **self._registered,
        )

    def _scores(self, metric: str) -> dict[str, dict[int, float]]:
        return {
            self._keys[cell.cell.label]: {seed: score.value for seed, score in cell.measured(metric).items()}
            for cell in self.cells
        }

    @property
    def _registered(self) -> dict[str, Any]:
        """What an entry says of the registration."""
        conformance = self.registration
        if conformance is None or not conformance.is_own:
            return {}
        deviations = tuple(deviation.text for deviation in conformance.deviations)
        return {"registration": conformance.registration.digest[:SHOWN_DIGITS], "deviations": deviations}

    @cached_property
    def _configs(self) -> dict[str, str]:
        """Digests of the cells' settings by label, with those of the search."""
        return {cell.cell.label: self._searched(cell_key(self.study, cell.cell, {})) for cell in self.cells}

    @cached_property
    def _keys(self) -> dict[str, str]:
        """Digests of the cells by label: of the trials, or of an earlier cell that has the same scores.

        A stage whose version was raised, or a metric that was added, asks nothing new if all scores are the
        same.
        """
        keys = {cell.cell.label: self._searched(cell_digest(self.study, cell.cell)) for cell in self.cells}
        main, own_keys = self.main_metric, {*keys.values()}
        scores = [
            (cell, values, entry.configs.get(cell))
            for entry in self._past_of(main).entries.values()
            if entry.metrics[0] == main
            for cell, values in entry.scores.items()
            if cell not in own_keys
        ]
        for cell in self.cells if scores else ():
            values = {seed: score.value for seed, score in cell.measured(main).items()}
            config = self._configs[cell.cell.label]
            # The same settings come first: their scores are the likeliest to be the same question.
            alike = sorted(scores, key=lambda seen: seen[2] != config)
            # One score may tie by chance, between cells of unlike settings.
            same = (
                key
                for key, others, settings in alike
                if _num_same(values, others) >= (1 if settings == config else _FEW)
            )
            keys[cell.cell.label] = next(same, keys[cell.cell.label])
        return keys

    def _searched(self, key: str) -> str:
        search = self.study.search
        return key if search is None else fingerprint({"cell": key, "search": search.model_dump(mode="json")})

    def _plan_of(self, labels: Sequence[str], metric: str) -> Plan:
        if self.store is None:
            return self.own_plan
        return self._rules_of(metric).plan([self._keys[label] for label in labels], self.own_plan)

    def _ledger_question(self, question: Question, family: str | None = None) -> LedgerQuestion:
        return replace(
            self._ledger_record(self._compared(question), question.cells, family),
            null=question.null,
            second_metric=question.second_metric,
        )

    def _ledger_effect(self, effect: Effect, family: str | None = None) -> LedgerQuestion:
        """Describe an effect by its cells, those with positive weights first, which tells effects apart."""
        labels = _labels(effect.contrast)
        return replace(self._ledger_record(effect.comparison, labels, family), is_effect=True)

    def _ledger_record(
        self, compared: Comparison, labels: Sequence[str], family: str | None
    ) -> LedgerQuestion:
        measured = (self.cell(label).measured(compared.metric).values() for label in labels)
        return LedgerQuestion(
            metric=compared.metric,
            cells=tuple(self._keys[label] for label in labels),
            labels=tuple(labels),
            signature=next((score.signature for scores in measured for score in scores), None),
            family=family,
            seeds=compared.seeds,
            looks=compared.looks,
            is_judged=not compared.open_because and compared.num_seeds >= _FEW,
            is_certain=compared.is_exact,
            difference=compared.difference,
            p=compared.p,
            equal_margin=compared.margin,
            prior=compared.prior,
        )

    def _past_of(self, metric: str) -> History:
        """The entries on the segments of a metric before these results entered."""
        return self._history(self._segments_of(metric))

    @cached_method
    def _history(self, segments: Segments) -> History:
        return History({}) if self.store is None else history(self.store, segments)

    def _rules_of(self, metric: str) -> Rules:
        """The rules on the segments of a metric before these results entered."""
        return self._rules(self._segments_of(metric))

    @cached_method
    def _rules(self, segments: Segments) -> Rules:
        return Rules(self._history(segments).entries.values())

    def _segments_of(self, metric: str) -> Segments:
        """Describe what a metric is scored on."""
        split = self.system.metrics[metric].split or self.system.metrics[self.main_metric].split or "test"
        place = metric.partition("/")[0] if self.system.metrics[metric].split else split
        return self._segments(place, split)

    @cached_method
    def _segments(self, place: str, split: str) -> Segments:
        finished = [cell.finished[0] for cell in self.cells if cell.finished]
        return scored_segments(finished, (place, split), self.study.data)


def _num_same(scores: Mapping[int, float], others: Mapping[int, float]) -> int:
    """Count the common seeds if the scores of all of them are the same; else 0."""
    common = scores.keys() & others.keys()
    return len(common) if all(scores[seed] == others[seed] for seed in common) else 0


def _labels(contrast: Contrast) -> list[str]:
    terms = sorted(contrast.terms, key=lambda term: (-term[0], term[1].label))
    return [cell.label for _, cell in terms]
