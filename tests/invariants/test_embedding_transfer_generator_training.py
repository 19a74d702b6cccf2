"""Invariants V7, V25 and V28, on a small model with a real tokenizer."""

from copy import deepcopy

import pytest
import torch

from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import TransformerConfig
from nlgraft.stages.released_graph import language_view
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig, SegmentationRates
from nlgraft.text.tokenizers import SentencePiece, train_sentencepiece
from nlgraft.training.train_config import View
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.tensors import differing
from trainables.embedding_transfer.generators import (
    ChangedPairs,
    ChangedSide,
    FrozenSeq2Seq,
    GeneratorModel,
    GeneratorObjective,
)

D_MODEL = 16
NO_CHANGE = SegmentationRates(split=0, merge=0)
CHANGES = SegmentationRates(min_split_chars=3)


def first_batch(data):
    return data.batch(data.epoch(0)[0], 0)


@pytest.fixture(scope="module")
def text(tmp_path_factory):
    """A joint tokenizer and 60 encoded sentences of the conlang."""
    corpus = load_corpus(ConlangConfig(corpus="conlang", train=300, dev=1, test=1))["train"]
    path = tmp_path_factory.mktemp("tokenizer") / "joint.model"
    lines = [*corpus.sources[0], *corpus.target]
    train_sentencepiece(lines, LearnedTokenizerConfig(vocab_size=180), path, 0)
    tokenizer = SentencePiece(path)
    sides = (Ragged.of(tokenizer.encode(side[:60])) for side in (corpus.sources[0], corpus.target))
    return load_vocabulary(path), Encoded(dict(zip(("source 0", "target"), sides, strict=True)))


def setting(text, sides=("decoder",), rates=CHANGES, view=None, **model_options):
    vocabulary, encoded = text
    torch.manual_seed(0)
    config = TransformerConfig(
        **(
            {"preset": "tiny", "d_model": D_MODEL, "ffn_dim": 32, "num_heads": 2, "dropout": 0.3}
            | model_options
        )
    )
    body = FrozenSeq2Seq(Seq2Seq(config, len(vocabulary), len(vocabulary)), sides)
    model = GeneratorModel(body, "patt")
    for made in model.generators.values():
        made.weight.data.normal_()
    changed = {side: ChangedSide(vocabulary, rates, table, 10) for side, table in body.sides.items()}
    return model, ChangedPairs(encoded, view or View(), 400, changed, seed=3)


