"""Decoding with a trained model: our search, CTranslate2 in its place, and int8, as stages of a study.

A small model is trained for some minutes first, so that hypotheses end by themselves and have a BLEU. The
peer is CTranslate2 alone: it neither reads the model and the text nor decodes and writes what it found.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from benchmarks.material import Material, load_material, our_config
from benchmarks.measure import Rates, interleave, table
from benchmarks.training import training_stage
from nlgraft.evaluation.artifact import read_lines
from nlgraft.evaluation.scores import evaluate_text
from nlgraft.nn.conversion.ctranslate2_model import ctranslate2_translator
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.stages import seq2seq_graph
from nlgraft.stages.kinds.seq2seq_kinds import DecodingSettings, TrainSettings
from nlgraft.stages.run.seq2seq_stages import train
from nlgraft.stages.run.translation_stages import HYPOTHESES_FILE, translate
from nlgraft.text.corpora import read_corpus, write_corpus
from nlgraft.text.tokenizers import EOS
from nlgraft.training.models import read_model
from nlgraft.training.train_config import SmoothedTrainConfig

NUM_STEPS = 450
BATCH_TOKENS = 1500
SIZES = {"d_model": 128, "num_encoder_layers": 2, "num_decoder_layers": 2, "num_heads": 4, "ffn_dim": 512}
NUM_ROUNDS = 5
BATCH_SENTENCES = 64
OURS, THEIRS, INT8, PEER = (
    "nlgraft",
    "nlgraft by CTranslate2",
    "nlgraft by CTranslate2, int8",
    "CTranslate2 alone",
)
AIMS = {(THEIRS, PEER): 1.0, (INT8, OURS): 1.6}
"""How many times the sentences of the second the first should decode."""
DECODE = GenerationConfig(beam=5, batch_sentences=BATCH_SENTENCES)
DECODING = {
    OURS: DecodingSettings(decode=DECODE),
    THEIRS: DecodingSettings(decode=DECODE, engine="ctranslate2"),
    INT8: DecodingSettings(decode=DECODE, dev_precision="int8"),
}


def trained(material: Material, num_steps: int = NUM_STEPS) -> Path:
    """Train the small model; returns its artifact."""
    config = SmoothedTrainConfig.model_validate(
        {
            "max_steps": num_steps,
            "batch_tokens": BATCH_TOKENS,
            "peak_lr": 2e-3,
            "warmup_steps": min(60, num_steps),
            "label_smoothing": 0.1,
            "eval_every_steps": num_steps,
        }
    )
    model = our_config(**SIZES, position_layout="marian")
    context = material.context(training_stage(material, TrainSettings(model=model, train=config)))
    train(context)
    return context.directory


def scored_split(material: Material, directory: Path) -> Path:
    """The test split in the place of dev, which alone is decoded in int8."""
    corpus = read_corpus(material.directory(material.text.corpus) / "test")
    write_corpus(corpus, directory / "dev")
    return directory


def contestant(
    material: Material, decoding: DecodingSettings, model: Path, corpus: Path
) -> Callable[[], list[str]]:
    """The translation stage of a study: the lines that it wrote."""
    text = material.text
    stage = seq2seq_graph.translate("translation", text.stage, text, "dev", decoding)

    def work() -> list[str]:
        context = material.context(stage, inputs={"model": model, "corpus": corpus})
        translate(context)
        return read_lines(context.directory / HYPOTHESES_FILE)

    return work


def peer(material: Material, directory: Path) -> Callable[[], float]:
    """CTranslate2's search, sentences longest first."""
    translator = ctranslate2_translator(read_model(directory).eval(), DECODE, "fp32", 256)
    rows = [
        [str(token) for token in [*row.tolist(), EOS]] for row in material.split("test").stream("source 0")
    ]
    rows.sort(key=len, reverse=True)

    def work() -> float:
        for start in range(0, len(rows), BATCH_SENTENCES):
            batch = rows[start : start + BATCH_SENTENCES]
            translator.translate_batch(batch, beam_size=DECODE.beam, max_batch_size=0)
        return len(rows)

    return work


def measure(
    material: Material, model: Path, num_rounds: int = NUM_ROUNDS
) -> tuple[Rates, dict[str, list[str]]]:
    """Measure sentences per CPU-second.

    Args:
        material: The corpus.
        model: Artifact of the trained model.
        num_rounds: Counted rounds.

    Returns:
        The rates, and the hypotheses of each way.
    """
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as directory:
        corpus = scored_split(material, Path(directory))

        def counted(name: str, work: Callable[[], list[str]]) -> Callable[[], float]:
            def count() -> float:
                found[name] = work()
                return len(found[name])

            return count

        contestants = {
            name: counted(name, contestant(material, decoding, model, corpus))
            for name, decoding in DECODING.items()
        }
        rates = interleave("sentences", {**contestants, PEER: peer(material, model)}, num_rounds)
    return rates, found


def bleu(material: Material, hypotheses: list[str]) -> float:
    """Score hypotheses of the test split."""
    references = read_corpus(material.directory(material.text.corpus) / "test").target
    assert references is not None
    return evaluate_text(hypotheses, references, ("bleu",)).scores["bleu"].value


def report() -> list[str]:
    """Write what was measured."""
    material = load_material()
    rates, found = measure(material, trained(material))
    lines = [
        f"## Decoding with a trained model, beam {DECODE.beam}, batches of {BATCH_SENTENCES}",
        "",
        f"d_model {SIZES['d_model']}, {NUM_STEPS} steps of training, {len(found[OURS])} sentences of test.",
        "",
        *table(rates, OURS),
        "",
    ]
    for (name, other), aim in AIMS.items():
        ratio, low, high = rates.ratio(name, other)
        lines.append(f"- {name} to {other}: {ratio:.2f} ({low:.2f}-{high:.2f} over rounds), aim {aim}")
    for name, hypotheses in found.items():
        same = sum(one == other for one, other in zip(hypotheses, found[OURS], strict=True))
        lines.append(
            f"- {name}: BLEU {bleu(material, hypotheses):.2f}, {same} of {len(hypotheses)} lines as {OURS}"
        )
    return lines
