"""Invariants V56 to V59: released causal models, permuted vocabularies, bytes, packed text."""

import copy
import json
import math
from itertools import pairwise

import numpy as np
import pytest
import torch
import transformers

from nlgraft.nn.transformers_lms import TransformersCausalLM, load_causal_lm
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.training.causal_text import LineEnds, PackedText, causal_losses, windows
from nlgraft.training.token_distillation import Contexts
from nlgraft.vocab.methods.building import build_plan
from nlgraft.vocab.surgery.exchange import exchange_vocabulary
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from tests.tiny_causal_lms import RELEASED, release, trial_of
from tests.tiny_checkpoints import LINES, OTHER_LINES, load
from tests.unit.stages.runs import artifact, made
from trainables.llm_vocabulary import Config, stage_graph


def untrained(checkpoint, **vocabulary):
    """The graph of a trial with a released model and no training."""
    values = trial_of(checkpoint, OTHER_LINES[:30]) | {"vocabulary": vocabulary, "training": None}
    config = Config.model_validate_json(json.dumps(values))
    return stage_graph(config, seed=1, splits=("dev",))


@pytest.mark.parametrize("kind", RELEASED)
def test_an_unchanged_model_has_the_loss_of_transformers(kind, tmp_path, store):
    """Invariant V56: per line, with the model's own begin and end."""
    checkpoint = release(tmp_path / kind, kind)
    graph = untrained(checkpoint, change="none")
    made(store, graph.result)
    metrics = json.loads((artifact(store, graph, "dev_scores") / "metrics.json").read_text())
    model, tokenizer = load(checkpoint)
    begin = tokenizer.bos_token_id if tokenizer.bos_token_id is not None else tokenizer.eos_token_id
    lines = read_corpus(artifact(store, graph, "downstream_corpus") / "dev").sources[0]
    nats = tokens = 0
    for line in lines:
        bare = tokenizer(line, add_special_tokens=False).input_ids
        ids = torch.tensor([[begin, *bare, tokenizer.eos_token_id]])
        with torch.no_grad():
            nats += float(model(input_ids=ids, labels=ids).loss) * (ids.shape[1] - 1)
        tokens += ids.shape[1] - 1
    assert metrics["dev/loss"]["value"] == pytest.approx(nats / tokens, abs=1e-5)
    num_bytes = sum(len(line.encode()) + 1 for line in lines)
    assert metrics["dev/bits_per_byte"]["value"] == pytest.approx(nats / math.log(2) / num_bytes, abs=1e-5)


@pytest.mark.parametrize("kind", RELEASED)
@pytest.mark.parametrize("method", ["random", "mean", "fvt", "vipi"])
def test_a_permuted_vocabulary_changes_nothing(kind, method, tmp_path):
    """Invariant V57: the same tokens with other ids give the same model, whatever the method for new rows."""
    old_directory, new_directory = release(tmp_path / kind, kind), tmp_path / "permuted"
    new_directory.mkdir()
    document = json.loads((old_directory / "tokenizer.json").read_text())
    order = np.random.default_rng(1).permutation(len(document["model"]["vocab"]))
    vocabulary = document["model"]["vocab"]
    document["model"]["vocab"] = {token: int(order[i]) for token, i in vocabulary.items()}
    for entry in document["added_tokens"]:
        entry["id"] = int(order[entry["id"]])
    document["post_processor"] = None
    (new_directory / "tokenizer.json").write_text(json.dumps(document))
    old, new = load_vocabulary(old_directory), load_vocabulary(new_directory)
    model = load(old_directory)[0]
    # Rows beyond the vocabulary, as Qwen's has, take part in the softmax, and an exchange drops them.
    model.resize_token_embeddings(len(old))
    plan = build_plan(old, new, method)
    exchanged = exchange_vocabulary(model, plan)
    lines = [[vocabulary[token] for token in _tokens(old_directory, line)] for line in LINES[:6]]
    before, after = (
        causal_losses(TransformersCausalLM(variant), Ragged.of(ids), LineEnds.of(ends), 16)
        for variant, ids, ends in (
            (model, lines, old),
            (exchanged, [[int(order[i]) for i in line] for line in lines], new),
        )
    )
    assert after == pytest.approx(before, abs=1e-5)


def _tokens(directory, line):
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_file=str(directory / "tokenizer.json"))
    return tokenizer.tokenize(line)


def test_windows_predict_every_token_once():
    """Invariant V58: whatever the length, and with one token of context at least."""
    lengths = [2, 3, 4, 5, 9]
    starts = np.cumsum([0, *lengths])
    sequences = Ragged.of([range(a, b) for a, b in pairwise(starts)])
    rows, owner = windows(sequences, 3)
    assert [list(rows[i]) for i in range(len(rows))] == [
        [0, 1],
        [2, 3, 4],
        [5, 6, 7, 8],
        [9, 10, 11, 12],
        [12, 13],
        [14, 15, 16, 17],
        [17, 18, 19, 20],
        [20, 21, 22],
    ]
    assert list(owner) == [0, 1, 2, 3, 3, 4, 4, 4]