@pytest.mark.parametrize(
    ("sides", "tying", "num_tables"),
    [
        (("decoder",), "decoder", 1),
        (("encoder",), "decoder", 1),
        (("encoder", "decoder"), "none", 2),
        (("encoder", "decoder"), "all", 1),
        (("decoder",), "all", 1),
    ],
)
def test_nothing_but_the_generator_learns(text, sides, tying, num_tables):
    """Invariant V7: 6d parameters for each table; body and embeddings bit-identical after ten steps."""
    model, data = setting(text, sides, tying=tying)
    assert sum(p.numel() for p in model.parameters()) == 6 * D_MODEL * num_tables
    before, start = deepcopy(model.body.state_dict()), deepcopy(model.state_dict())
    objective = GeneratorObjective(0.5)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.train()
    for rows in data.epoch(0)[:5] * 2:
        loss = objective(model, data.batch(rows, 0))
        (loss.loss_sum / loss.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
    assert not differing(model.body, before)
    assert differing(model, start)
    assert all(parameter.grad is None for parameter in model.body.parameters())
    assert not model.body.training


@pytest.mark.parametrize("sides", [("decoder",), ("encoder", "decoder")])
def test_distillation_is_zero_without_perturbation(text, sides):
    """V25: exactly 0.0, although the model has dropout and the module was put into training mode."""
    model, data = setting(text, sides, rates=NO_CHANGE)
    model.train()
    objective = GeneratorObjective(0.5)
    for rows in data.epoch(0):
        batch = data.batch(rows, 0)
        assert all(len(new.members) == 0 for new in batch.new_tokens.values())
        assert objective.distillation(model, batch, model(batch)).abs().max() == 0.0


@pytest.mark.parametrize(
    ("place", "begins", "source_ends"), [("first", ([5], [3, 6]), [3]), ("last", ([], [6]), [3, 5])]
)
def test_a_language_is_put_around_both_segmentations(text, place, begins, source_ends):
    """V25: the same batch where nothing is perturbed; language, begin and end belong to no word."""
    view = language_view({"source 0": 5}, 6, place)
    _, data = setting(text, ("encoder", "decoder"), rates=NO_CHANGE, view=view)
    batch = first_batch(data)
    original, changed = batch.original, batch.changed
    assert torch.equal(original.sources[0].ids, changed.sources[0].ids)
    assert torch.equal(original.target_input.ids, changed.target_input.ids)
    assert torch.equal(original.target_output, changed.target_output)
    sides = {"encoder": changed.sources[0], "decoder": changed.target_input}
    for (side, tokens), begin, end in zip(sides.items(), begins, (source_ends, []), strict=True):
        for ids, valid, words in zip(tokens.ids, tokens.valid, batch.changed_words[side], strict=True):
            row, numbers = ids[valid].tolist(), words[valid].tolist()
            inner = numbers[len(begin) : len(numbers) - len(end)]
            assert (row[: len(begin)], row[len(row) - len(end) :]) == (begin, end)
            assert numbers == [-1] * len(begin) + inner + [-1] * len(end)
            assert inner[0] == 0
            assert -1 not in inner


def test_distillation_sees_a_perturbation(text):
    model, data = setting(text)
    batch = first_batch(data)
    losses = GeneratorObjective(0.5).distillation(model, batch, model(batch))
    assert (losses > 0).any()


def test_output_layer_is_extended_by_the_new_tokens(text):
    """V28: V + N columns; the bias is kept for the first V; a generated token's label is V or more."""
    model, data = setting(text, has_output_bias=True)
    body = model.body.model
    with torch.no_grad():
        body.output_projection.bias.uniform_(-1, 1)
    batch = first_batch(data)
    size, num_new = body.output_projection.weight.shape[0], len(batch.new_tokens["decoder"].members)
    states, logits, target, num_targets = model(batch)
    assert torch.equal(num_targets, batch.changed.target_input.valid.sum(1))
    assert num_new > 0
    assert logits.shape == (len(target), size + num_new)
    valid = batch.changed.target_input.valid
    plain = states["decoder"][valid] @ body.output_projection.weight.T + body.output_projection.bias
    assert torch.allclose(logits[:, :size], plain, atol=1e-5)
    assert set(target[target >= size].tolist()) == set(range(size, size + num_new))
    inputs = batch.changed.target_input.ids[valid]
    assert inputs.max() == size + num_new - 1


def test_both_segmentations_have_the_same_words(text):
    """Eq. 4 compares word with word: begin and end of sentence belong to none."""
    _, data = setting(text, ("encoder", "decoder"))
    batch = first_batch(data)
    for side in ("encoder", "decoder"):
        original, changed = batch.original_words[side], batch.changed_words[side]
        assert torch.equal(original.max(1).values, changed.max(1).values)
    assert (batch.original_words["decoder"][:, 0] == -1).all()
    assert batch.original_words["decoder"].shape == batch.original.target_input.ids.shape
    assert batch.changed_words["encoder"].shape == batch.changed.sources[0].ids.shape


def test_batches_do_not_depend_on_what_was_made_before(text):
    """Invariant V23 for the training data: any row, alone or in a batch, changes the same way."""
    _, data = setting(text)
    rows = data.epoch(1)[0]
    together = data.batch(rows, 1)
    _, other = setting(text)
    other.batch(other.epoch(0)[0], 0)
    alone = other.batch(rows[:1], 1)
    width = int(alone.changed.target_input.valid.sum())
    vocabulary_size = len(text[0])
    first, single = (b.changed.target_input.ids[0, :width] for b in (together, alone))
    is_known = single < vocabulary_size
    assert torch.equal(first[is_known], single[is_known])
    assert torch.equal(first >= vocabulary_size, single >= vocabulary_size)


def test_loss_is_the_sum_of_its_parts(text):
    """L = L_p + lambda L_d; without distillation no teacher runs."""
    model, data = setting(text)
    batch = first_batch(data)
    loss = GeneratorObjective(0.5)(model, batch)
    assert torch.allclose(loss.loss_sum, loss.terms["pretraining"] + loss.terms["distillation"])
    alone = GeneratorObjective(0.0)(model, batch)
    assert torch.allclose(alone.loss_sum, loss.terms["pretraining"])
    assert set(alone.terms) == {"pretraining"}
    twice = GeneratorObjective(1.0)(model, batch)
    assert torch.allclose(twice.terms["distillation"], 2 * loss.terms["distillation"])
    assert loss.num_tokens == int(batch.changed.target_input.valid.sum())
