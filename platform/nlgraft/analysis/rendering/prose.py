"""The sentences of a report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from nlgraft.analysis.data.ledger import NoisePrior
from nlgraft.analysis.estimates.comparison import Comparison
from nlgraft.analysis.estimates.looks import look_levels
from nlgraft.analysis.estimates.trivial import NEAR
from nlgraft.analysis.policy.recorded import RecordedResults
from nlgraft.analysis.policy.rules import FIRST
from nlgraft.analysis.policy.sequential import FUTILE
from nlgraft.analysis.rendering.tables import comparison_table, confidence, effects_table
from nlgraft.analysis.rendering.typesetting import num_decimals, number, to_markdown
from nlgraft.basics.wording import count, duration, name_some
from nlgraft.study.data.design import idle_note

EXAMPLES = "train_examples"
"""Metric that counts the examples of the training whose model is the trial's result."""
_NUM_NAMED = 12
_SAME = 1.01
"""Ratio up to which numbers of examples count as the same."""

_STANDINGS = {
    "better": "better than the baseline",
    "worse": "worse than the baseline",
    "equal": "equal to the baseline within the margin",
    "open": "undecided",
    "exploratory": "exploratory, without verdict",
}

_STABILITY = (
    "A seed diverged if it reached less than half of what the best seed of its cell reached; it stays in "
    "every figure. A seed is lost if it failed or has no finite value; where one of two cells lost a "
    "seed that the other did not, the comparison is left open. The interquartile mean is that of the "
    "middle half of the seeds (Agarwal et al. 2021)."
)
_EXPECTED_BEST = (
    "The expected best of n search trials is that of n draws with replacement from the trials that ran "
    "(Dodge et al. 2019). It is biased towards worse values and assumes independent trials, which those "
    "of an adaptive sampler are not. Its band is the range of 95 % of resamples of these trials: it is "
    "descriptive, covers the truth in less than half of the searches at their full budget, and "
    "tests nothing."
)
_EFFECTS = (
    "Effects of crossed factors are averaged over the levels of the others with equal weights. An "
    "interaction is the change due to two levels together beyond the sum of their separate changes. "
    "Holm's correction is over all effects."
)

_LEDGER = (
    "The store's ledger holds every analysis that was shown. What the first one on these test segments "
    f"declared has {FIRST:g} of alpha; what was declared later, about trials that nobody had seen, shares "
    "the rest; all else is exploratory and gets no verdict. Other stores cannot be known."
)


def headline(result: RecordedResults) -> str:
    """Summarise the comparison with the baseline and the claims in a few sentences.

    Cells that the study's family leaves out are not counted: nothing was to be decided about them.
    """
    main = result.main_metric
    compared = result.against_baseline()
    measured = [comparison for comparison in compared if comparison.difference is not None]
    if not measured:
        return f"No cell can be compared with the baseline on {main} yet."
    # In the order in which a reader wants them: what is decided comes first.
    by_kind: dict[str, list[str]] = {kind: [] for kind in _STANDINGS}
    for comparison in measured:
        if comparison.p is None or comparison.family[0]:
            kind = "exploratory" if comparison.basis == "exploratory" else comparison.standing or "open"
            by_kind[kind].append(comparison.a)
    parts = [
        f"{count(len(labels), 'cell')} {_standing(result, kind)} ({name_some(labels, _NUM_NAMED, '; ')})"
        for kind, labels in by_kind.items()
        if labels
    ]
    text = f"On {main}{_condition(measured)}: {', '.join(parts) or 'no cell is compared with the baseline'}."
    if max(comparison.num_seeds for comparison in measured) < 2:
        text += " One seed says nothing about training noise, so nothing is decided."
    if unknown := [comparison.a for comparison in compared if comparison.difference is None]:
        text += f" Without results so far: {name_some(unknown, _NUM_NAMED, '; ')}."
    warnings = _unlearned(result) + _unstable(result)
    return warnings + text + _effects_headline(result) + _claims_headline(result)


def _standing(result: RecordedResults, kind: str) -> str:
    margin = result.margin(result.main_metric)
    amount = "" if margin is None else f"{margin:g} {result.system.metrics[result.main_metric].unit}"
    if kind == "open" and amount:
        return f"not known yet, neither different nor within {amount} of the baseline for certain"
    return f"{_STANDINGS[kind]} of {amount}" if kind == "equal" and amount else _STANDINGS[kind]


