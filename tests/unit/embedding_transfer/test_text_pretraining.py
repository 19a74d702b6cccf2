"""Pretraining on text: masked language models and what comes of them (Table 3)."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from nlgraft.nn.batch import Batch, Tokens
from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import NullReporter
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.pipeline.trial import run_trial
from nlgraft.stages.run.text import read_encoded
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizers import BOS, EOS
from nlgraft.training.models import read_model
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.embedding_transfer import METRICS, Config, stage_graph
from trainables.embedding_transfer.cloze import (
    Cloze,
    ClozeData,
    ClozePerturbedData,
    ClozeReader,
    encoder_twice,
)
from trainables.embedding_transfer.generator_training import GeneratorModel, GeneratorObjective
from trainables.embedding_transfer.generators import EmbeddingGenerator
from trainables.embedding_transfer.new_tokens import SimilarOptions
from trainables.embedding_transfer.perturbation import Rates
from trainables.embedding_transfer.stages.encoder_pretraining import MASKED_LM

MASK = 4
TRAIN = {"max_steps": 4, "batch_tokens": 800, "warmup_steps": 1, "peak_lr": 0.01}
BASE = {
    "data": {
        "upstream": {"corpus": "conlang", "domain": "a", "train": 100, "dev": 8, "test": 4},
        "downstream": {"corpus": "conlang", "domain": "b", "train": 100, "dev": 8, "test": 4},
    },
    "tokenizers": {
        "upstream": {"vocab_size": 200, "is_shared": True, "special_tokens": ["<mask>"]},
        "downstream": {"vocab_size": 220, "is_shared": True},
    },
    "model": {"preset": "tiny", "d_model": 16, "ffn_dim": 32, "num_heads": 2},
    "downstream": {"train": TRAIN},
    "generator": {"max_steps": 3, "batch_tokens": 800, "eval_every_steps": 3, "num_dev_sentences": 6},
    "decode": {"beam": 1, "max_length_offset": 5},
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


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return ArtifactStore.open(str(tmp_path_factory.mktemp("store")))


def run(store, config):
    graph = stage_graph(config, seed=1, splits=("dev",))
    said = config.model_dump(mode="json")
    record = run_trial(graph, store, reporter=NullReporter(), config=said, is_waiting=True, seed=1)
    assert record.state == "finished"
    assert set(record.metrics) <= set(METRICS)
    return record, lambda name: store.fetch(graph.find(name))


# --- masked language model ------------------------------------------------------------------------------


def test_asked_tokens_are_hidden_as_bert_does():
    """80 % behind the mask, 10 % random, 10 % as they are; begin and end are never asked."""
    text = Ragged.of([list(range(100, 150))] * 200)
    settings = {"mask_id": MASK, "vocab_size": 1000, "num_special": 5, "rate": 0.15}
    data = ClozeData(text, **settings, batch_tokens=100_000, seed=1)
    batch = data.batch(np.arange(200), 0)
    asked, read, true = batch.target_input.valid, batch.sources[0].ids, batch.target_output
    assert (true[:, 0] == BOS).all()
    assert (true[:, -1] == EOS).all()
    assert not asked[:, [0, -1]].any()
    assert torch.equal(read[~asked], true[~asked])
    assert float(asked[:, 1:-1].float().mean()) == pytest.approx(0.15, abs=0.01)
    hidden = float((read[asked] == MASK).float().mean())
    same = float((read[asked] == true[asked]).float().mean())
    assert hidden == pytest.approx(0.8, abs=0.03)
    assert same == pytest.approx(0.1, abs=0.03)
    assert int(read[asked & (read != MASK)].min()) >= 5


def test_a_line_of_one_token_is_asked():
    settings = {"mask_id": MASK, "vocab_size": 10, "num_special": 5, "rate": 0.001}
    data = ClozeData(Ragged.of([[7]] * 20), **settings, batch_tokens=1000, seed=1)
    assert data.batch(np.arange(20), 3).target_input.valid.sum(1).tolist() == [1] * 20


@pytest.mark.parametrize("norm", ["post", "pre"])
def test_the_decoder_begins_as_the_encoder(norm):
    """Without cross-attention and future, decoder states are those of the encoder on a line of one token."""
    config = TransformerConfig(preset="tiny", d_model=16, ffn_dim=32, num_heads=2, norm=norm)
    torch.manual_seed(0)
    masked = Seq2Seq(config.model_copy(update={"tying": "all"}), 12, 12).eval()
    both = encoder_twice(masked, config, Seq2Seq(config, 12, 12)).eval()
    assert torch.equal(both.source_embedding.table.weight, both.target_embedding.table.weight)
    assert both.source_embedding.table.weight.data_ptr() != both.target_embedding.table.weight.data_ptr()
    assert both.output_projection.weight.data_ptr() == both.target_embedding.table.weight.data_ptr()
    line = Tokens.from_lists([[5]])
    with torch.no_grad():
        for layer in both.decoder:
            layer.cross_attention.output.weight.zero_()
            layer.cross_attention.output.bias.zero_()
        states = both(Batch([line], line, line.ids))
        expected = Cloze(masked)(Batch([line], line, line.ids))
    assert torch.allclose(states, expected, atol=1e-5)


# --- whole trials ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("objective", ["denoising", "masked_lm"])
@pytest.mark.parametrize("sides", ["decoder", "both"])
def test_a_pretrained_model_of_text_gets_a_new_vocabulary(store, objective, sides):
    tying = "all" if objective == "denoising" else "decoder"
    record, at = run(store, configured(objective, "patt_eg", sides, tying))
    assert record.metrics["generator/parameters"] == 6 * 16
    assert "upstream/dev_bleu" not in record.metrics
    before, after = (read_model(at(name)).state_dict() for name in ("upstream", "transfer"))
    gone = ("target_embedding", "output_projection", *(["source_embedding"] if sides == "both" else []))
    assert all(torch.equal(before[n], after[n]) for n in before if not n.startswith(gone))
    assert len(after["target_embedding.table.weight"]) == 220
    assert len(after["source_embedding.table.weight"]) == (220 if sides == "both" else 200)


def test_text_is_its_own_source(store):
    _, at = run(store, configured("denoising", "pretrain_finetune", tying="all"))
    corpus = read_corpus(at("upstream_text") / "train")
    assert len(corpus) == 200, "both sides of 100 pairs"
    assert corpus.target is None
    encoded = read_encoded(at("upstream_encoded"), "train")
    assert np.array_equal(encoded.stream("source 0").values, encoded.stream("target").values)


def test_the_masked_model_is_kept_beside_what_comes_of_it(store):
    _, at = run(store, configured("masked_lm", "pretrain_finetune"))
    masked, both = (read_model(at("upstream") / part).state_dict() for part in (MASKED_LM, "."))
    for name, tensor in both.items():
        if name.startswith("encoder."):
            assert torch.equal(tensor, masked[name])
            assert torch.equal(tensor, both[name.replace("encoder", "decoder", 1)])
    assert torch.equal(both["target_embedding.table.weight"], masked["source_embedding.table.weight"])


def cloze_data(at, rates, rate):
    vocabulary = load_vocabulary(at("upstream_shared_tokenizer") / "tokenizer.model")
    encoded = read_encoded(at("upstream_encoded"), "train")
    options = SimilarOptions(10, "id")
    return ClozePerturbedData(
        encoded,
        {"decoder": vocabulary},
        {"decoder": rates},
        options,
        batch_tokens=10_000,
        seed=1,
        mask_id=MASK,
        rate=rate,
    )


def test_both_segmentations_hide_the_same_words(store):
    """A word is hidden whole in both or in neither; what is asked holds new tokens, by their extended ids."""
    _, at = run(store, configured("masked_lm"))
    rates = Rates(min_split_chars=3)
    batch = cloze_data(at, rates, 0.15).batch(np.arange(60), 0)
    num_new_asked = 0
    for row in range(60):
        hidden = []
        for half, words in ((batch.original, batch.original_words), (batch.perturbed, batch.perturbed_words)):
            asked, own = half.target_input.valid[row], words["decoder"][row]
            assert torch.equal(half.sources[0].ids[row] == MASK, asked)
            hidden.append({int(word) for word in own[asked]})
            assert not {int(word) for word in own[~asked]} & hidden[-1]
        assert hidden[0] == hidden[1] != set()
        labels = batch.perturbed.target_output[row][batch.perturbed.target_input.valid[row]]
        num_new_asked += int((labels >= 200).sum())
    assert num_new_asked > 10
    assert len(batch.new_tokens["decoder"].members) > num_new_asked / 60


def test_unchanged_segmentation_teaches_nothing(store):
    """Number 25: without a change student and teacher agree exactly, holes and all."""
    _, at = run(store, configured("masked_lm"))
    data = cloze_data(at, Rates(split=0.0, merge=0.0), 0.3)
    batch = data.batch(np.arange(20), 0)
    body = read_model(at("upstream") / MASKED_LM)
    model = GeneratorModel(body, {"decoder": EmbeddingGenerator("patt", 16)}, ClozeReader)
    objective = GeneratorObjective(0.5)
    assert not objective.distillation(model, batch, model(batch)[0]).detach().any()
    loss = objective(model, batch)
    assert loss.num_tokens == int(batch.original.target_input.valid.sum())


def test_questions_are_asked_of_passage_and_answer(store):
    score = {"score": {"metrics": ["bleu", "rouge_l", "meteor"]}}
    record, at = run(store, configured("denoising", "avg_eg", data=QUESTIONS, **score))
    assert {"dev/rouge_l", "dev/meteor", "dev/bleu"} <= set(record.metrics)
    line = read_corpus(at("downstream_corpus") / "train").sources[0][0]
    assert line.count(" | ") == 1


def test_a_model_without_pretraining_has_the_upstream_vocabulary(store):
    record, at = run(store, configured("masked_lm", "untrained"))
    model = read_model(at("finetuned")).state_dict()
    assert len(model["target_embedding.table.weight"]) == 200
    assert not any(name.startswith("upstream/") for name in record.metrics)


def stage_of(name, *arguments, **changes):
    return stage_graph(configured(*arguments, **changes), seed=1, splits=("dev",)).find(name)


def test_arms_of_a_pretrained_text_model_share_it():
    for objective in ("denoising", "masked_lm"):
        stages = {
            method: stage_of("upstream", objective, method)
            for method in ("pretrain_finetune", "avg_eg", "patt_eg")
        }
        assert len({found.fingerprint for found in stages.values()}) == 1
    text = stage_of("upstream_text", "denoising")
    assert text == stage_of("upstream_text", "masked_lm")
    pairs = stage_graph(Config(data=BASE["data"]), seed=1, splits=("dev",)).find("upstream_corpus")
    assert text.config["content"] == pairs.config["content"]
    assert text != pairs, "the same corpus read as text is another artifact"
    assert stage_of("upstream", "denoising") != stage_of("upstream", "masked_lm")
    for sides in ("encoder", "both"):
        decoder = stage_of("generator", "masked_lm", "patt_eg", "decoder")
        assert stage_of("generator", "masked_lm", "patt_eg", sides) == decoder, "one table, one generator"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tokenizers": {"upstream": {"is_shared": True}}}, "special_tokens"),
        ({"transfer": {"method": "joint_vocab"}}, "translation model"),
        ({"model": {"num_encoder_layers": 1, "num_decoder_layers": 2}}, "serves as decoder"),
        ({"upstream": {"objective": "masked_lm", "mean_span_tokens": 2.0}}, "only denoising"),
        ({"upstream": {"mask_rate": 0.2}}, "hides nothing"),
    ],
)
def test_contradictions_are_refused(changes, message):
    with pytest.raises(ValueError, match=message):
        Config(**BASE | {"upstream": {"objective": "masked_lm"}} | changes)
