"""Our own language models: pretrained on constructed text, then grafted, frozen or finetuned.

The unigram model that they must beat knows the frequencies of the training text, smoothed by one.
"""

import math

import numpy as np
import pytest
import torch

from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.pipeline.stage import StageGraph
from nlgraft.stages import seq2seq_graph as pieces
from nlgraft.stages import text_graph
from nlgraft.stages.config_parts import LanguageModelPhaseConfig
from nlgraft.stages.run.text_stages import read_encoded, vocab_sizes
from nlgraft.text.batches import Ragged
from nlgraft.text.corpus_config import ConlangConfig
from nlgraft.text.tokenizer_config import TokenizerConfig
from nlgraft.training.language_model_training import (
    TextData,
    evaluate_language_model,
    read_language_model,
)
from nlgraft.training.losses import Seq2SeqObjective
from nlgraft.training.train_config import Side, View
from nlgraft.training.views import Encoded, Seq2SeqData
from tests.tensors import differing
from tests.tiny_models import family_config
from tests.unit.stages.runs import artifact, run

SIZES = {"d_model": 32, "num_layers": 2, "num_heads": 4, "ffn_dim": 64}
MT = {"d_model": 32, "num_encoder_layers": 1, "num_decoder_layers": 1, "num_heads": 2, "ffn_dim": 64}
TRAIN = {
    "max_steps": 80,
    "batch_tokens": 800,
    "peak_lr": 4e-3,
    "warmup_steps": 20,
    "lr_schedule": "cosine",
    "eval_every_steps": 40,
}


def encoded_text():
    """Sentences of the target language as ids."""
    config = ConlangConfig(corpus="conlang", task="monolingual", train=1000, dev=100, test=1)
    lines = text_graph.text("lm", config)
    tokenizer = text_graph.tokenizer("lm", TokenizerConfig(vocab_size=300), {"lm": lines})
    return text_graph.encode("lm", lines, {"source 0": tokenizer})


@pytest.fixture(scope="module", params=["uni_lm", "bi_lm"])
def pretrained(request, store):
    """A pretraining stage that has run: the configuration with its vocabulary, the artifact, the record."""
    phase = LanguageModelPhaseConfig(model={"kind": request.param, **SIZES}, train=TRAIN)
    graph = StageGraph(pieces.language_model("lm", encoded_text(), phase, seed=1))
    record = run(store, graph)
    directory = artifact(store, graph, "lm")
    return read_language_model(directory).config, directory, record


@pytest.fixture(scope="module")
def text(pretrained, store):
    """Train and dev sentences, and the size of their vocabulary."""
    directory = store.fetch(encoded_text().encoded)
    train, dev = (read_encoded(directory, split).stream("source 0") for split in ("train", "dev"))
    return train, dev, vocab_sizes(directory)["source 0"]


def unigram_perplexity(train, dev, num_ends, vocab_size):
    """Of dev sentences with so many predicted end tokens, under smoothed frequencies of train."""
    counts = np.bincount(train.values, minlength=vocab_size) + 1.0
    counts[3] += num_ends * len(train)
    logs = np.log(counts / counts.sum())
    nats = -(logs[dev.values].sum() + num_ends * len(dev) * logs[3])
    return math.exp(nats / (len(dev.values) + num_ends * len(dev)))


def test_perplexity_falls_below_that_of_the_unigrams(text, pretrained):
    train, dev, vocab_size = text
    encoder, directory, record = pretrained
    num_ends = 1 if encoder.kind == "uni_lm" else 2
    unigrams = unigram_perplexity(train, dev, num_ends, vocab_size)
    curve = [value for _, value, _ in record.curves["lm/dev_perplexity"]]
    assert curve[-1] < curve[0]
    assert curve[-1] < 0.6 * unigrams
    model = read_language_model(directory, encoder)
    perplexity = evaluate_language_model(model, TextData(dev, batch_tokens=800)).scores["perplexity"].value
    assert perplexity == pytest.approx(min(curve), rel=1e-6)


def graft(pretrained, vocab_size, use):
    encoder, directory, _ = pretrained
    side = "src" if encoder.kind == "bi_lm" else "tgt"
    config = family_config(f"{side}_{use}", encoder=encoder, **MT)
    torch.manual_seed(1)
    return Seq2Seq(config, vocab_size, vocab_size, {"lm": read_language_model(directory, encoder)}), side


@pytest.mark.parametrize("use", ["elmo", "ft"])
def test_a_pretrained_model_is_grafted(text, pretrained, use):
    """Frozen (ELMo) it keeps its bits, finetuned it learns; either way the whole trains and decodes."""
    train, _, vocab_size = text
    model, side = graft(pretrained, vocab_size, use)
    embedding = model.source_embedding if side == "src" else model.target_embedding
    before = read_language_model(pretrained[1])
    assert not differing(before, embedding.context.encoder)
    few = Ragged.of([train[n].tolist() for n in range(32)])
    view = View(target=Side(stream="target"), target_start=3)  # the model's own sentences begin so
    data = Seq2SeqData(Encoded({"source 0": few, "target": few}), view, batch_tokens=2000)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=3e-3)
    losses = []
    for rows in [rows for epoch in range(6) for rows in data.epoch(epoch)]:
        objective = Seq2SeqObjective(0.0)(model.train(), data.batch(rows, 0))
        (objective.loss_sum / objective.num_tokens).backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(objective.loss_sum.item() / objective.num_tokens)
    assert losses[-1] < losses[0]
    assert bool(differing(before, embedding.context.encoder)) == (use == "ft")
    source = Tokens.from_lists([[*train[0].tolist(), 3]])
    [[best]] = beam_search(model, [source], config=GenerationConfig(beam=2, start_id=3, max_length_offset=4))
    assert math.isfinite(best.score)