def _unlearned(result: RecordedResults) -> str:
    """Name the cells that have learned no more than a trivial output shows, or say that none has."""
    trivial, main = result.trivial, result.main_metric
    scored = [cell for cell in result.cells if cell.measured(main)]
    blind = [cell.label for cell in scored if result.unlearned(cell)]
    if trivial is None or not blind:
        return ""
    subject = "No cell has learned" if len(blind) == len(scored) else f"Nothing learned in {'; '.join(blind)}"
    value = number(trivial.value, num_decimals([trivial.value]))
    return (
        f"{subject}: not more than {NEAR:g} better on {main} than a trivial output ({trivial.output}), which "
        f"scores {value}. "
    )


def _unstable(result: RecordedResults) -> str:
    """Name the cells that lost seeds or whose seeds diverged."""
    parts = [
        f"{len(seeds)} of {count(cell.num_seeds, 'seed')} of {cell.label} {word}"
        for cell in result.stabilities
        for seeds, word in ((cell.diverged, "diverged"), (cell.lost, "failed"))
        if seeds
    ]
    return f"Unstable: {'; '.join(parts)}. " if parts else ""


def _condition(comparisons: Sequence[Comparison]) -> str:
    """Name the pretrainings that all seeds share: verdicts hold for these only, whatever the seeds."""
    once = sorted({stage for comparison in comparisons for stage in comparison.trained_once})
    return f", for this one pretraining ({', '.join(once)})" if once else ""


def _claims_headline(result: RecordedResults) -> str:
    verdicts = Counter(claim.word for claim in result.claims)
    parts = [f"{number} {verdict}" for verdict, number in verdicts.most_common()]
    return f" Claims: {', '.join(parts)}." if parts else ""


def _effects_headline(result: RecordedResults) -> str:
    effects = result.effects()
    if all(effect.comparison.difference is None for effect in effects):
        return " Effects are not known yet." if effects else ""
    shown = [effect for effect in effects if effect.comparison.standing in ("better", "worse")]
    parts = []
    for title, is_interaction in {"main effects": False, "interactions": True}.items():
        labels = [effect.contrast.label for effect in shown if effect.is_interaction == is_interaction]
        parts.append(f"{title}: {'; '.join(labels) or 'none'}")
    return f" Significant {', '.join(parts)}."


def short_note(result: RecordedResults) -> str:
    """Write headline, comparison table and claims as Markdown, short enough for MLflow's note."""
    main = result.main_metric
    parts = [headline(result), f"**{main}**", to_markdown(comparison_table(result, main))]
    if (effects := effects_table(result, main)) is not None:
        parts += ["**Effects**", to_markdown(effects)]
    if result.is_constructed:
        parts.insert(0, "The data is constructed (conlang), not natural language.")
    if result.claims:
        parts += ["**Claims**", *(f"- {claim.claim.text}: {claim.text}" for claim in result.claims)]
    return "\n\n".join(parts) + "\n"


def fairness(result: RecordedResults) -> str:
    """State that every cell had the same budget and examples, or name those that had less."""
    return _trials(result) + _examples(result)


def _trials(result: RecordedResults) -> str:
    num_seeds = result.study.first_seeds
    budget = [count(num_seeds, "seed")]
    short = [
        f"{cell.label} finished {num} of {budget[0]}"
        for cell in result.cells
        if (num := len(cell.finished)) < num_seeds
    ]
    if result.study.search is not None:
        trials = result.study.search.trials
        budget.append(count(trials, "search trial"))
        short += [
            f"{cell.label} ended {num} of {budget[1]}"
            for cell in result.cells
            if (num := len([trial for trial in cell.search if trial.record])) < trials
        ]
        short += [
            f"{cell.label} has only {cell.num_distinct} distinct of {budget[1]}, since the searched "
            "values change little or nothing there"
            for cell in result.cells
            if cell.num_distinct < len(cell.search)
        ]
    if short:
        return f"Planned for every cell: {' and '.join(budget)}. Less so far: {'; '.join(short)}."
    is_further = any(len(cell.finished) > num_seeds for cell in result.cells)
    until = " up to the first look" if is_further or result.study.sequential is not None else ""
    return f"Every cell had the same budget{until}: {' and '.join(budget)}."


def _examples(result: RecordedResults) -> str:
    """Count the examples that a training saw; empty for systems that do not."""
    means = {cell.label: cell.mean(EXAMPLES) for cell in result.cells}
    seen = {label: value for label, value in means.items() if value is not None}
    if not seen:
        return ""
    least, most = min(seen, key=seen.__getitem__), max(seen, key=seen.__getitem__)
    if seen[most] <= _SAME * seen[least]:
        return f" Every training saw {seen[most]:,.0f} examples."
    return (
        f" Trainings saw unlike numbers of examples, from {seen[least]:,.0f} ({least}) to {seen[most]:,.0f} "
        f"({most}): a budget in characters or sentences (batch_characters, batch_sentences) makes them equal."
    )


