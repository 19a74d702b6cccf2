"""Invariants V3, V7, V17-V28, V43 and V50-V52 for masked language models of every kind."""

import json
from copy import deepcopy

import numpy as np
import pytest
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch
from nlgraft.stages.stage_kind import SIDE
from nlgraft.text.tokenizer_config import SegmentationRates
from nlgraft.training.masked_lm_training import LOSS, PER_CHARACTER, masked_losses
from nlgraft.training.masked_text import MaskedScoringData, Masker, choose
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from tests.tensors import assert_near, differing
from tests.tiny_masked_lms import KINDS, LINES, SPECIALS, WIDTH, letters, masked_lm, pieces, write_words
from trainables.embedding_transfer.generators import (
    NO_WORD,
    ChangedLines,
    ChangedSide,
    EmbeddingGenerator,
    FrozenMaskedLM,
    GeneratorModel,
    GeneratorObjective,
    NewTokens,
    generator_method,
)


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


# Masked lines of generators, and exchanges.


NO_CHANGE = SegmentationRates(split=0, merge=0)
CHANGES = SegmentationRates(split=1, cut=0.3, cut_edge=0.3, min_split_chars=3, merge=0.7)


def changed_data(
    tokenizer, rates=CHANGES, new_mask_rate=0.5, mask_rate=0.3, seed=3, max_tokens=99, unit="word"
):
    masking = MaskingConfig(rate=mask_rate, unit=unit)
    masker = Masker(tokenizer.encode(LINES * 4, 30), tokenizer.ids, masking, seed)
    side = ChangedSide(tokenizer.vocabulary, rates, SIDE, 10, max_tokens)
    return ChangedLines(masker, 200, new_mask_rate, side)


def generators(body, kind="patt"):
    return GeneratorModel(FrozenMaskedLM(body), kind)


def train_steps(model, data, objective, num_steps=10):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.train()
    for step in range(num_steps):
        for rows in data.epoch(step)[:1]:
            loss = objective(model, data.batch(rows, step))
            (loss.loss_sum / loss.num_tokens).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize("body_kind", ["bert", "ours"])
@pytest.mark.parametrize(("kind", "expected"), [("att", WIDTH), ("patt", 6 * WIDTH)])
def test_nothing_but_the_generator_learns(tokenizer, kind, expected, body_kind):
    """Invariant V7: d or 6d parameters; the model is bit-identical after ten steps and has no gradient."""
    body = masked_lm(len(tokenizer.vocabulary), body_kind)
    model = generators(body, kind)
    assert sum(p.numel() for p in model.parameters()) == expected
    before = deepcopy(body.state_dict())
    train_steps(model, changed_data(tokenizer), GeneratorObjective(0.5))
    assert not differing(body, before)
    assert model.generators[SIDE].weight.abs().sum() > 0
    assert all(parameter.grad is None for parameter in body.parameters())
    assert not body.training


def test_distillation_changes_what_is_learned(tokenizer):
    learned = []
    for weight in (0.0, 0.5):
        model = generators(masked_lm(len(tokenizer.vocabulary)), "patt")
        train_steps(model, changed_data(tokenizer), GeneratorObjective(weight), 3)
        learned.append(model.generators[SIDE].weight.detach().clone())
    assert not torch.allclose(*learned)


@pytest.mark.parametrize("kind", KINDS)
def test_extended_output_layer_by_hand(kind):
    """Invariant V28: V + N columns, the bias kept for the first V; the new column is G with the mean bias."""
    size = 8
    body = masked_lm(size, kind)
    head = body.model.output_projection if kind == "ours" else body.model.get_output_embeddings()
    table = body.input_table
    with torch.no_grad():
        head.bias[5], head.bias[6] = 1.0, 3.0
    model = generators(body)  # zero weights: the average
    members, relations = torch.tensor([[5, 6]]), torch.tensor([[0, 1]])
    tensors = model._extended({SIDE: NewTokens(members, relations)})
    ends = [tensor[-1] for tensor in tensors.values() if tensor.ndim == 1]
    assert ends
    assert all(float(end.detach()) == 2.0 for end in ends)
    tables = [tensor for tensor in tensors.values() if tensor.ndim == 2]
    assert all(t.shape == (size + 1, WIDTH) for t in tables)
    assert all(torch.equal(t[:size], table) for t in tables)
    assert torch.allclose(tables[0][size], (table[5] + table[6]) / 2)
    # the whole model: its logits of the old tokens are what they were
    ids = torch.tensor([[2, 5, 4, 3]])
    labels = torch.tensor([[NOT_PREDICTED, 5, size, NOT_PREDICTED]])
    batch = MaskedBatch(Tokens(ids, torch.ones_like(ids, dtype=torch.bool)), labels)
    logits = torch.func.functional_call(model.body, tensors, (batch,), tie_weights=False).logits
    plain = body(batch)[1]
    assert logits.shape == (2, size + 1)
    assert torch.allclose(logits[:, :size], plain, atol=1e-6)
    mean = (plain[:, 5] - 1 + plain[:, 6] - 3) / 2 + 2
    assert torch.allclose(logits[:, size], mean, atol=1e-5)
    assert batch.targets.tolist() == [5, size]


