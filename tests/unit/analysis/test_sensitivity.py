"""Which verdicts hang on the metric, on BLEU's tokenizer, on the checkpoint, or on one seed."""

from dataclasses import replace

import numpy as np
import pytest
import sacrebleu

from nlgraft.analysis.policy.sensitivity import sensitivities
from nlgraft.analysis.rendering.tables import sensitivity_table
from nlgraft.analysis.rendering.typesetting import to_markdown
from nlgraft.evaluation.overlap import bleu_rows
from nlgraft.study.data.design import cells

NOISE = np.array([0.1, -0.2, 0.15, 0.05, -0.1])
WORDS = [f"wort{index}" for index in range(80)]


@pytest.fixture
def study_result(make_study, scored):
    study = make_study(
        factors={"arm": {"target": "arm", "levels": ["random_init", "avg_eg", "patt_eg"],
                         "baseline": "random_init"}},
        seeds=[1, 2, 3, 4, 5], claims=[], published=[],
    )  # fmt: skip
    gaps = {
        "random_init": (np.zeros(5), np.zeros(5)),
        "avg_eg": (5 + NOISE, -3 + NOISE),
        # four seeds agree, one does not
        "patt_eg": (np.array([2.0, 2.1, 1.9, 2.05, -2.0]), 2 + NOISE),
    }
    base = 20 + np.roll(NOISE, 2)
    rows = {
        cell.label: dict(zip(("test/bleu", "test/accuracy"), (base + gap for gap in gaps[cell.levels["arm"]]),
                             strict=True))
        for cell in cells(study)
    }  # fmt: skip
    return scored(study, rows)


def by_choice(result, label):
    return {row.choice: row for row in sensitivities(result).rows if row.label == label}


def test_a_verdict_may_hang_on_the_metric(study_result):
    first, second = (by_choice(study_result, label) for label in ("arm=avg_eg", "arm=patt_eg"))
    assert {row.standing for row in first.values()} == {"better"}
    assert first["metric"].changes == {"on test/accuracy": "worse"}
    assert {row.standing for row in second.values()} == {"open"}
    assert second["metric"].changes == {"on test/accuracy": "better"}


def test_a_true_effect_of_three_seeds_is_not_called_fragile(make_small_study, scored):
    """Two of three seeds decide next to nothing: sign and range of the difference are what is left."""
    study = make_small_study(claims=[], published=[])
    base = np.array([20.0, 20.3, 19.8])
    rows = {"baseline": {"test/bleu": base}, "arm=patt_eg": {"test/bleu": base + np.array([1.0, 1.2, 1.5])}}
    result = scored(study, rows)
    assert result.standing(result.compare("patt_eg")) == "better"
    text = result.render("md")
    assert "| arm=patt_eg | better | seeds | same sign | +1.10 to +1.35 without one seed |" in text
    assert "undecided without seed" not in text


def test_the_report_says_so(study_result):
    text = study_result.render("md")
    assert "## Sensitivity of the verdicts" in text
    assert "| arm=avg_eg | better | metric | 0 of 1 | worse on test/accuracy |" in text
    assert "| seeds | same sign | +4.96 to +5.05 without one seed |" in text
    assert "| seeds | same sign | +0.99 to +2.01 without one seed |" in text


def test_choices_without_data_have_no_row_and_a_sentence(study_result):
    assert {row.choice for row in sensitivities(study_result).rows} == {"metric"}
    assert sensitivities(study_result).missing == (
        "No other tokenizer: the store lacks hypotheses of some replicates.",
        "No other checkpoint: some replicates have no dev curve.",
    )
    assert "- No other tokenizer: the store lacks" in to_markdown(sensitivity_table(study_result))


def test_a_cell_without_a_common_seed_has_no_verdict_that_could_be_sensitive(study_result):
    partial = with_trials(
        study_result, lambda arm, seed, trial: replace(trial, record=None) if arm == "patt_eg" else trial
    )
    assert {row.label for row in sensitivities(partial).rows} == {"arm=avg_eg"}
    assert "arm=patt_eg" not in to_markdown(sensitivity_table(partial))


