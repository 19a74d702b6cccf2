"""Translation of a split by beam search, and its scores."""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import numpy as np

from nlgraft.evaluation.artifact import (
    read_lines,
    read_segments,
    write_evaluation,
    write_lines,
    write_metrics,
    write_segments,
)
from nlgraft.evaluation.calibration import evaluate_calibration, token_confidences
from nlgraft.evaluation.inputs import Inputs, with_foreign_source
from nlgraft.evaluation.learned_metric import build_scorer, learned_rows
from nlgraft.evaluation.overlap import lead, oracle
from nlgraft.evaluation.scores import Evaluation, Score, evaluate_documents, evaluate_text
from nlgraft.evaluation.scripts import TextTokenizers, choose_tokenizers
from nlgraft.evaluation.translation import Translations, speed_signature
from nlgraft.evaluation.translation import translate as decode
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import GenerationConfig
from nlgraft.nn.rereading import without_language_model_cache
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.metrics import metric_name
from nlgraft.stages.run.text_stages import encode_lines, open_tokenizer
from nlgraft.stages.seq2seq_graph import (
    EXTRACT,
    LAST_SENTENCE,
    LEARNED_SCORE,
    SCORE,
    TRANSLATE,
    ExtractSettings,
    LearnedScoreSettings,
    ScoreSettings,
    TranslateInputs,
    TranslateSettings,
)
from nlgraft.text.corpora import Corpus, read_corpus
from nlgraft.text.tokenizers import Tokenizer
from nlgraft.training.models import read_model
from nlgraft.training.train_config import Side
from nlgraft.training.views import Encoded, prepare_inputs

HYPOTHESES_FILE = "hypotheses.txt"
_LOG = logging.getLogger(__name__)


def translate(context: StageContext) -> None:
    """Translate a split by beam search; write the hypotheses, their length, the speed and the calibration."""
    settings, inputs = TRANSLATE.read(context)
    split = settings.split
    model = read_model(inputs.model).to(context.device)
    prepared = model_inputs(settings, inputs, model.room("source"))
    if settings.foreign_source is not None:
        # A fixed seed, so that all trials translate the same mismatched sources.
        prepared = with_foreign_source(prepared, settings.foreign_source, seed=0)
    translations = search(model, prepared, settings)
    tokenizer = open_tokenizer(inputs.tokenizers[settings.view.target.stream])
    write_lines(context.directory / HYPOTHESES_FILE, tokenizer.decode(translations.best))
    # Lengths and speed of an upstream model would be taken for the trial's.
    if not settings.is_measured:
        return
    calibrated = None
    if settings.is_calibrated:
        references = read_corpus(inputs.corpus / split).text("target")
        calibrated = calibration(
            model, prepared, translations.best, tokenizer, references, settings.generation
        )
    signature = speed_signature(settings.decode.beam, settings.decode.batch_sentences, context.device)
    write_output_measures(context, split, translations.best, translations.seconds, signature, calibrated)


def write_output_measures(
    context: StageContext,
    split: str,
    outputs: Sequence[Sequence[int]],
    seconds: float,
    signature: str,
    calibrated: Evaluation | None,
) -> None:
    """Write length and speed of the outputs of a split, and their calibration if it was measured."""
    evaluation = _lengths("hypothesis_length", outputs, "tokens of the model, end of sentence not counted")
    if calibrated is not None:
        evaluation |= calibrated
    amounts = {"sentences_per_s": len(outputs), "tokens_per_s": sum(map(len, outputs))}
    speeds = {
        name: Score(amount / seconds, len(outputs), "maximize", signature) for name, amount in amounts.items()
    }
    write_segments(context.directory, split, evaluation.statistics)
    scores = {**evaluation.scores, **speeds}
    write_metrics(context.directory, {f"{split}/{name}": score for name, score in scores.items()})


def search(model: Seq2Seq, inputs: Inputs, settings: TranslateSettings) -> Translations:
    """Search for translations, with or without the cache of a language model."""
    with nullcontext() if settings.has_lm_cache else without_language_model_cache(model):
        return decode(model, inputs, settings.generation)


def model_inputs(settings: TranslateSettings, inputs: TranslateInputs[Path], room: int | None) -> Inputs:
    """Encode what the model reads of a split, see ``encoded_inputs``."""
    corpus = read_corpus(inputs.corpus / settings.split)
    return encoded_inputs(settings, corpus, inputs.tokenizers, room)


