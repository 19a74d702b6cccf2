"""Invariants V43 and V50-V52 for masked language models of every kind."""

import json

import numpy as np
import pytest
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch
from nlgraft.training.masked_lm_training import LOSS, PER_CHARACTER, masked_losses
from nlgraft.training.masked_text import MaskedScoringData, Masker, choose
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from tests.tensors import assert_near
from tests.tiny_masked_lms import KINDS, LINES, SPECIALS, letters, masked_lm, pieces, write_words


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return pieces(tmp_path_factory.mktemp("pieces"))


def masker(tokenizer, lines, rate, seed, unit="word"):
    masking = MaskingConfig(rate=rate, unit=unit)
    return Masker(tokenizer.encode(lines, 99), tokenizer.ids, masking, seed)


@pytest.mark.parametrize("kind", KINDS)
def test_the_head_runs_at_masked_positions_only(tokenizer, kind):
    """The same logits as the whole model's, for every architecture."""
    body = masked_lm(len(tokenizer.vocabulary), kind)
    batch = masker(tokenizer, LINES, 0.4, 1).batch(np.arange(4), 0)
    everywhere = MaskedBatch(batch.tokens, torch.zeros_like(batch.labels))
    states, logits = body(batch)
    whole = body(everywhere)[1].reshape(*batch.labels.shape, -1)
    assert len(logits) == int(batch.num_targets.sum()) < batch.labels.numel()
    assert_near(logits, whole[batch.labels != NOT_PREDICTED], 1e-6)
    if kind != "ours":
        expected = body.model(input_ids=batch.tokens.ids, attention_mask=batch.tokens.valid.long())
        assert_near(whole, expected.logits, 1e-6)
    assert states.shape[:2] == batch.labels.shape
    assert_near(body.states(batch.tokens), states, 1e-6)


def test_all_vocabularies_predict_the_same_characters(tokenizer, tmp_path):
    """Invariant V50: masking is decided on words, so the characters agree whatever the tokens."""
    spelled_and_masked = {}
    for name, encoder in (("pieces", tokenizer), ("letters", letters(tmp_path))):
        text = encoder.encode(LINES * 4)
        data = MaskedScoringData(text, encoder.ids, MaskedScoringConfig(rate=0.3, num_rounds=2), 500)
        characters = data.characters()
        losses = masked_losses(masked_lm(len(encoder.vocabulary)), data)
        assert losses[PER_CHARACTER][:, 1].tolist() == characters.tolist()
        spelled = np.zeros(len(text))
        for rows, batch in data.in_order():
            assert ((batch.tokens.ids == encoder.ids.mask) == (batch.labels != NOT_PREDICTED)).all()
            for row, labels in zip(rows, batch.labels, strict=True):
                tokens = labels[labels != NOT_PREDICTED].tolist()
                spelled[row] += sum(len(encoder.vocabulary.token(token).text) for token in tokens)
        assert spelled.tolist() == characters.tolist()
        spelled_and_masked[name] = (characters.tolist(), int(losses[LOSS][:, 1].sum()))
    assert spelled_and_masked["pieces"][0] == spelled_and_masked["letters"][0]
    assert spelled_and_masked["pieces"][1] < spelled_and_masked["letters"][1]


def test_rounds_cover_every_unit_once():
    generators = [np.random.default_rng(7) for _ in range(4)]
    chosen = [choose(10, 0.3, generator, turn) for turn, generator in enumerate(generators)]
    assert [int(c.sum()) for c in chosen] == [3, 3, 3, 1]
    assert np.sum(chosen, axis=0).tolist() == [1] * 10
    assert not choose(10, 0.3, np.random.default_rng(7), 4).any()


def test_a_word_is_masked_whole_or_not_at_all(tokenizer):
    words = masker(tokenizer, LINES * 20, 0.3, 5)
    for row in range(len(words)):
        line, units = words.line(row, 1), words.units(row)
        by_word = {
            word: {a for w, a in zip(units, line.is_predicted, strict=True) if w == word}
            for word in set(units)
        }
        assert all(len(predicted) == 1 for predicted in by_word.values())
        assert any(line.is_predicted)