def test_two_seeds_leave_none_to_leave_out(make_small_study, scored):
    study = make_small_study(seeds=[1, 2], claims=[])
    rows = {cell.label: {"test/bleu": np.array([1.0, 2.0])} for cell in cells(study)}
    sensitivity = sensitivities(scored(study, rows))
    assert sensitivity.rows == ()
    assert sensitivity.missing[-1] == "Seeds are left out from 3 common seeds on."


def with_trials(result, change):
    """A result whose replicates are changed: (arm, seed, trial) -> trial."""
    changed = [
        replace(
            cell, trials=tuple(change(cell.cell.levels["arm"], trial.seed, trial) for trial in cell.trials)
        )
        for cell in result.cells
    ]
    return replace(result, cells=tuple(changed))


@pytest.fixture
def punctuated(make_small_study, scored):
    """An arm with more right words, but a space before every comma, which only some tokenizers see."""
    study = make_small_study(seeds=[1, 2, 3], claims=[], published=[])
    rng = np.random.default_rng(3)
    lines = [[str(word) for word in rng.choice(WORDS, 12)] for _ in range(40)]
    references = [f"{' '.join(line[:4])}, {' '.join(line[4:8])}, {' '.join(line[8:])}." for line in lines]

    def texts(arm, seed):
        noise = np.random.default_rng([seed, len(arm)])
        wrong = 0.10 if arm == "patt_eg" else 0.16
        guesses = [
            " ".join(word if noise.random() > wrong else "falsch" + word[-2:] for word in line.split())
            for line in references
        ]
        return [guess.replace(",", " ,") if arm == "patt_eg" else guess for guess in guesses], references

    def change(arm, seed, trial):
        rows, signature = bleu_rows("13a")(*texts(arm, seed))
        value = sacrebleu.corpus_bleu(texts(arm, seed)[0], [references]).score
        record = replace(trial.record, metrics={"test/bleu": value}, signatures={"test/bleu": signature})
        return replace(
            trial,
            record=record,
            segments={"test/bleu": rows},
            read_texts=lambda split: texts(arm, seed) if split == "test" else None,
        )

    rows = {cell.label: {"test/bleu": np.zeros(3)} for cell in cells(study)}
    return with_trials(scored(study, rows), change)


def test_a_verdict_may_hang_on_the_tokenizer(punctuated):
    row = by_choice(punctuated, "arm=patt_eg")["tokenizer"]
    assert row.standing == "better"
    assert row.others == {"with tok:intl": "better", "with tok:char": "better", "with tok:none": "worse"}
    text = to_markdown(sensitivity_table(punctuated))
    assert "| arm=patt_eg | better | tokenizer | 2 of 3 | worse with tok:none |" in text
    assert "- tokenizer: with tok:intl, with tok:char, with tok:none." in text


def test_one_replicate_without_hypotheses_leaves_no_row(punctuated):
    without_texts = with_trials(
        punctuated,
        lambda arm, seed, trial: replace(trial, read_texts=lambda _: None) if seed == 2 else trial,
    )
    assert "tokenizer" not in by_choice(without_texts, "arm=patt_eg")


def test_stored_hypotheses_are_scored_as_sacrebleu_does(result):
    trial = result.cell("patt_eg").trials[0]
    hypotheses, references = trial.read_texts("test")
    assert len(hypotheses) == len(references) == 40
    score = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert score == pytest.approx(trial.metrics["test/bleu"])
    assert trial.read_texts("dev")[0] != hypotheses


def test_chrf_is_an_alternative_where_the_system_has_it_and_did_not_score_it(punctuated):
    metric = punctuated.system.metrics["test/bleu"]
    metrics = {**punctuated.system.metrics, "test/chrf": metric}
    system = replace(punctuated.system, metrics=metrics)
    row = by_choice(replace(punctuated, system=system), "arm=patt_eg")["tokenizer"]
    assert row.others["on chrF"] == "better"


@pytest.mark.parametrize(
    ("signature", "alternatives"), [("tok:zh", ["with tok:char"]), ("tok:none", ["13a", "intl", "char"])]
)
def test_only_tokenizers_that_fit_the_text_are_tried(punctuated, signature, alternatives):
    other = with_trials(
        punctuated,
        lambda arm, seed, trial: replace(
            trial, record=replace(trial.record, signatures={"test/bleu": f"case:mixed|{signature}"})
        ),
    )
    row = by_choice(other, "arm=patt_eg")["tokenizer"]
    assert [name.removeprefix("with tok:") for name in row.others] == [
        name.removeprefix("with tok:") for name in alternatives
    ]


