"""Checkpoints of four architectures, body only, through whole trials: same code for all."""

import json

import pytest
import transformers

from nlgraft.basics.errors import DataError
from nlgraft.nn.masked_lm_models import load_checkpoint
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.text.corpora import load_corpus
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import WordTokenizerConfig
from nlgraft.text.tokenizers import learn_tokenizer
from nlgraft.training.masked_lm_training import read_masked_lm
from tests.tensors import differing
from tests.tiny_masked_lms import WIDTH, masked_lm
from tests.unit.embedding_transfer.bert_configs import graph_of
from trainables.embedding_transfer import Config

TEXT = {"corpus": "conlang", "task": "monolingual"}
TRAIN = {
    "max_steps": 2,
    "batch_tokens": 300,
    "warmup_steps": 0,
    "eval_every_steps": 2,
}


def write_checkpoint(kind, directory):
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
    # RoBERTa counts its positions from the padding id, which the new vocabulary has elsewhere
    model = masked_lm(len(tokenizer), kind, pad_id=tokenizer.pad_token_id).model
    model.base_model.save_pretrained(directory)
    return str(directory)


def _put_padding_second(path):
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
    store = ArtifactStore.open(tmp_path / "store")
    graph = graph_of(config)
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
    trained = differing(before, learned)
    assert trained
    assert trained <= head - tied
    changed = differing(learned, after)
    assert all(learned[name].shape != after[name].shape for name in changed)
    assert any("word_embeddings" in name for name in changed)
    if kind == "roberta":  # the padding id moved from 1 to 0: the positions with it
        assert any("position_embeddings" in name for name in changed)


def test_a_sentence_encoder_gets_a_fresh_head(minilm):
    """The body is the checkpoint's own; the head is drawn from the seed, and nothing else is."""
    model, drawn = load_checkpoint(str(minilm), None, 1)
    assert drawn
    assert all(name.startswith("cls.predictions.") for name in drawn)
    other, _ = load_checkpoint(str(minilm), None, 2)
    same, _ = load_checkpoint(str(minilm), None, 1)
    assert not differing(model, same)
    assert differing(model, other) == {"model.cls.predictions.transform.dense.weight"}
    assert model.max_tokens == 510


def test_a_path_without_a_checkpoint_is_refused(tmp_path):
    with pytest.raises(DataError, match="not readable as a masked language model"):
        load_checkpoint(str(tmp_path), None, 0)