def method(result: RecordedResults) -> list[str]:
    """Describe the statistics, one sentence each."""
    study, settings = result.study, result.study.analysis
    family = "every cell against the baseline and the claims, metric by metric"
    family = "the claims" if settings.family == "claims" else family
    merged = idle_note(study)
    num_documents = max((trial.num_documents for trial in result.trials), default=0)
    sentences = [
        merged and f"{merged}.",
        "A difference is the mean over seeds of cell minus baseline, paired by seed and by test segment.",
        f"Intervals have {confidence(result.study.analysis.alpha)} confidence. Segments are resampled "
        f"{result.samples:,} times, identically for all cells and seeds; variation over seeds follows "
        "Student's t on the paired differences, because resampling a handful of seeds gives intervals that "
        "are far too narrow.",
        "p is two-sided, by paired bootstrap with both sources of variation; where fewer "
        "than 20 resamples reach the difference, segment noise is taken as normal; "
        f"p (Holm) is corrected for looks and over the declared family, run or not: {family}; an asterisk "
        f"marks significance at {settings.alpha:g}.",
        *_prior_method(result),
        _margin_method(result),
        num_documents
        and f"Test lines are resampled by document ({num_documents:,} documents), as those of one document "
        "are alike.",
        result.stabilities and _STABILITY,
        _looks_method(result),
        result.effects() and _EFFECTS,
        "The detectable difference is the true difference that this many seeds detect with probability "
        "0.8 at the level that Holm's correction leaves to the open comparisons of the family; below five "
        "seeds, which say little about the noise, it is a 95 % interval. Seeds "
        "needed is the first later look that decides with that probability, predicted from what is seen.",
        "Search and selection use dev only; test scores come from the replicates of the chosen config.",
        study.search and _EXPECTED_BEST,
        result.analyses and _LEDGER,
    ]
    return [str(sentence) for sentence in sentences if sentence]


def _priors(result: RecordedResults) -> list[NoisePrior]:
    """List what earlier studies say of the differences from the baseline on the main metric."""
    compared = result.against_baseline()
    return list(dict.fromkeys(comparison.prior for comparison in compared if comparison.prior))


_EARLIER = "the store's earlier studies of like trainings"
_PUBLISHED = "studies of the same system and a like size, of other seeds, that nlgraft publishes"


def _prior_method(result: RecordedResults) -> list[str]:
    return [
        "The variance between seeds is moderated (Smyth 2004) by that of "
        f"{_PUBLISHED if prior.is_published else _EARLIER} ({', '.join(prior.studies)}): {prior.df:.1f} "
        f"degrees of freedom and a deviation of {prior.variance**0.5:.3g}, frozen when the questions were "
        "first asked. A study that is noisier, by an F test before any mean is looked at, takes the variance "
        "of its own other cells instead."
        for prior in _priors(result)
    ]


def _margin_method(result: RecordedResults) -> str:
    margins = [
        f"{margin:g} {result.system.metrics[name].unit} on {name}"
        for name in result.metrics
        if (margin := result.margin(name)) is not None
    ]
    if not margins:
        return ""
    return (
        f"Margins below which a difference does not matter: {', '.join(margins)}. Two cells are equal if two "
        "one-sided tests (Schuirmann 1987), with the noise of the test for a difference, put the difference "
        "within the margin. Different and equal are tested together, since at most one of the two null "
        "hypotheses is true (Goeman et al. 2010) at the factors that Holm's procedure leaves to questions "
        "open in either way."
    )


def _looks_method(result: RecordedResults) -> str:
    looks, alpha = result.study.looks, result.study.analysis.alpha
    prior_df = next((prior.df for prior in _priors(result)), 0.0)
    levels = ", ".join(f"{level:.2g}" for level in look_levels(looks, FIRST * alpha, prior_df))
    stops = (
        " A cell gets no more seeds when all its comparisons are significant or become so by the last look "
        f"of a run with a probability below {FUTILE:g}."
    )
    return (
        f"Results may be tested at {', '.join(map(str, looks))} seeds, each time on the first so many; a "
        f"single comparison has the levels {levels}, for t tests of so few seeds. Holm's correction is over "
        "the smallest overall level at which one of the looks taken rejects. Intervals and p are those of "
        f"the last look and do not allow for the others.{stops if result.study.sequential else ''}"
    )


def sharing(result: RecordedResults) -> str:
    """State in one sentence what sharing stages between trials saved; empty when nothing has run."""
    facts = result.provenance
    if not facts.num_stages:
        return ""
    saved = f"sharing them saved {duration(facts.saved_s)}" if facts.saved_s > 0 else "sharing saved nothing"
    return (
        f"The trials consist of {count(facts.num_stages, 'stage')}, {facts.num_distinct} of them distinct; "
        f"these took {duration(facts.computed_s)} to compute, and {saved}."
    )
