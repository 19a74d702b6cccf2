"""Settings of a training: one length and one budget."""

import pytest
from pydantic import ValidationError

from nlgraft.evaluation.metric_config import SCORED
from nlgraft.training.train_config import TrainConfig
from trainables.llm_vocabulary.config import PackedTrainConfig


def test_a_given_length_or_budget_replaces_the_default():
    config = TrainConfig(max_epochs=2, batch_sentences=8)
    assert (config.max_steps, config.batch_tokens, config.batch_characters) == (None, None, None)
    assert TrainConfig.model_validate_json(config.model_dump_json()) == config
    text = '{"max_epochs": 2, "batch_sentences": 8, "betas": [0.9, 0.98]}'
    assert TrainConfig.model_validate_json(text, strict=True).betas == (0.9, 0.98)
    assert (TrainConfig().max_steps, TrainConfig().batch_tokens) == (10_000, 4096)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"max_steps": 5, "max_epochs": 1}, "max_steps=5 and max_epochs=1 given of max_steps, max_epochs"),
        ({"batch_tokens": 9, "batch_characters": 8}, "batch_tokens=9 and batch_characters=8 given"),
        ({"batch_tokens": None}, "none given of batch_tokens, batch_characters, batch_sentences: give one"),
        ({"final_lr_ratio": 0.1}, "has no effect with lr_schedule=inverse_sqrt"),
        ({"lr_schedule": "linear", "max_steps": 9, "warmup_steps": 10}, "exceeds max_steps"),
        ({"initial_lr": 1.0}, "exceeds peak_lr"),
        ({"betas": (0.9, 1.0)}, "less than 1"),
        ({"warm_up": 1}, "warm_up"),
        (
            {"optimizer": "nesterov", "weight_decay": 0.1},
            "weight_decay=0.1 has no effect with",
        ),
        ({"optimizer": "nesterov", "betas": (0.9, 0.99)}, "has no effect with optimizer=nesterov"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(fields, message):
    with pytest.raises(ValidationError, match=message):
        TrainConfig(**fields)


def test_epochs_become_steps_of_a_model_that_is_not_the_result():
    config = (
        PackedTrainConfig(max_epochs=2).model_copy(update={"best_metric": "upstream/dev_loss"}).in_steps(5)
    )
    assert (config.max_steps, config.best_metric) == (10, "upstream/dev_loss")


def test_epochs_become_steps_for_the_schedule():
    config = TrainConfig(max_epochs=3, accumulation=4, lr_schedule="linear", warmup_steps=6)
    assert config.in_steps(10).max_steps == 8
    with pytest.raises(ValidationError, match="warmup_steps=6 exceeds max_steps=3"):
        config.in_steps(4)


@pytest.mark.parametrize("name", [*SCORED, "greedy_bleu", "loss.class"])
@pytest.mark.parametrize("prefix", ["dev/", "upstream/dev_"])
def test_the_best_evaluation_is_the_one_that_the_metric_calls_better(prefix, name):
    is_highest = name == "greedy_bleu" or SCORED[name.partition(".")[0]].direction == "maximize"
    assert TrainConfig(best_metric=f"{prefix}{name}").is_best_highest == is_highest