def test_single_tokens_are_masked_where_tokens_are_the_unit(tokenizer):
    """Of "imagine", two pieces, one may be masked alone; of one token at least one is."""
    single = masker(tokenizer, ["imagine motorcycle singer"] * 50, 0.15, 5, unit="token")
    predicted = [single.line(row, 0).is_predicted for row in range(50)]
    assert {sum(line) for line in predicted} == {1}
    assert {line.index(True) for line in predicted} == {*range(6)}
    alone = masker(tokenizer, ["the"] * 20, 0.01, 1, unit="token")
    assert all(alone.line(row, 3).is_predicted == [True] for row in range(20))
    scored = MaskedScoringData(tokenizer.encode(LINES), tokenizer.ids, MaskedScoringConfig(unit="token"), 500)
    assert [*masked_losses(masked_lm(len(tokenizer.vocabulary)), scored)] == [LOSS]


@pytest.mark.parametrize("unit", ["word", "token"])
def test_shares_of_masked_tokens(tokenizer, unit):
    """Invariant V52: 80/10/10 over a hundred thousand tokens; begin and end are never predicted."""
    text = ["nothing the motorcycle singer imagine a b ab " * 6] * 200
    lines = masker(tokenizer, text, 0.5, 11, unit)
    masked = kept = changed = 0
    num_read = 0
    for epoch in range(8):
        for row in range(len(lines)):
            line = lines.line(row, epoch)
            num_read += len(line.tokens)
            for token, input_id, predicted in zip(line.tokens, line.inputs, line.is_predicted, strict=True):
                if predicted:
                    masked += input_id == tokenizer.ids.mask
                    kept += input_id == token
                    changed += input_id not in (tokenizer.ids.mask, token)
                    assert input_id == tokenizer.ids.mask or tokenizer.vocabulary.is_normal[input_id]
                else:
                    assert input_id == token
    total = masked + kept + changed
    assert num_read > 100_000
    assert abs(total / num_read - 0.5) < 0.1
    assert abs(masked / total - 0.8) < 0.01
    assert abs(changed / total - 0.1) < 0.01  # of these one in V is the true token, counted as kept
    batch = lines.batch(np.arange(5), 0)
    assert (batch.labels[:, 0] == NOT_PREDICTED).all()
    assert (batch.tokens.ids[:, 0] == tokenizer.ids.begin).all()
    assert (batch.tokens.ids[:, -1] == tokenizer.ids.end).all()


@pytest.mark.parametrize("kind", KINDS)
def test_padding_changes_no_logit(tokenizer, kind):
    """Invariant V51: padding behind a line is not attended to; its logits stay within 1e-6."""
    body = masked_lm(len(tokenizer.vocabulary), kind).double()
    batch = masker(tokenizer, LINES, 0.4, 1).batch(np.arange(1), 0)
    empty = torch.full((1, 5), tokenizer.ids.pad)
    tokens = Tokens(
        torch.cat([batch.tokens.ids, empty], 1),
        torch.cat([batch.tokens.valid, torch.zeros_like(empty, dtype=torch.bool)], 1),
    )
    labels = torch.cat([batch.labels, torch.full_like(empty, NOT_PREDICTED)], 1)
    (states, logits), (padded_states, padded_logits) = body(batch), body(MaskedBatch(tokens, labels))
    assert (logits - padded_logits).abs().max() < 1e-6
    assert (states - padded_states[:, : states.shape[1]]).abs().max() < 1e-5


def test_bias_goes_with_the_rows(tokenizer, tmp_path):
    """Invariant V43: biases 1 and 3 of a and b give a token of both 2, under every name the bias has."""
    new = write_words(tmp_path, [*SPECIALS, "##ba", "a", "b"])
    body = masked_lm(len(tokenizer.vocabulary)).model
    ids = tokenizer.vocabulary.ids_by_surface
    with torch.no_grad():
        body.cls.predictions.bias[ids["##b"]], body.cls.predictions.bias[ids["##a"]] = 1.0, 3.0
    plan = build_plan(tokenizer.vocabulary, new.vocabulary, "fvt")
    made = exchange_vocabulary(body, plan)
    assert float(made.cls.predictions.bias[5].detach()) == 2.0
    assert made.cls.predictions.decoder.bias.data_ptr() == made.cls.predictions.bias.data_ptr()
    assert json.loads(made.config.to_json_string())["vocab_size"] == len(new.vocabulary)
