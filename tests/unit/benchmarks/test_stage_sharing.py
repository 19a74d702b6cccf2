"""The bound of a search on two workers, by hand: pretraining 30 s, states 5 s, finetuning 20 s."""

import pytest

from benchmarks.stage_sharing import Config, makespan, stage_graph


def graphs(*models):
    return [
        stage_graph(Config(language_model=model, peak_lr=0.001 * (1 + index)), seed=1, splits=("dev",))
        for index, model in enumerate(models)
    ]


@pytest.mark.parametrize(
    ("models", "shared_s", "alone_s"),
    [
        (["bert"], 55, 55),
        # the second waits for the first one's states until 35
        (["bert", "bert"], 55, 55),
        (["bert", "bert", "bert", "bert"], 75, 110),
        # both pretrain, 55; then both only finetune
        (["bert", "gpt", "gpt", "bert"], 75, 110),
        # the third begins at 55 and pretrains
        (["bert", "bert", "gpt"], 110, 110),
    ],
)
def test_makespan_by_hand(models, shared_s, alone_s):
    trials = graphs(*models)
    assert makespan(trials, is_shared=True) == shared_s
    assert makespan(trials, is_shared=False) == alone_s


def test_a_trial_that_ran_before_costs_nothing_with_sharing():
    assert makespan(graphs("bert") * 3, is_shared=True) == 55
