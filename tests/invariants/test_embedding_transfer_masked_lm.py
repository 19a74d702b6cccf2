"""Numbers 7, 17-28, 43 and 50-52 of embedding_transfer.md section 5 for masked language models."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
import tokenizers
import torch
import transformers
from tokenizers import models, normalizers, pre_tokenizers

from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from nlgraft.vocab.tokenizers.tokens import Tok
from trainables.embedding_transfer.generators import EmbeddingGenerator
from trainables.embedding_transfer.masked_lm import MaskedLM, asked_tokens, masked_losses
from trainables.embedding_transfer.masked_lm_data import (
    NOT_ASKED,
    MaskedBatch,
    Masker,
    MaskRates,
    ScoringData,
    choose_words,
)
from trainables.embedding_transfer.masked_lm_generator import (
    ChangedMaskedData,
    MaskedGeneratorModel,
    MaskedGeneratorObjective,
)
from trainables.embedding_transfer.masked_lm_text import MaskedTokenizer
from trainables.embedding_transfer.new_tokens import NewTokens, SimilarOptions
from trainables.embedding_transfer.perturbation import Rates
from trainables.embedding_transfer.stages.transfer import generator_method

WIDTH = 16
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = [
    "a",
    "b",
    "ab",
    "the",
    "ima",
    "##gine",
    "nothing",
    "motor",
    "##cycle",
    "sing",
    "##er",
    ".",
    "'",
    "s",
]
LETTERS = "abcdefghilmnorsty"
LINES = [
    "the imagine nothing",
    "motorcycle singer. a b",
    "nothing singer's the ab",
    "imagine motorcycle the b",
]
NO_CHANGE = Rates(split=0, merge=0)
CHANGES = Rates(split=1, cut=0.3, cut_edge=0.3, min_split_chars=3, merge=0.7)
SETTINGS = {"num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


def write_tokenizer(directory: Path, surfaces: list[str]) -> MaskedTokenizer:
    made = tokenizers.Tokenizer(models.WordPiece({s: i for i, s in enumerate(surfaces)}, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.add_special_tokens(SPECIALS)
    directory.mkdir(parents=True, exist_ok=True)
    made.save(str(directory / "tokenizer.json"))
    return MaskedTokenizer(directory)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory) -> MaskedTokenizer:
    letters = [*LETTERS, *(f"##{letter}" for letter in LETTERS)]
    surfaces = [*SPECIALS, *PIECES, *(letter for letter in letters if letter not in PIECES)]
    return write_tokenizer(tmp_path_factory.mktemp("old"), surfaces)


@pytest.fixture(scope="module")
def letters(tmp_path_factory) -> MaskedTokenizer:
    """Another vocabulary of the same text: single characters."""
    return write_tokenizer(
        tmp_path_factory.mktemp("letters"),
        [*SPECIALS, ".", "'", *LETTERS, *(f"##{letter}" for letter in LETTERS)],
    )


def masked_lm(size: int, kind: str = "bert", seed: int = 0) -> MaskedLM:
    torch.manual_seed(seed)
    sizes = {"vocab_size": size, "pad_token_id": 0}
    if kind == "distilbert":
        config = transformers.DistilBertConfig(dim=WIDTH, n_layers=2, n_heads=2, hidden_dim=32, **sizes)
        model: transformers.PreTrainedModel = transformers.DistilBertForMaskedLM(config)
    elif kind == "electra":
        config = transformers.ElectraConfig(embedding_size=WIDTH, hidden_size=24, **SETTINGS, **sizes)
        model = transformers.ElectraForMaskedLM(config)
    elif kind == "roberta":
        config = transformers.RobertaConfig(hidden_size=WIDTH, **SETTINGS, **sizes)
        model = transformers.RobertaForMaskedLM(config)
    else:
        model = transformers.BertForMaskedLM(transformers.BertConfig(hidden_size=WIDTH, **SETTINGS, **sizes))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn_like(parameter)
    return MaskedLM(model).eval()


def changed_data(tokenizer, rates=CHANGES, new_mask_rate=0.5, mask_rates=None, seed=3, max_tokens=99):
    text, _ = tokenizer.encode(LINES * 4, 30)
    masker = Masker(text, tokenizer, mask_rates or MaskRates(0.3), seed)
    return ChangedMaskedData(
        masker,
        rates,
        SimilarOptions(10, "id"),
        new_mask_rate=new_mask_rate,
        batch_tokens=200,
        max_tokens=max_tokens,
    )


def digest(module):
    parts = [tensor.detach().numpy().tobytes() for _, tensor in sorted(module.state_dict().items())]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def train_steps(model, data, objective, num_steps=10):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    model.train()
    for step in range(num_steps):
        for rows in data.epoch(step)[:1]:
            loss = objective(model, data.batch(rows, step))
            (loss.loss_sum / loss.num_tokens).backward()
            optimizer.step()
            optimizer.zero_grad()


@pytest.mark.parametrize(("kind", "expected"), [("att", WIDTH), ("patt", 6 * WIDTH)])
def test_nothing_but_the_generator_learns(tokenizer, kind, expected):
    """Number 7: d or 6d parameters; the model is bit-identical after ten steps and has no gradient."""
    body = masked_lm(len(tokenizer.vocabulary))
    model = MaskedGeneratorModel(body, EmbeddingGenerator(kind, WIDTH))
    assert sum(p.numel() for p in model.parameters()) == expected
    before = digest(body)
    train_steps(model, changed_data(tokenizer), MaskedGeneratorObjective(0.5))
    assert digest(body) == before
    assert model.generators["encoder"].weight.abs().sum() > 0
    assert all(parameter.grad is None for parameter in body.parameters())
    assert not body.training


def test_distillation_changes_what_is_learned(tokenizer):
    learned = []
    for weight in (0.0, 0.5):
        model = MaskedGeneratorModel(masked_lm(len(tokenizer.vocabulary)), EmbeddingGenerator("patt", WIDTH))
        train_steps(model, changed_data(tokenizer), MaskedGeneratorObjective(weight), 3)
        learned.append(model.generators["encoder"].weight.detach().clone())
    assert not torch.allclose(*learned)


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_extended_output_layer_by_hand(kind):
    """Number 28: V + N columns, the bias kept for the first V; the new column is G with the mean bias."""
    size = 8
    body = masked_lm(size, kind)
    head = body.model.get_output_embeddings()
    table = body.model.get_input_embeddings().weight
    with torch.no_grad():
        head.bias[5], head.bias[6] = 1.0, 3.0
    model = MaskedGeneratorModel(body, EmbeddingGenerator("patt", WIDTH))  # zero weights: the average
    members, relations = torch.tensor([[5, 6]]), torch.tensor([[0, 1]])
    tensors = model._extended(NewTokens(members, relations))
    ends = {name: tensor[-1] for name, tensor in tensors.items() if tensor.ndim == 1}
    assert ends
    assert all(float(end.detach()) == 2.0 for end in ends.values())
    tables = [tensor for tensor in tensors.values() if tensor.ndim == 2]
    assert all(t.shape == (size + 1, WIDTH) for t in tables)
    assert all(torch.equal(t[:size], table) for t in tables)
    assert torch.allclose(tables[0][size], (table[5] + table[6]) / 2)
    # the whole model: what it says of the old tokens is what it said before
    ids = torch.tensor([[2, 5, 4, 3]])
    labels = torch.tensor([[NOT_ASKED, 5, size, NOT_ASKED]])
    batch = MaskedBatch(ids, torch.ones_like(ids, dtype=torch.bool), labels)
    logits = torch.func.functional_call(body, tensors, (batch,), tie_weights=False)[1]
    plain = body.model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, 1:3]
    assert logits.shape == (2, size + 1)
    assert torch.allclose(logits[:, :size], plain, atol=1e-6)
    mean = (plain[:, 5] - 1 + plain[:, 6] - 3) / 2 + 2
    assert torch.allclose(logits[:, size], mean, atol=1e-5)
    assert asked_tokens(batch).tolist() == [5, size]


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_the_head_runs_where_something_is_asked(tokenizer, kind):
    """The same logits as the whole model's, for every architecture."""
    body = masked_lm(len(tokenizer.vocabulary), kind)
    text, _ = tokenizer.encode(LINES, 30)
    batch = Masker(text, tokenizer, MaskRates(0.4), 1).batch(np.arange(4), 0)
    states, logits = body(batch)
    whole = body.model(input_ids=batch.ids, attention_mask=batch.valid.long())
    assert torch.allclose(logits, whole.logits[batch.labels != NOT_ASKED], atol=1e-6)
    assert states.shape[:2] == batch.ids.shape


