"""Translation and scores."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path

import numpy as np

from nlgraft.evaluation.artifact import (
    read_lines,
    read_segments,
    write_evaluation,
    write_lines,
    write_segments,
)
from nlgraft.evaluation.calibration import evaluate_calibration, token_confidences
from nlgraft.evaluation.inputs import Inputs
from nlgraft.evaluation.scores import Evaluation, Score, evaluate_text, score_statistics
from nlgraft.nn.batch import Tokens
from nlgraft.nn.config import GenerationConfig, TransformerConfig
from nlgraft.nn.generation import beam_search
from nlgraft.pipeline.stage import StageContext
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizers import EOS, Tokenizer
from trainables.embedding_transfer.stages.text import open_tokenizer, open_tokenizers, sides_of
from trainables.embedding_transfer.stages.training import read_model

HYPOTHESES_FILE = "hypotheses.txt"
METRICS_FILE = "metrics.json"
_LOG = logging.getLogger(__name__)
DEFAULT_METRICS = ("bleu", "chrf", "ter")


def translate(context: StageContext) -> None:
    """Translate a split by beam search.

    Args:
        context: ``split``, ``decode``, ``is_timed``, ``is_calibrated``; inputs ``model``, ``corpus`` and both
            tokenizers.
    """
    config = context.config
    split = config["split"]
    source_tokenizer, target_tokenizer = open_tokenizers(context)
    lines, references = sides_of(read_corpus(context.inputs["corpus"] / split))
    model = read_model(context.inputs["model"]).to(context.device)
    encoded = _with_end(source_tokenizer.encode(lines), model.config, split)
    sources = Tokens.from_lists(encoded)
    started = time.perf_counter()
    found = beam_search(model, [sources], config=GenerationConfig(**config["decode"]))
    seconds = time.perf_counter() - started
    best = [hypotheses[0].ids for hypotheses in found]
    write_lines(context.directory / HYPOTHESES_FILE, target_tokenizer.decode(best))
    scores: dict[str, Score] = {}
    if config.get("is_calibrated"):
        inputs = Inputs([Ragged.of(encoded)])
        confidences = token_confidences(
            model,
            inputs,
            best,
            start_id=config["decode"]["start_id"],
            end_id=config["decode"]["end_id"],
            device=context.device,
        )
        scores |= _calibration(context, target_tokenizer, best, confidences, references)
    if config.get("is_timed", True):
        scores[f"{split}/sentences_per_s"] = Score(
            "sentences_per_s",
            len(lines) / seconds,
            len(lines),
            "maximize",
            f"beam {config['decode']['beam']}",
        )
    if scores:
        _write_metrics(context.directory, scores)


def _with_end(rows: list[list[int]], config: TransformerConfig, split: str) -> list[list[int]]:
    """End every source; what learned positions cannot hold is cut off, and said."""
    room = config.max_positions - 1
    if config.source_positions == "learned" and (num_cut := sum(len(row) > room for row in rows)):
        _LOG.warning("%s: %d of %d sources are cut to %d tokens", split, num_cut, len(rows), room)
        rows = [row[:room] for row in rows]
    return [[*row, EOS] for row in rows]


def _calibration(
    context: StageContext,
    tokenizer: Tokenizer,
    best: list[list[int]],
    confidences: list[list[float]],
    references: list[str],
) -> dict[str, Score]:
    """Score how far the model's confidence in its own tokens is from their being right."""
    sides = (best, tokenizer.encode(references))
    hypotheses, right = ([[str(identity) for identity in ids] for ids in side] for side in sides)
    evaluation = evaluate_calibration(hypotheses, confidences, right)
    split = context.config["split"]
    write_segments(context.directory, split, evaluation.statistics)
    return {f"{split}/ece": evaluation.scores["ece"]}


def score_upstream(context: StageContext) -> None:
    """Score the pretrained model on dev of its own domain.

    Args:
        context: Inputs ``translation`` and ``corpus``.
    """
    _, references = sides_of(read_corpus(context.inputs["corpus"] / "dev"))
    hypotheses = read_lines(context.inputs["translation"] / HYPOTHESES_FILE)
    bleu = evaluate_text(hypotheses, references, ("bleu",)).scores["bleu"]
    _write_metrics(context.directory, {"upstream/dev_bleu": bleu})


def score(context: StageContext) -> None:
    """Score the translations of every split, with per-segment statistics and sequence lengths.

    Args:
        context: ``splits``, ``metrics``; inputs ``corpus``, ``finetuned``, ``target_tokenizer``, a
            ``translation_<split>`` each, and ``upstream_target_tokenizer`` where there is a pretrained model.
    """
    for split in context.config["splits"]:
        _, references = sides_of(read_corpus(context.inputs["corpus"] / split))
        hypotheses = read_lines(context.inputs[f"translation_{split}"] / HYPOTHESES_FILE)
        metrics = context.config.get("metrics", DEFAULT_METRICS)
        evaluation = evaluate_text(hypotheses, references, metrics) | _lengths(context, references)
        extra = _saved(context, references, evaluation)
        if split == "dev":
            extra |= _nats_per_char(context, references)
        write_evaluation(context.directory, split, hypotheses, references, evaluation, extra)


def _lengths(context: StageContext, references: list[str]) -> Evaluation:
    statistics = _length_statistics(context.inputs["target_tokenizer"], references)
    signature = "reference tokens of the downstream vocabulary, end of sentence not counted"
    return Evaluation(
        {"reference_length": score_statistics("reference_length", statistics, signature)},
        {"reference_length": statistics},
    )


def _length_statistics(tokenizer: Path, lines: list[str]) -> np.ndarray:
    """Tokens and a one for each segment, [N, 2]."""
    lengths = [len(ids) for ids in open_tokenizer(tokenizer).encode(lines)]
    return np.stack([np.array(lengths, dtype=np.float64), np.ones(len(lines))], axis=1)


def _saved(context: StageContext, references: list[str], evaluation: Evaluation) -> dict[str, Score]:
    if "upstream_target_tokenizer" not in context.inputs:
        return {}
    before = _length_statistics(context.inputs["upstream_target_tokenizer"], references)[:, 0].sum()
    after = evaluation.statistics["reference_length"][:, 0].sum()
    signature = "1 - tokens of the downstream vocabulary / tokens of the upstream vocabulary"
    return {
        "length_saved": Score(
            "length_saved", float(1 - after / before), len(references), "maximize", signature
        )
    }


def _nats_per_char(context: StageContext, references: list[str]) -> dict[str, Score]:
    nats = read_segments(context.inputs["finetuned"], "dev")["loss"][:, 0].sum()
    value = float(nats / sum(map(len, references)))
    signature = "nats of one segmentation per reference character"
    return {"nats_per_char": Score("nats_per_char", value, len(references), "minimize", signature)}


def _write_metrics(directory: Path, scores: dict[str, Score]) -> None:
    document = {name: found.to_json() for name, found in scores.items()}
    (directory / METRICS_FILE).write_text(json.dumps(document, indent=1) + "\n", "utf-8")
