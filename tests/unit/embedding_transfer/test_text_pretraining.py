"""Pretraining on text: masked language models and what comes of them (Table 3)."""

import numpy as np
import pytest

from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.text.corpora import read_corpus
from nlgraft.training.models import read_model
from tests.small_studies import GREEDY, TINY
from tests.tensors import differing
from tests.unit.embedding_transfer.bert_configs import graph_of, run, states
from trainables.embedding_transfer import Config

TRAIN = {"max_steps": 4, "batch_tokens": 800, "warmup_steps": 1, "peak_lr": 0.01}
BASE = {
    "data": {
        "upstream": {"corpus": "conlang", "domain": "a", "train": 100, "dev": 8, "test": 4},
        "downstream": {"corpus": "conlang", "domain": "b", "train": 100, "dev": 8, "test": 4},
    },
    "tokenizers": {
        "upstream": {"vocab_size": 200, "is_shared": True},
        "downstream": {"vocab_size": 220, "is_shared": True},
    },
    "model": TINY,
    "downstream": {"train": TRAIN},
    "generator": {"max_steps": 3, "batch_tokens": 800, "eval_every_steps": 3, "num_dev_sentences": 6},
    "decode": GREEDY,
}
QUESTIONS = {
    "upstream": {
        "corpus": "conlang",
        "task": "monolingual",
        "language": "first",
        "train": 150,
        "dev": 8,
        "test": 4,
    },
    "downstream": {
        "corpus": "conlang",
        "task": "question_generation",
        "domain": "b",
        "train": 80,
        "dev": 6,
        "test": 4,
    },
}


def configured(objective, method="patt_eg", sides="decoder", tying="decoder", **changes):
    return Config(
        **BASE
        | changes
        | {
            "upstream": {"objective": objective, "train": TRAIN},
            "transfer": {"method": method, "sides": sides},
            "model": BASE["model"] | {"tying": tying},
        }
    )


@pytest.mark.parametrize(
    ("objective", "sides"), [("denoising", "decoder"), ("denoising", "both"), ("masked_tokens", "encoder")]
)
def test_a_pretrained_model_of_text_gets_a_new_vocabulary(store, objective, sides):
    tying = "all" if objective == "denoising" else "decoder"
    record, at = run(store, configured(objective, "patt_eg", sides, tying))
    assert record.metrics["generator/parameters"] == 6 * 16
    assert "upstream/dev_bleu" not in record.metrics
    before, after = states(at, "upstream", "transfer")
    parts = {"encoder": ("source_embedding",), "decoder": ("target_embedding", "output_projection")}
    gone = tuple(name for side in parts if sides in (side, "both") for name in parts[side])
    assert all(name.startswith(gone) for name in differing(before, after))
    assert len(after["target_embedding.table.weight"]) == (200 if sides == "encoder" else 220)
    assert len(after["source_embedding.table.weight"]) == (200 if sides == "decoder" else 220)


def test_text_is_its_own_source(store):
    _, at = run(store, configured("denoising", "pretrain_finetune", tying="all"))
    corpus = read_corpus(at("upstream_text") / "train")
    assert len(corpus) == 200, "both sides of 100 pairs"
    assert corpus.target is None
    encoded = read_encoded(at("upstream_encoded"), "train")
    assert np.array_equal(encoded.stream("source 0").values, encoded.stream("target").values)


def test_questions_are_asked_of_passage_and_answer(store):
    score = {"score": {"metrics": ["bleu", "rouge_l", "meteor"]}}
    record, at = run(store, configured("denoising", "avg_eg", data=QUESTIONS, **score))
    assert {"dev/rouge_l", "dev/meteor", "dev/bleu"} <= set(record.metrics)
    line = read_corpus(at("downstream_corpus") / "train").sources[0][0]
    assert line.count(" | ") == 1


def test_a_model_without_pretraining_has_the_upstream_vocabulary(store):
    record, at = run(store, configured("masked_tokens", "untrained"))
    model = read_model(at("finetuned")).state_dict()
    assert len(model["target_embedding.table.weight"]) == 200
    assert not any(name.startswith("upstream/") for name in record.metrics)


def stage_of(name, *arguments, **changes):
    return graph_of(configured(*arguments, **changes)).find(name)


def test_arms_of_a_pretrained_text_model_share_it():
    for objective in ("denoising", "masked_tokens"):
        stages = {
            method: stage_of("upstream", objective, method)
            for method in ("pretrain_finetune", "avg_eg", "patt_eg")
        }
        assert len({pretraining.fingerprint for pretraining in stages.values()}) == 1
    text = stage_of("upstream_text", "denoising")
    assert text == stage_of("upstream_text", "masked_tokens")
    pairs = graph_of(Config(data=BASE["data"])).find("upstream_corpus")
    assert text.config["content"] == pairs.config["content"]
    assert text != pairs, "the same corpus read as text is another artifact"
    assert stage_of("upstream", "denoising") != stage_of("upstream", "masked_tokens")
    for sides in ("encoder", "both"):
        decoder = stage_of("generator", "masked_tokens", "patt_eg", "decoder")
        assert stage_of("generator", "masked_tokens", "patt_eg", sides) == decoder, "one table, one generator"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizers": {"upstream": {"is_shared": False}}}, "needs is_shared true"),
        ({"transfer": {"method": "joint_vocab"}}, "translation model"),
        ({"model": {"num_encoder_layers": 1, "num_decoder_layers": 2}}, "serves as decoder"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**BASE | {"upstream": {"objective": "masked_tokens"}} | changes)
