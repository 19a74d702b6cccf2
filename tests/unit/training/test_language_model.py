"""Objective, data and files of language-model pretraining, by hand."""

from __future__ import annotations

import logging
import math

import numpy as np
import pytest
import torch

from nlgraft.errors import ContractError, StoreError
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.nn.context_config import BiLMConfig, UniLMConfig
from nlgraft.nn.language_models import BiLM, UniLM
from nlgraft.text.batches import Ragged
from nlgraft.training.config import TrainConfig
from nlgraft.training.language_model import (
    LanguageModelObjective,
    TextData,
    dev_perplexity,
    evaluate_language_model,
    pretrain_language_model,
    read_language_model,
    text_losses,
    write_language_model,
)
from tests.unit.training.toy import make_context

SIZES = {"vocab_size": 12, "d_model": 8, "num_layers": 2, "num_heads": 2, "ffn_dim": 12}
SENTENCES = [[5, 6, 7], [8], [9, 10, 11, 4, 5], []]


def make_model(kind):
    torch.manual_seed(0)
    return (UniLM(UniLMConfig(**SIZES)) if kind == "uni" else BiLM(BiLMConfig(**SIZES))).eval()


def make_data(**settings):
    return TextData(Ragged.of(SENTENCES), **{"batch_tokens": 64, **settings})


@torch.no_grad()
def log_probabilities(model, kind, ids):
    """Of every predicted token of one sentence, from a pass over it alone."""
    data = TextData(Ragged.of([ids[1:-1]]), batch_tokens=64)
    tokens = data.batch(np.array([0]), 0).tokens
    hidden = model(tokens).output[0, :-1] if kind == "uni" else model.cloze(tokens)[0]
    said = ids[1:] if kind == "uni" else ids
    return [float(row[token]) for row, token in zip(model.logits(hidden).log_softmax(-1), said, strict=True)]


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_loss_is_the_sum_over_predicted_tokens(kind):
    """Left to right all but the first token is predicted, with two towers both end tokens too."""
    model, data = make_model(kind), make_data()
    batch = data.batch(np.arange(4), 0)
    logs = [log_probabilities(model, kind, [3, *sentence, 3]) for sentence in SENTENCES]
    found = LanguageModelObjective()(model, batch)
    assert found.num_tokens == sum(map(len, logs)) == {"uni": 13, "bi": 17}[kind]
    assert found.loss_sum.item() == pytest.approx(-sum(map(sum, logs)), abs=1e-4)
    losses = text_losses(model, make_data(batch_tokens=7))
    assert losses.batches > 1
    assert losses.statistics[:, 1].tolist() == [len(row) for row in logs]
    np.testing.assert_allclose(losses.statistics[:, 0], [-sum(row) for row in logs], atol=1e-4)


def test_smoothing_is_that_of_the_config():
    model, batch = make_model("uni"), make_data().batch(np.arange(4), 0)
    objective = LanguageModelObjective.of(TrainConfig(label_smoothing=0.3))
    assert objective.smoothing == 0.3
    found = model.predictions(batch.tokens)
    expected = torch.nn.functional.cross_entropy(
        model.logits(found.states), found.tokens, label_smoothing=0.3, reduction="sum"
    )
    torch.testing.assert_close(objective(model, batch).loss_sum, expected)


def test_text_by_hand(caplog):
    with caplog.at_level(logging.WARNING):
        data = make_data(max_tokens=2)
    assert data.num_cut == 2
    assert "2 of 4 sentences were cut" in caplog.text
    tokens = data.batch(np.array([0, 3]), 0).tokens
    assert tokens.ids.tolist() == [[3, 5, 6, 3], [3, 3, 0, 0]]
    assert tokens.valid.tolist() == [[True] * 4, [True, True, False, False]]
    assert sorted(np.concatenate(data.epoch(1)).tolist()) == [0, 1, 2, 3]
    assert next(rows.tolist() for rows, _ in make_data(batch_tokens=7).in_order()) == [2]


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_every_parameter_of_a_language_model_learns(kind):
    model = make_model(kind).train()
    LanguageModelObjective()(model, make_data().batch(np.arange(4), 0)).loss_sum.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_perplexity_is_the_exponential_of_the_loss():
    model, data = make_model("bi").train(), make_data()
    evaluation = evaluate_language_model(model, data)
    loss, perplexity = (evaluation.scores[name] for name in ("loss", "perplexity"))
    assert perplexity.value == pytest.approx(math.exp(loss.value), rel=1e-12)
    assert (perplexity.n, perplexity.direction) == (4, "minimize")
    assert perplexity.signature == "perplexity|given:all-others|tok:model"
    assert model.training
    assert dev_perplexity(data)(model) == {"dev/loss": loss.value, "dev/perplexity": perplexity.value}
    other = evaluate_language_model(make_model("uni"), data).scores["perplexity"]
    assert other.signature == "perplexity|given:those-before|tok:model"
    assert aggregate("perplexity", np.array([math.log(8.0) * 5, 5.0])) == pytest.approx(8.0)


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_files_hold_the_model(kind, tmp_path):
    model = make_model(kind)
    write_language_model(model, tmp_path)
    again = read_language_model(tmp_path, model.config.model_copy(update={"dropout": 0.4}))
    assert again.config.dropout == 0.4
    assert not again.training
    assert all(torch.equal(p, again.state_dict()[name]) for name, p in model.state_dict().items())
    assert read_language_model(tmp_path).config == model.config


def test_another_model_than_asked_for_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"language_model\.json: no language model"):
        read_language_model(tmp_path)
    write_language_model(make_model("uni"), tmp_path)
    with pytest.raises(ContractError, match="num_layers is 2, not 3"):
        read_language_model(tmp_path, UniLMConfig(**{**SIZES, "num_layers": 3}))
    with pytest.raises(ContractError, match="kind is uni_lm, not bi_lm"):
        read_language_model(tmp_path, BiLMConfig(**SIZES))


def test_the_stage_draws_from_its_own_seed(tmp_path):
    """Same seed, same weights, whatever was drawn before; no seed, no training."""
    config = TrainConfig(max_steps=2, batch_tokens=16, label_smoothing=0)
    results = []
    for number, seed in enumerate((5, 5, 6)):
        torch.manual_seed(number)
        before = torch.random.get_rng_state()
        context = make_context(tmp_path / str(number), seed=seed)
        outcome = pretrain_language_model(UniLMConfig(**SIZES), make_data(), make_data(), config, context)
        assert torch.equal(torch.random.get_rng_state(), before)
        assert set(outcome.curves) >= {"dev/loss", "dev/perplexity", "train/loss"}
        results.append(read_language_model(context.directory).embedding.table.weight)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    with pytest.raises(ContractError, match="has no seed"):
        pretrain_language_model(
            UniLMConfig(**SIZES), make_data(), make_data(), config, make_context(tmp_path / "no", seed=None)
        )
