"""Decoding: sentences per CPU-second at beam 5 and equal length, with one set of weights everywhere.

Ours is the translation stage of a study, called as a trial calls it: it reads the model, encodes the text,
searches, decodes and writes. The peers only search.

The model is exported to Hugging Face's Marian and converted from there to CTranslate2. Setting the minimum
length equal to the maximum makes every system take the same number of decoder steps. The limit is the speed
of the matrix products alone, by the library that our decoding takes for them.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.material import SIZE, Material, load_material, our_model
from benchmarks.measure import Rates, interleave, table
from benchmarks.peers import ctranslate2_translator, exported_marian, token_names
from nlgraft.evaluation.artifact import read_lines
from nlgraft.nn.batch import Tokens
from nlgraft.nn.generation import beam_search
from nlgraft.nn.linear import packed_weights
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.stages import seq2seq_graph
from nlgraft.stages.run.seq2seq_stages import HYPOTHESES_FILE, translate
from nlgraft.stages.seq2seq_graph import DecodingSettings
from nlgraft.text.corpora import Corpus, read_corpus, write_corpus
from nlgraft.text.tokenizers import EOS
from nlgraft.training.models import write_model

BEAM = 5
NUM_STEPS = 17
NUM_SENTENCES = 256
BATCH_SENTENCES = 64
NUM_ROUNDS = 7
LIMIT, HUGGING_FACE, CTRANSLATE2 = "GEMM limit", "Hugging Face generate", "CTranslate2 fp32"
AIMS = {HUGGING_FACE: 1.3, CTRANSLATE2: 0.8}
"""How many times their sentences ours should decode."""


def chunks_of(
    material: Material, num_sentences: int = NUM_SENTENCES, batch_sentences: int = BATCH_SENTENCES
) -> list[Tokens]:
    """Test sentences, longest first, in batches."""
    stream = material.split("test").stream("source 0")
    order = np.argsort(-stream.lengths[:num_sentences], kind="stable")
    rows = [[*stream[int(n)].tolist(), EOS] for n in order]
    starts = range(0, len(rows), batch_sentences)
    return [Tokens.from_lists(rows[start : start + batch_sentences]) for start in starts]


def fixed_length(beam: int = BEAM, batch_sentences: int = BATCH_SENTENCES) -> GenerationConfig:
    """So many decoder steps: at the last one our search asks for the end."""
    return GenerationConfig(
        beam=beam,
        max_length_ratio=0.0,
        max_length_offset=NUM_STEPS - 1,
        min_length=NUM_STEPS - 1,
        batch_sentences=batch_sentences,
    )


def searched(model: Seq2Seq, chunks: Sequence[Tokens], beam: int = BEAM) -> Callable[[], list[list[int]]]:
    """Our search alone: ids of the best hypotheses."""
    config = fixed_length(beam)
    return lambda: [best.ids for chunk in chunks for [best] in beam_search(model, [chunk], config=config)]


def ours(
    material: Material,
    model: Seq2Seq,
    directory: Path,
    device: str = "cpu",
    amounts: tuple[int, int, int] = (BEAM, NUM_SENTENCES, BATCH_SENTENCES),
) -> Callable[[], float]:
    """The translation stage of a study, with its beam, sentences and sentences of a batch."""
    beam, num_sentences, batch_sentences = amounts
    write_model(model, directory)
    text = material.text
    # a stage that stands for the training: the artifact is handed over
    decoding = DecodingSettings(decode=fixed_length(beam, batch_sentences))
    stage = seq2seq_graph.translate("translation", text.encoded, text, "test", decoding)
    inputs = {"model": directory, "corpus": _few_sentences(material, directory / "corpus", num_sentences)}

    def work() -> float:
        context = material.context(stage, inputs=inputs, device=device)
        translate(context)
        return len(read_lines(context.directory / HYPOTHESES_FILE))

    return work


def _few_sentences(material: Material, directory: Path, num_sentences: int) -> Path:
    corpus = read_corpus(material.directory(material.text.corpus) / "test")
    lines = {role: lines[:num_sentences] for role, lines in corpus.streams().items()}
    write_corpus(Corpus.from_streams(lines), directory / "test")
    return directory


def hugging_face(model: Any, chunks: Sequence[Tokens], beam: int) -> Callable[[], list[list[int]]]:
    """The search of transformers alone: ids of the best hypotheses."""

    def work() -> list[list[int]]:
        outputs: list[list[int]] = []
        for chunk in chunks:
            with torch.inference_mode():
                ids = model.generate(
                    input_ids=chunk.ids,
                    attention_mask=chunk.valid.long(),
                    num_beams=beam,
                    min_new_tokens=NUM_STEPS,
                    max_new_tokens=NUM_STEPS,
                    do_sample=False,
                )
            outputs += ids[:, 1:].tolist()
        return outputs

    return work


def _ctranslate2(
    translator: Any, chunks: Sequence[Tokens], names: list[str], beam: int
) -> Callable[[], list[list[int]]]:
    texts = [
        [
            [names[token] for token in row[is_real].tolist()]
            for row, is_real in zip(c.ids, c.valid, strict=True)
        ]
        for c in chunks
    ]
    number = {name: token for token, name in enumerate(names)}

    def work() -> list[list[int]]:
        outputs: list[list[int]] = []
        for text in texts:
            results = translator.translate_batch(
                text,
                beam_size=beam,
                min_decoding_length=NUM_STEPS,
                max_decoding_length=NUM_STEPS,
                max_batch_size=0,
            )
            outputs += [[number[name] for name in result.hypotheses[0]] for result in results]
        return outputs

    return work


def _limit(chunks: Sequence[Tokens], vocab_size: int) -> Callable[[], list[list[int]]]:
    """The matrix products of encoder, decoder steps and vocabulary, without attention, softmax or search."""
    width, inner = SIZE["d_model"], SIZE["ffn_dim"]
    shapes = [(width, 3 * width), *[(width, width)] * 3, (width, inner), (inner, width)]
    step = nn.ModuleList(nn.Linear(*shape) for shape in shapes)
    encoder = [step[0], step[1], step[4], step[5]]
    cross, vocabulary = nn.Linear(width, 2 * width), nn.Linear(width, vocab_size, bias=False)
    once = encoder * SIZE["num_encoder_layers"] + [cross] * SIZE["num_decoder_layers"]
    repeated = [*[*step] * SIZE["num_decoder_layers"], vocabulary]

    def work() -> list[list[int]]:
        with torch.inference_mode(), packed_weights(nn.ModuleList([step, cross, vocabulary])):
            for chunk in chunks:
                inputs = {size: torch.zeros(chunk.ids.numel(), size) for size in (width, inner)}
                for layer in once:
                    layer(inputs[layer.in_features])
                inputs = {size: torch.zeros(len(chunk.ids) * BEAM, size) for size in (width, inner)}
                for _ in range(NUM_STEPS):
                    for layer in repeated:
                        layer(inputs[layer.in_features])
        return [[]] * sum(len(chunk.ids) for chunk in chunks)

    return work


def _agreement(first: list[list[int]], second: list[list[int]]) -> float:
    """Share of the tokens up to the last step that two systems have in common."""
    pairs = [(a, b) for x, y in zip(first, second, strict=True) for a, b in zip(x, y, strict=False)]
    return sum(a == b for a, b in pairs) / (NUM_SENTENCES * (NUM_STEPS - 1))


def measure(material: Material) -> tuple[Rates, dict[str, float]]:
    """Measure our beam search against the peers'.

    Args:
        material: The corpus.

    Returns:
        Sentences per CPU-second, and by peer the share of greedily decoded tokens that are ours.
    """
    chunks, names = chunks_of(material), token_names(material.vocab_size)
    model = our_model(material.vocab_size, position_layout="marian").eval()
    with tempfile.TemporaryDirectory() as directory:
        marian = exported_marian(model, Path(directory) / "marian")
        translator = ctranslate2_translator(marian, Path(directory) / "ctranslate2")
        greedy = searched(model, chunks, beam=1)()
        agreement = {
            HUGGING_FACE: _agreement(greedy, hugging_face(marian, chunks, 1)()),
            CTRANSLATE2: _agreement(greedy, _ctranslate2(translator, chunks, names, 1)()),
        }
        searches = {
            HUGGING_FACE: hugging_face(marian, chunks, BEAM),
            CTRANSLATE2: _ctranslate2(translator, chunks, names, BEAM),
            LIMIT: _limit(chunks, material.vocab_size),
        }
        peers = {name: (lambda work=work: float(len(work()))) for name, work in searches.items()}
        (Path(directory) / "model").mkdir()
        contestants = {"nlgraft": ours(material, model, Path(directory) / "model"), **peers}
        return interleave("sentences", contestants, NUM_ROUNDS), agreement


def report() -> list[str]:
    """Write what was measured."""
    rates, agreement = measure(load_material())
    lines = [
        f"## Decoding, beam {BEAM}, {NUM_STEPS} decoder steps, random weights, batches of {BATCH_SENTENCES}",
        "",
        *table(rates, HUGGING_FACE),
        "",
        "Greedily decoded tokens that are the same as ours: "
        + ", ".join(f"{name} {100 * share:.1f} %" for name, share in agreement.items())
        + ". Ratios of nlgraft:",
        "",
    ]
    for peer, aim in AIMS.items():
        ratio, low, high = rates.ratio("nlgraft", peer)
        lines.append(f"- {peer}: {ratio:.2f} ({low:.2f}-{high:.2f} over rounds), aim {aim}")
    for name in ("nlgraft", CTRANSLATE2):
        ratio, low, high = rates.ratio(name, LIMIT)
        lines.append(f"- {name} to the GEMM limit: {ratio:.2f} ({low:.2f}-{high:.2f})")
    return lines