def encoded_inputs(
    settings: TranslateSettings,
    corpus: Corpus,
    tokenizers: Mapping[str, Path],
    room: int | None,
) -> Inputs:
    """Encode what a model reads of a corpus.

    Sources that are longer than in training, or than the model has room for, are cut and counted.
    """
    view = settings.view
    if room is not None:
        view = view.model_copy(update={"sources": tuple(_fitting(side, room) for side in view.sources)})
    streams, num_cut = {}, Counter[str]()
    for side in (*view.sources, *view.contexts.values()):
        text = corpus.text(settings.streams[side.stream])
        tokenizer = open_tokenizer(tokenizers[side.stream])
        # Test splits are encoded here, since only train and dev are encoded in advance.
        streams[side.stream], num_cut[side.stream] = encode_lines(text, tokenizer, settings.max_tokens)
    prepared, num_cut_by_view = prepare_inputs(Encoded(streams), view)
    for stream, count in (num_cut | Counter(num_cut_by_view)).items():
        if count:
            _LOG.warning("%s, %s: %d of %d sequences were cut", settings.split, stream, count, len(prepared))
    return prepared


def _fitting(side: Side, room: int) -> Side:
    room -= len(side.prefix) + len(side.suffix)
    return side.model_copy(update={"max_tokens": min(room, side.max_tokens or room)})


def _lengths(name: str, sequences: Sequence[Sequence[int]], signature: str) -> Evaluation:
    rows = np.array([[len(ids), 1] for ids in sequences], dtype=np.float64)
    return Evaluation.of({name: rows}, signature)


def calibration(
    model: Seq2Seq,
    inputs: Inputs,
    best: Sequence[Sequence[int]],
    tokenizer: Tokenizer,
    references: list[str],
    config: GenerationConfig,
) -> Evaluation:
    """Compare the model's confidence in its own tokens with how often they are right."""
    confidences = token_confidences(model, inputs, best, config)
    hypotheses, right = (
        [[str(identity) for identity in ids] for ids in side] for side in (best, tokenizer.encode(references))
    )
    return evaluate_calibration(hypotheses, confidences, right)


def keep_last_sentence(context: StageContext) -> None:
    """Keep the part of each translation after its last separator."""
    settings, inputs = LAST_SENTENCE.read(context)
    lines = read_lines(inputs.translation / HYPOTHESES_FILE)
    kept = [last_sentence(line, settings.separator) for line in lines]
    write_lines(context.directory / HYPOTHESES_FILE, kept)


def last_sentence(line: str, separator: str) -> str:
    """Return the text after the last separator, or the whole line if there is none."""
    return line.rpartition(separator)[2].strip()


def extract(context: StageContext) -> None:
    """Write summaries of a split that are taken from the text itself."""
    settings, inputs = EXTRACT.read(context)
    corpus = read_corpus(inputs.corpus / settings.split)
    texts, references = (corpus.text(role) for role in ("source 0", "target"))
    count, words = settings.num_sentences, _tokenizers(inputs.corpus, settings).rouge
    summaries = [
        lead(text, count) if settings.method == "lead" else oracle(text, reference, count, words)
        for text, reference in zip(texts, references, strict=True)
    ]
    write_lines(context.directory / HYPOTHESES_FILE, summaries)


