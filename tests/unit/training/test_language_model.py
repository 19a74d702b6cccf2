"""Objective, data and files of language models, by hand."""

import math

import numpy as np
import pytest
import torch

from nlgraft.basics.errors import ContractError, StoreError
from nlgraft.evaluation.sufficient import aggregate
from nlgraft.nn.context_config import BiLMConfig, UniLMConfig
from nlgraft.nn.language_models import BiLM, UniLM
from nlgraft.text.batches import Ragged
from nlgraft.training.language_model_training import (
    TextData,
    evaluate_language_model,
    fresh_language_model,
    language_model_objective,
    read_language_model,
    write_language_model,
)
from tests.tensors import differing

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
    tokens = data.batch(np.array([0]))
    hidden = model(tokens).output[0, :-1] if kind == "uni" else model.cloze(tokens)[0]
    predicted = ids[1:] if kind == "uni" else ids
    rows = model.logits(hidden).log_softmax(-1)
    return [float(row[token]) for row, token in zip(rows, predicted, strict=True)]


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_loss_is_the_sum_over_predicted_tokens(kind):
    """Left to right all but the first token is predicted, with two towers both end tokens too."""
    model, data = make_model(kind), make_data()
    batch = data.batch(np.arange(4))
    logs = [log_probabilities(model, kind, [3, *sentence, 3]) for sentence in SENTENCES]
    loss = language_model_objective(model, batch)
    assert loss.num_tokens == sum(map(len, logs)) == {"uni": 13, "bi": 17}[kind]
    assert loss.loss_sum.item() == pytest.approx(-sum(map(sum, logs)), abs=1e-4)
    losses = evaluate_language_model(model, make_data(batch_tokens=7)).statistics["loss"]
    assert losses[:, 1].tolist() == [len(row) for row in logs]
    np.testing.assert_allclose(losses[:, 0], [-sum(row) for row in logs], atol=1e-4)


def test_text_by_hand():
    data = make_data()
    tokens = data.batch(np.array([0, 3]))
    assert tokens.ids.tolist() == [[3, 5, 6, 7, 3], [3, 3, 0, 0, 0]]
    assert tokens.valid.tolist() == [[True] * 5, [True, True, False, False, False]]
    assert sorted(np.concatenate(data.epoch(1)).tolist()) == [0, 1, 2, 3]
    assert next(rows.tolist() for rows, _ in make_data(batch_tokens=7).in_order()) == [2]


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_every_parameter_of_a_language_model_learns(kind):
    model = make_model(kind).train()
    language_model_objective(model, make_data().batch(np.arange(4))).loss_sum.backward()
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in model.parameters())


def test_perplexity_is_the_exponential_of_the_loss():
    model, data = make_model("bi").train(), make_data()
    evaluation = evaluate_language_model(model, data)
    loss, perplexity = (evaluation.scores[name] for name in ("loss", "perplexity"))
    assert perplexity.value == pytest.approx(math.exp(loss.value), rel=1e-12)
    assert (perplexity.n, perplexity.direction) == (4, "minimize")
    assert perplexity.signature == "perplexity|given:all-others|tok:model"
    assert model.training
    other = evaluate_language_model(make_model("uni"), data).scores["perplexity"]
    assert other.signature == "perplexity|given:those-before|tok:model"
    assert aggregate("perplexity", np.array([math.log(8.0) * 5, 5.0])) == pytest.approx(8.0)
    assert aggregate("perplexity", np.array([800.0, 1.0])) == math.inf


@pytest.mark.parametrize("kind", ["uni", "bi"])
def test_files_hold_the_model(kind, tmp_path):
    model = make_model(kind)
    write_language_model(model, tmp_path)
    again = read_language_model(tmp_path, model.config.model_copy(update={"dropout": 0.4}))
    assert again.config.dropout == 0.4
    assert not again.training
    assert not differing(model, again)
    assert read_language_model(tmp_path).config == model.config
    unsized = model.config.model_copy(update={"vocab_size": None})
    assert read_language_model(tmp_path, unsized).config == model.config


def test_another_model_than_expected_is_refused(tmp_path):
    with pytest.raises(StoreError, match=r"language_model\.json: no language model"):
        read_language_model(tmp_path)
    write_language_model(make_model("uni"), tmp_path)
    with pytest.raises(ContractError, match="num_layers is 2, not 3"):
        read_language_model(tmp_path, UniLMConfig(**{**SIZES, "num_layers": 3}))
    with pytest.raises(ContractError, match="kind is uni_lm, not bi_lm"):
        read_language_model(tmp_path, BiLMConfig(**SIZES))


def test_initialisation_draws_from_the_seed_alone():
    models = []
    for number, seed in enumerate((5, 5, 6)):
        torch.manual_seed(number)
        before = torch.random.get_rng_state()
        models.append(fresh_language_model(UniLMConfig(**SIZES), seed))
        assert torch.equal(torch.random.get_rng_state(), before)
    first, again, other = (model.embedding.table.weight for model in models)
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_a_model_without_vocabulary_is_refused():
    with pytest.raises(ContractError, match="a uni_lm is built without vocab_size"):
        UniLM(UniLMConfig(**{**SIZES, "vocab_size": None}))