@pytest.mark.parametrize("unit", ["word", "token"])
@pytest.mark.parametrize("kind", ["bert", "ours"])
def test_distillation_is_zero_without_perturbation(tokenizer, kind, unit):
    """Invariant V25: exactly 0.0, although the model has dropout and was put into training mode."""
    model = generators(masked_lm(len(tokenizer.vocabulary), kind))
    model.train()
    objective = GeneratorObjective(0.5)
    for batch in changed_data(tokenizer, NO_CHANGE, unit=unit).in_order():
        assert len(batch.new_tokens[SIDE].members) == 0
        assert torch.equal(batch.original.tokens.ids, batch.changed.tokens.ids)
        assert objective.distillation(model, batch, model(batch)).abs().max() == 0.0


def test_a_word_hidden_in_one_segmentation_only_is_not_compared(tokenizer):
    """Invariant V27; and if every new token is masked, no changed word is left to compare."""
    data = changed_data(tokenizer, new_mask_rate=1.0)
    model = generators(masked_lm(len(tokenizer.vocabulary)))
    size = len(tokenizer.vocabulary)
    for batch in data.in_order():
        assert int(batch.changed.tokens.ids.max()) < size  # no new token is read
        for original, words, labels in zip(
            batch.original_words[SIDE], batch.changed_words[SIDE], batch.changed.labels, strict=True
        ):
            num_hidden = len({*original.tolist()} - {*words.tolist()})
            assert (words[labels >= size] == NO_WORD).all()
            assert bool(num_hidden) == bool((labels >= size).any())
            assert num_hidden <= int((labels >= size).sum())
        assert torch.isfinite(GeneratorObjective(1.0).distillation(model, batch, model(batch))).all()


@pytest.mark.parametrize("unit", ["word", "token"])
def test_both_segmentations_have_the_same_masks(tokenizer, unit):
    """Words with a predicted token are neither split nor merged, and masked alike, token by token."""
    seen_new = 0
    for batch in changed_data(tokenizer, unit=unit).in_order():
        size = len(tokenizer.vocabulary)
        for row in range(len(batch.original.tokens.ids)):
            pairs = []
            for side, words in (
                (batch.original, batch.original_words[SIDE]),
                (batch.changed, batch.changed_words[SIDE]),
            ):
                requested = (
                    (side.labels[row] != NOT_PREDICTED) & (side.labels[row] < size) & side.tokens.valid[row]
                )
                pairs.append(
                    (
                        words[row][requested].tolist(),
                        side.tokens.ids[row][requested].tolist(),
                        side.labels[row][requested].tolist(),
                    )
                )
            assert pairs[0] == pairs[1]
        seen_new += int((batch.changed.labels >= size).sum())
        assert int(batch.original.labels.max()) < size
    assert seen_new > 0


def test_no_line_outgrows_the_model(tokenizer):
    """A line that splitting would make longer than the model can read is left unchanged, and no other."""
    longest = int(tokenizer.encode(LINES * 4, 30).stream("source 0").lengths.max())
    num_kept = 0
    for free, limited in zip(
        changed_data(tokenizer).in_order(),
        changed_data(tokenizer, max_tokens=longest).in_order(),
        strict=True,
    ):
        unsplit, split, limited_lengths = (
            half.tokens.valid.sum(1) for half in (free.original, free.changed, limited.changed)
        )
        assert torch.equal(limited_lengths, torch.where(split > longest + 2, unsplit, split))
        num_kept += int((split > longest + 2).sum())
    assert num_kept > 0


def test_batches_do_not_depend_on_what_was_made_before(tokenizer):
    """Invariant V23: a line alone or among others, first or last, has the same masks and changes."""
    rows = np.arange(6)
    together = changed_data(tokenizer).batch(rows, 2)
    other = changed_data(tokenizer)
    other.batch(np.array([5]), 0)
    alone = other.batch(rows[3:4], 2)
    size = len(tokenizer.vocabulary)
    for half in ("original", "changed"):
        ids, ids_together = (getattr(batch, half).tokens.ids.clamp(max=size) for batch in (alone, together))
        assert torch.equal(ids[0], ids_together[3, : ids.shape[1]])


def test_patt_without_training_is_the_average_exactly(tokenizer, tmp_path):
    """Zero weights: plan and exchanged model are those of avg, bit for bit."""
    new = write_words(
        tmp_path, [*SPECIALS, "the", "imagine", "##orcycle", "singer", ".", "'", "s", "ab", "a"]
    )
    body = masked_lm(len(tokenizer.vocabulary)).model
    table = body.get_input_embeddings().weight.detach()
    patt = generator_method("patt_eg", EmbeddingGenerator("patt", WIDTH), table)
    models_made = []
    for method in ("avg", patt):
        plan = build_plan(tokenizer.vocabulary, new.vocabulary, method)
        assert plan.counts()["composed"] == 3
        models_made.append(exchange_vocabulary(body, plan))
    assert not differing(*models_made)
