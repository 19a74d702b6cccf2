"""Invariants V3, V7 and V17-V28 for masked language models."""

from copy import deepcopy

import numpy as np
import pytest
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch
from nlgraft.stages.stage_kind import SIDE
from nlgraft.training.masked_text import Masker
from nlgraft.training.train_config import MaskingConfig
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from tests.tensors import differing
from tests.tiny_masked_lms import KINDS, LINES, SPECIALS, WIDTH, masked_lm, pieces, write_words
from trainables.embedding_transfer.config import SegmentationRates
from trainables.embedding_transfer.generator_data import ChangedLines, ChangedSide
from trainables.embedding_transfer.generator_training import (
    EmbeddingGenerator,
    FrozenMaskedLM,
    GeneratorModel,
    GeneratorObjective,
    NewTokens,
    generator_method,
)

NO_CHANGE = SegmentationRates(split=0, merge=0)
CHANGES = SegmentationRates(split=1, cut=0.3, cut_edge=0.3, min_split_chars=3, merge=0.7)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory):
    return pieces(tmp_path_factory.mktemp("old"))


def changed_data(
    tokenizer, rates=CHANGES, new_mask_rate=0.5, mask_rate=0.3, seed=3, max_tokens=99, unit="word"
):
    masking = MaskingConfig(rate=mask_rate, unit=unit)
    masker = Masker(tokenizer.encode(LINES * 4, 30), tokenizer.ids, masking, seed)
    side = ChangedSide(tokenizer.vocabulary, rates, SIDE, 10)
    return ChangedLines(masker, 200, new_mask_rate, side, max_tokens)


def generators(body, kind="patt"):
    return GeneratorModel(FrozenMaskedLM(body), {SIDE: EmbeddingGenerator(kind, WIDTH)})


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
        for row in range(len(batch.compared[SIDE])):
            words, labels = batch.changed_words[SIDE][row], batch.changed.labels[row]
            hidden = {int(w) for w, label in zip(words, labels, strict=True) if label >= size}
            assert hidden == set((~batch.compared[SIDE][row]).nonzero()[:, 0].tolist())
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