@pytest.mark.parametrize("ends", [LineEnds(0, 0), LineEnds(0, 1)])
def test_two_vocabularies_read_the_same_lines_at_the_same_step(ends):
    """Invariant V59: batches depend on the text; packed, they hold each of its tokens once."""
    generator = np.random.default_rng(0)
    characters = generator.integers(4, 40, size=30)
    fine = Ragged.of([[10 + i] * int(n) for i, n in enumerate(characters)])
    coarse = Ragged.of([[10 + i] * max(1, int(n) // 3) for i, n in enumerate(characters)])
    texts = [PackedText(characters, 100, 3, ids, ends, max_tokens=7) for ids in (fine, coarse)]
    for epoch in range(3):
        fine_batches, coarse_batches = (text.batches(epoch) for text in texts)
        assert [list(batch) for batch in fine_batches] == [list(batch) for batch in coarse_batches]
        assert sorted(np.concatenate(fine_batches)) == [*range(30)]
        for text, ids in zip(texts, (fine, coarse), strict=True):
            for rows, lines in zip(text.epoch(epoch), fine_batches, strict=True):
                batch = text.batch(rows, epoch)
                predicted = batch.ids[:, 1:][batch.valid[:, 1:]]
                expected = sorted(token for line in lines for token in ids[line])
                assert sorted(int(token) for token in predicted if token >= 10) == expected
                assert int((predicted == ends.end).sum()) == len(lines)
    assert [list(batch) for batch in texts[0].batches(0)] != [list(batch) for batch in texts[0].batches(1)]
    sizes = [characters[batch].sum() for batch in texts[0].batches(0)]
    assert max(sizes[:-1]) < 100 + characters.max()
    num_batches = len(sizes)
    assert list(texts[0].times_read(num_batches)) == [1] * 30
    assert texts[0].times_read(num_batches + 2).sum() == 30 + sum(map(len, texts[0].batches(1)[:2]))


def released_distillation(model, contexts, phrases, **adam):
    """The released train_loop.py of Dobler et al. (2025): states by MSE, beside it untied rows by CE."""
    tables = [model.get_input_embeddings().weight, model.get_output_embeddings().weight]
    is_tied = tables[0] is tables[1]
    optimizer = torch.optim.AdamW(tables[: 2 - is_tied], weight_decay=0.0, **adam)
    for batch in contexts:
        optimizer.zero_grad()
        squares, nats = [], []
        for old in batch:
            new, kept, start = [], [], 0
            while start < len(old):
                pieces = [tuple(old[start : start + length]) for length in range(len(old), 0, -1)]
                longest = next((piece for piece in pieces if piece in phrases), pieces[-1])
                new.append(phrases.get(longest, longest[0]))
                start += len(longest)
                kept.append(start - 1)
            with torch.no_grad():
                teacher = model(torch.tensor([old]), output_hidden_states=True).hidden_states[-1][0, kept]
            student = model(torch.tensor([new]), output_hidden_states=True)
            squares.append((student.hidden_states[-1][0] - teacher).square())
            logits, tokens = student.logits[0, :-1], torch.tensor(new[1:])
            nats.append(torch.nn.functional.cross_entropy(logits, tokens, reduction="none"))
        if not is_tied:
            nats_mean = torch.cat(nats).sum() / len(torch.cat(squares))  # theirs: over predicted tokens
            nats_mean.backward(inputs=[tables[1]], retain_graph=True)
        torch.cat(squares).mean().backward(inputs=[tables[0]])
        for table in tables:
            is_old = torch.ones(len(table), dtype=torch.bool)
            is_old[[*phrases.values()]] = False
            table.grad[is_old] = 0
        optimizer.step()


@pytest.mark.parametrize("kind", ["llama", "gpt2"])
def test_distilled_rows_are_those_of_the_released_code(kind, tmp_path, store, monkeypatch):
    """Invariant V61: untied and tied; other rows, and those of tokens without contexts, keep their bits."""
    adam = {"lr": 0.01, "betas": (0.9, 0.999), "eps": 1e-8}
    train = {"max_steps": 8, "max_epochs": None, "batch_sentences": 3, "average_last": 1, "peak_lr": 0.01}
    distillation = {"num_contexts": 4, "context_tokens": 10, "train": train}
    contexts, read, pack = [], set(), Contexts.batch

    def record(self, rows, epoch):
        batch = pack(self, rows, epoch)
        if torch.is_grad_enabled():
            contexts.append(
                [ids[valid].tolist() for ids, valid in zip(batch.old.ids, batch.old.valid, strict=True)]
            )
            read.update(batch.new.ids.flatten().tolist())
        return batch

    monkeypatch.setattr(Contexts, "batch", record)
    graph = untrained(
        release(tmp_path / kind, kind), change="extend", num_added=15, distillation=distillation
    )
    made(store, graph.result)
    expected, end = (
        load_causal_lm(str(artifact(store, graph, name)), None).model for name in ("transfer", "distilled")
    )
    old, new = (
        load_vocabulary(artifact(store, graph, f"{name}_tokenizer")) for name in ("checkpoint", "changed")
    )
    added = read & {*range(len(old), len(new))}
    assert 4 < len(added) < 15
    phrases = {tuple(piece.id for piece in old.segment(new.token(identity))): identity for identity in added}
    start = copy.deepcopy(expected.state_dict())
    released_distillation(expected, contexts, phrases, **adam)
    for name, tensor in expected.state_dict().items():
        torch.testing.assert_close(end.state_dict()[name], tensor, rtol=1e-4, atol=1e-6, msg=name)
        unmoved = [row for row in range(len(tensor)) if len(tensor) < len(old) or row not in added]
        assert torch.equal(end.state_dict()[name][unmoved], start[name][unmoved])