def test_distillation_is_zero_without_perturbation(tokenizer):
    """Number 25: exactly 0.0, although the model has dropout and was put into training mode."""
    model = MaskedGeneratorModel(masked_lm(len(tokenizer.vocabulary)), EmbeddingGenerator("patt", WIDTH))
    model.train()
    objective = MaskedGeneratorObjective(0.5)
    for batch in changed_data(tokenizer, NO_CHANGE).in_order():
        assert len(batch.new_tokens.members) == 0
        assert torch.equal(batch.original.ids, batch.changed.ids)
        states, _, _ = model(batch)
        assert objective.distillation(model, batch, states).abs().max() == 0.0


def test_a_word_hidden_in_one_segmentation_only_is_not_compared(tokenizer):
    """Number 27; and with every new token hidden, no changed word is left to compare."""
    data = changed_data(tokenizer, new_mask_rate=1.0)
    model = MaskedGeneratorModel(masked_lm(len(tokenizer.vocabulary)), EmbeddingGenerator("avg", WIDTH))
    size = len(tokenizer.vocabulary)
    for batch in data.in_order():
        assert int(batch.changed.ids.max()) < size  # no new token is read
        for row in range(len(batch.compared)):
            words, labels = batch.changed_words[row], batch.changed.labels[row]
            hidden = {int(w) for w, label in zip(words, labels, strict=True) if label >= size}
            assert hidden == set((~batch.compared[row]).nonzero()[:, 0].tolist())
        states, _, _ = model(batch)
        assert torch.isfinite(MaskedGeneratorObjective(1.0).distillation(model, batch, states)).all()