def test_a_verdict_may_hang_on_the_checkpoint(study_result):
    # avg_eg has the lowest loss on the way, and overfits
    best = {"random_init": 2.0, "avg_eg": 1.5, "patt_eg": 1.6}
    last = {"random_init": 2.1, "avg_eg": 2.6, "patt_eg": 1.7}

    def change(arm, seed, trial):
        noise = 0.01 * NOISE[(seed + list(best).index(arm)) % 5]
        points = [[0, 9.0, 0], [50, best[arm] + noise, 0], [100, last[arm] + noise / 2, 0]]
        return replace(trial, record=replace(trial.record, curves={"dev/loss": points}))

    curved = with_trials(study_result, change)
    rows = by_choice(curved, "arm=avg_eg")
    assert rows["checkpoint"].others == {
        "on dev/loss at its best": "better",
        "on dev/loss at the last step": "worse",
    }
    row = "| checkpoint | 1 of 2 | worse on dev/loss at the last step |"
    assert row in to_markdown(sensitivity_table(curved))


COUNTS = {"random_init": 20.0, "avg_eg": 17.0, "patt_eg": 20.0}


@pytest.fixture
def per_token(study_result):
    """An arm whose vocabulary has longer tokens, with curves of the loss of each token."""

    def change(arm, seed, trial):
        noise = 0.01 * NOISE[(seed + list(COUNTS).index(arm)) % 5]
        end = {"random_init": 2.0, "avg_eg": 1.5, "patt_eg": 1.9}[arm]
        points = [[0, 9.0, 0], [50, end + noise, 0], [100, end + noise / 2, 0]]
        metrics = {**trial.record.metrics, "dev/loss": end, "dev/tokens": COUNTS[arm]}
        return replace(trial, record=replace(trial.record, metrics=metrics, curves={"dev/loss": points}))

    loss = replace(study_result.system.metrics["dev/loss"], counted_by="dev/tokens")
    counts = replace(study_result.system.metrics["dev/reference_length"], is_fixed=True)
    system_metrics = {**study_result.system.metrics, "dev/loss": loss, "dev/tokens": counts}
    result = with_trials(study_result, change)
    return replace(result, system=replace(result.system, metrics=system_metrics))


def test_losses_per_token_of_unlike_vocabularies_decide_nothing_anywhere(per_token):
    rows = by_choice(per_token, "arm=avg_eg")["checkpoint"]
    assert set(rows.others.values()) == {"open"}
    # a vocabulary of the same lengths may be compared
    assert set(by_choice(per_token, "arm=patt_eg")["checkpoint"].others.values()) == {"better"}
    assert "better on dev/loss at its best" not in per_token.render("md").split("arm=patt_eg")[0]


def test_a_count_of_tokens_that_is_not_on_record_leaves_a_verdict_open(per_token):
    def change(arm, seed, trial):
        metrics = {name: value for name, value in trial.record.metrics.items() if name != "dev/tokens"}
        return replace(trial, record=replace(trial.record, metrics=metrics))

    partial = with_trials(per_token, lambda arm, *rest: change(arm, *rest) if arm == "patt_eg" else rest[-1])
    compared = partial.compare("arm=patt_eg", metric="dev/loss")
    assert partial.standing(compared) == "open"
    assert any("dev/tokens is not on record" in note for note in compared.notes)


def test_learning_curves_of_unlike_vocabularies_are_marked(per_token, study_result):
    page = per_token.render("html")
    assert "dev/loss: tokens of different vocabularies, curves of cells cannot be compared" in page
    alike = with_trials(
        per_token,
        lambda arm, seed, trial: replace(
            trial,
            record=replace(trial.record, metrics={**trial.record.metrics, "dev/tokens": 20.0}),
        ),
    )
    assert "cannot be compared" not in alike.render("html")


def test_the_rows_of_a_cell_stand_together(study_result):
    names = [row[0].text for row in sensitivity_table(study_result).rows]
    assert names == ["arm=avg_eg", "arm=avg_eg", "arm=patt_eg", "arm=patt_eg"], "a row for each choice"