def score(context: StageContext) -> None:
    """Score the translations of every split, with per-segment statistics and lengths of the references."""
    settings, inputs = SCORE.read(context)
    tokenizer, compared = (
        None if path is None else open_tokenizer(path)
        for path in (inputs.target_tokenizer, inputs.compared_tokenizer)
    )
    words = _tokenizers(inputs.corpus, settings)
    for split, translation in inputs.translations.items():
        corpus = read_corpus(inputs.corpus / split)
        originals = corpus.text("target")
        hypotheses, references = read_lines(translation / HYPOTHESES_FILE), originals
        if tokenizer is not None:
            # characters that the tokenizer normalises away can never be in a hypothesis
            hypotheses, references = tokenizer.normalised(hypotheses), tokenizer.normalised(references)
        normalization = "identity" if tokenizer is None else tokenizer.normalization
        # Both belong to the signature: scores of other words or other text do not compare.
        how = {"tokenizers": words, "normalization": normalization}
        evaluation = evaluate_text(hypotheses, references, settings.metrics, **how)
        if settings.has_documents:
            documents = corpus.text("document")
            evaluation |= evaluate_documents(hypotheses, references, documents, **how)
        if settings.metric_prefix:
            _write_aside(context.directory, split, evaluation, settings.metric_prefix)
            continue
        extra: dict[str, Score] = {}
        if tokenizer is not None:
            signature = "tokens of the model's vocabulary, end of sentence not counted"
            evaluation |= _lengths("reference_length", tokenizer.encode(references), signature)
        if tokenizer is not None and compared is not None:
            extra["length_saved"] = _saved(references, tokenizer, compared)
        if split == "dev" and inputs.trained is not None and tokenizer is not None:
            # Per character of the text as it is: normalisation belongs to a tokenizer.
            lengths = [len(ids) for ids in tokenizer.encode(originals)]
            extra |= _nats_per_char(inputs.trained, originals, lengths, settings.max_tokens)
        write_evaluation(context.directory, split, hypotheses, references, evaluation, extra)


def _tokenizers(corpus: Path, settings: ScoreSettings | ExtractSettings) -> TextTokenizers:
    """Choose by the dev references for all splits, so that their scores compare."""
    references = read_corpus(corpus / "dev").text("target")
    bleu = settings.bleu_tokenizer if isinstance(settings, ScoreSettings) else None
    return choose_tokenizers(references, bleu, settings.rouge_tokenizer)


def _write_aside(directory: Path, split: str, evaluation: Evaluation, prefix: str) -> None:
    """Write a scored split under a prefix, without its lines; the artifact may already hold another one."""
    scores = {metric_name(f"{split}/{name}", prefix): score for name, score in evaluation.scores.items()}
    write_metrics(directory, scores)
    rows = {f"{split}_{name}": statistics for name, statistics in evaluation.statistics.items()}
    write_segments(directory, prefix, rows)


def _saved(references: list[str], tokenizer: Tokenizer, compared: Tokenizer) -> Score:
    after, before = (sum(map(len, each.encode(references))) for each in (tokenizer, compared))
    signature = "1 - tokens of the model's vocabulary / tokens of the upstream vocabulary"
    return Score(1 - after / before, len(references), "maximize", signature)


def _nats_per_char(
    trained: Path, references: Sequence[str], lengths: Sequence[int], max_tokens: int | None
) -> dict[str, Score]:
    """Divide the loss of the lines that were not cut by their characters; nothing if all were cut."""
    is_whole_N = np.array(lengths) <= (np.inf if max_tokens is None else max_tokens)
    characters = np.array([len(line) for line in references])[is_whole_N].sum()
    if not characters:
        return {}
    nats = read_segments(trained, "dev")["loss"][is_whole_N, 0].sum()
    signature = "nats of one segmentation per reference character|uncut lines"
    value = float(nats / characters)
    return {"nats_per_char": Score(value, int(is_whole_N.sum()), "minimize", signature)}


# Scores of translations by a learned metric.


_DIGITS = 12


def score_learned(context: StageContext) -> None:
    """Score the translations of every split, each segment alone, with the first source and the target."""
    settings, inputs = LEARNED_SCORE.read(context)
    scorer = build_scorer(settings.metric, context.locations.get("checkpoint"), settings.options)
    name = f"learned.{settings.name}"
    for split, translation in inputs.translations.items():
        corpus = read_corpus(inputs.corpus / split)
        sources, references = (corpus.text(role) for role in ("source 0", "target"))
        hypotheses = read_lines(translation / HYPOTHESES_FILE)
        rows = learned_rows(scorer, name, sources, hypotheses, references)
        evaluation = Evaluation.of({name: rows}, _signature(settings))
        write_segments(context.directory, split, evaluation.statistics)
        write_metrics(context.directory, {f"{split}/{name}": evaluation.scores[name]})


def _signature(settings: LearnedScoreSettings) -> str:
    """Name what a score depends on: the metric, its version, checkpoint and options."""
    parts = [settings.metric, f"version:{settings.version}"]
    for what, content in (("checkpoint", settings.content), ("options", settings.options)):
        if content:
            parts.append(f"{what}:{hashlib.sha256(canonical_json(content).encode()).hexdigest()[:_DIGITS]}")
    return "|".join(parts)