def test_holes_are_the_same_in_both_segmentations(tokenizer):
    """Words to be predicted are neither split nor merged, and hidden alike, token by token."""
    seen_new = 0
    for batch in changed_data(tokenizer).in_order():
        size = len(tokenizer.vocabulary)
        for row in range(len(batch.original.ids)):
            pairs = []
            for side, words in ((batch.original, batch.original_words), (batch.changed, batch.changed_words)):
                asked = (side.labels[row] != NOT_ASKED) & (side.labels[row] < size) & side.valid[row]
                pairs.append(
                    (
                        words[row][asked].tolist(),
                        side.ids[row][asked].tolist(),
                        side.labels[row][asked].tolist(),
                    )
                )
            assert pairs[0] == pairs[1]
        seen_new += int((batch.changed.labels >= size).sum())
        assert int(batch.original.labels.max()) < size
    assert seen_new > 0


def test_the_text_never_changes(tokenizer):
    """Numbers 17, 18 and 22: pieces of one word are joined or cut with their marks, and spell the line."""
    vocabulary = tokenizer.vocabulary
    rates = Rates(split=0.5, cut=0.3, cut_edge=0.3, min_split_chars=3, merge=0.7)
    data = changed_data(tokenizer, rates, mask_rates=MaskRates(0.2))
    surfaces: set[str] = set()
    for place, line in enumerate(LINES * 16):
        sentence = data._change("encoder", place % 16, place // 16)
        toks = [token if isinstance(token, Tok) else vocabulary.token(token) for token in sentence.tokens]
        parts = [("" if tok.starts_word is False else " ") + tok.text for tok in toks]
        expected = line.replace(".", " .").replace("'", " ' ")
        assert "".join(parts).strip() == expected
        surfaces |= {vocabulary.marking.surface(t) for t in sentence.tokens if isinstance(t, Tok)}
    assert "imagine" in surfaces
    assert any(s.startswith("##") for s in surfaces)
    assert not any("the" in s and "ima" in s for s in surfaces)


def test_no_line_outgrows_the_model(tokenizer):
    """Splitting stops where the model has no position left; the line is then read as it is."""
    text, _ = tokenizer.encode(LINES * 4, 30)
    longest = int(text.ids.lengths.max())
    assert max(b.changed.ids.shape[1] for b in changed_data(tokenizer).in_order()) > longest + 2
    short = changed_data(tokenizer, max_tokens=longest)
    assert max(b.changed.ids.shape[1] for b in short.in_order()) <= longest + 2


def test_batches_do_not_depend_on_what_was_made_before(tokenizer):
    """Number 23: a line alone or among others, first or last, has the same holes and changes."""
    rows = np.arange(6)
    together = changed_data(tokenizer).batch(rows, 2)
    other = changed_data(tokenizer)
    other.batch(np.array([5]), 0)
    alone = other.batch(rows[3:4], 2)
    width = int(alone.changed.valid.sum())
    size = len(tokenizer.vocabulary)
    assert torch.equal(alone.changed.ids[0].clamp(max=size), together.changed.ids[3, :width].clamp(max=size))
    assert torch.equal(alone.original.ids[0], together.original.ids[3, : alone.original.ids.shape[1]])


def test_every_vocabulary_is_asked_about_the_same_characters(tokenizer, letters):
    """Number 50: what is hidden is decided on words, so the characters agree whatever the tokens."""
    asked = {}
    for name, own in (("pieces", tokenizer), ("letters", letters)):
        text, _ = own.encode(LINES * 4, 60)
        data = ScoringData(text, own, 0.3, 2, 500)
        sizes = data.sizes()
        losses = masked_losses(masked_lm(len(own.vocabulary)), data)
        assert losses.characters.tolist() == sizes.tolist()
        spelled = np.zeros(len(text))
        for rows, batch in data.in_order():
            assert ((batch.ids == own.mask) == (batch.labels != NOT_ASKED)).all()
            for row, labels in zip(rows, batch.labels, strict=True):
                tokens = labels[labels != NOT_ASKED].tolist()
                spelled[row] += sum(len(own.vocabulary.token(token).text) for token in tokens)
        assert spelled.tolist() == sizes.tolist()
        asked[name] = (sizes.tolist(), int(losses.tokens.sum()))
    assert asked["pieces"][0] == asked["letters"][0]
    assert asked["pieces"][1] < asked["letters"][1]


def test_rounds_ask_for_every_word_once():
    rng = [np.random.default_rng(7) for _ in range(4)]
    chosen = [choose_words(10, 0.3, generator, turn) for turn, generator in enumerate(rng)]
    assert [int(c.sum()) for c in chosen] == [3, 3, 3, 1]
    assert np.sum(chosen, axis=0).tolist() == [1] * 10
    assert not choose_words(10, 0.3, np.random.default_rng(7), 4).any()


def test_a_hidden_word_is_hidden_whole(tokenizer):
    text, _ = tokenizer.encode(LINES * 20, 30)
    masker = Masker(text, tokenizer, MaskRates(0.3), 5)
    for row in range(len(text)):
        line, words = masker.line(row, 1), text.words[row]
        by_word = {
            word: {a for w, a in zip(words, line.is_asked, strict=True) if w == word} for word in set(words)
        }
        assert all(len(asked) == 1 for asked in by_word.values())
        assert any(line.is_asked)


def test_shares_of_hidden_tokens(tokenizer):
    """Number 52: 80/10/10 over a hundred thousand tokens; begin and end are never asked for."""
    text, _ = tokenizer.encode(["nothing the motorcycle singer imagine a b ab " * 6] * 200, 99)
    masker = Masker(text, tokenizer, MaskRates(0.5), 11)
    masked = kept = changed = 0
    num_read = 0
    for epoch in range(8):
        for row in range(len(text)):
            line = masker.line(row, epoch)
            num_read += len(line.tokens)
            for token, given, asked in zip(line.tokens, line.inputs, line.is_asked, strict=True):
                if asked:
                    masked += given == tokenizer.mask
                    kept += given == token
                    changed += given not in (tokenizer.mask, token)
                else:
                    assert given == token
    total = masked + kept + changed
    assert num_read > 100_000
    assert abs(total / num_read - 0.5) < 0.1
    assert abs(masked / total - 0.8) < 0.01
    assert abs(changed / total - 0.1) < 0.01  # of these one in V is the true token, counted as kept
    batch = masker.batch(np.arange(5), 0)
    assert (batch.labels[:, 0] == NOT_ASKED).all()
    assert (batch.ids[:, 0] == tokenizer.cls).all()


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_padding_changes_no_logit(tokenizer, kind):
    """Number 51: padding behind a line is not attended to; its logits stay within 1e-6."""
    body = masked_lm(len(tokenizer.vocabulary), kind)
    text, _ = tokenizer.encode(LINES, 30)
    batch = Masker(text, tokenizer, MaskRates(0.4), 1).batch(np.arange(1), 0)
    empty = torch.full((1, 5), tokenizer.pad)
    longer = MaskedBatch(
        torch.cat([batch.ids, empty], 1),
        torch.cat([batch.valid, torch.zeros_like(empty, dtype=torch.bool)], 1),
        torch.cat([batch.labels, torch.full_like(empty, NOT_ASKED)], 1),
    )
    (states, logits), (padded_states, padded_logits) = body(batch), body(longer)
    assert (logits - padded_logits).abs().max() < 1e-6
    assert (states - padded_states[:, : states.shape[1]]).abs().max() < 1e-5


def test_patt_without_training_is_the_average_exactly(tokenizer, letters, tmp_path):
    """Zero weights: plan and exchanged model are those of avg, bit for bit."""
    new = write_tokenizer(
        tmp_path, [*SPECIALS, "the", "imagine", "##orcycle", "singer", ".", "'", "s", "ab", "a"]
    )
    body = masked_lm(len(tokenizer.vocabulary)).model
    table = body.get_input_embeddings().weight.detach()
    patt = generator_method("patt_eg", EmbeddingGenerator("patt", WIDTH), table)
    models_made = []
    for method in ("avg", patt):
        plan = build_plan(tokenizer.vocabulary, new.vocabulary, method)
        assert plan.counts()["composed"] == 3
        models_made.append(exchange_vocabulary(body, plan).state_dict())
    assert all(torch.equal(models_made[0][name], models_made[1][name]) for name in models_made[0])


def test_bias_goes_with_the_rows(tokenizer, tmp_path):
    """Number 43: biases 1 and 3 of a and b give a token of both 2, under every name the bias has."""
    new = write_tokenizer(tmp_path, [*SPECIALS, "##ba", "a", "b"])
    body = masked_lm(len(tokenizer.vocabulary)).model
    ids = tokenizer.vocabulary.ids_by_surface
    with torch.no_grad():
        body.cls.predictions.bias[ids["##b"]], body.cls.predictions.bias[ids["##a"]] = 1.0, 3.0
    plan = build_plan(tokenizer.vocabulary, new.vocabulary, "fvt")
    made = exchange_vocabulary(body, plan)
    assert float(made.cls.predictions.bias[5].detach()) == 2.0
    assert made.cls.predictions.decoder.bias.data_ptr() == made.cls.predictions.bias.data_ptr()
    assert json.loads(made.config.to_json_string())["vocab_size"] == len(new.vocabulary)
