"""Training and scoring of masked language models, and of encoder-decoders and classifiers built on one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.artifact import write_metrics, write_segments
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.evaluation.sufficient import Statistics
from nlgraft.nn.masked_lm_models import (
    Classifier,
    EncoderMaskedLM,
    MaskedLM,
    TransformersMaskedLM,
    fresh_bert,
    load_checkpoint,
)
from nlgraft.nn.transformers_lms import fresh_like
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.masked_lm_graph import (
    BEGIN_MASKED,
    BERT2BERT,
    CHECKPOINT_TOKENIZER,
    ENCODED_WORDS,
    SCORE_CLASSIFIER,
    SCORE_MASKED,
    TRAIN_CLASSIFIER,
    TRAIN_MASKED,
    WORD_TOKENIZER,
    ClassifierInputs,
    TrainMaskedSettings,
)
from nlgraft.stages.run.text_stages import REPORT_FILE, read_encoded, training_budget
from nlgraft.stages.run.training_task import (
    SampledLines,
    TrainingTask,
    write_scores,
    write_split,
)
from nlgraft.stages.stage_kind import TrainLanguageModelInputs
from nlgraft.text.batches import LengthBatches, Ragged
from nlgraft.text.corpora import read_corpus, read_splits
from nlgraft.text.files import chunks, write_json
from nlgraft.text.tokenizer_config import WordSampling
from nlgraft.text.tokenizers import TOKENIZER_FILE, EncodedLines, encode_words, learn_tokenizer
from nlgraft.training.loop import TrainOutcome
from nlgraft.training.losses import TokenObjective
from nlgraft.training.masked_lm_training import (
    LOSS,
    PER_CHARACTER,
    LabelledData,
    bert2bert,
    classification_objective,
    evaluate_classifier,
    fresh_classifier,
    fresh_encoder,
    index_labels,
    masked_losses,
    predict_masked,
    read_body,
    read_classifier,
    read_masked_lm,
    write_classifier,
    write_masked_lm,
)
from nlgraft.training.masked_text import (
    TEXT,
    WORD_SIZES,
    WORDS,
    MaskedData,
    MaskedScoringData,
    Masker,
    MaskingIds,
)
from nlgraft.training.models import fresh_model, write_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import TrainData, Training
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, MaskedScoringConfig
from nlgraft.training.views import Encoded, write_encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary, read_by_transformers

_SIGNATURE = "all tokens of the units masked, the same units in every trial"
_SCORING_TOKENS = 4096
"""Positions of a batch that is only read."""


def train(context: StageContext) -> None:
    """Train a masked language model, fresh, released or from an earlier one; write it with its dev losses."""
    settings, inputs = TRAIN_MASKED.read(context)
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))
    model = _start_model(settings, inputs, context, ids).to(context.device)
    masker = Masker(read_encoded(inputs.encoded, "train"), ids, settings.masking, context.seed)
    dev = _scoring_data(inputs.encoded, "dev", ids, settings.scoring)
    # Before training: torch would fail at the first long line, perhaps after an hour.
    model.refuse_longer(max(part.tokens.lengths.max(initial=0) for part in (masker, dev.masker)))

    def measure(model: MaskedLM) -> Evaluation:
        return Evaluation.of(masked_losses(model, dev, context.device), _SIGNATURE)

    # With statistics of segments, so that zero-shot losses can be tested as others are.
    at_start: dict[str, Statistics] = {}
    if 0 in settings.report_steps:
        statistics = measure(model).statistics
        at_start = {f"{name}.step_0": rows for name, rows in statistics.items()}
    budget = training_budget(settings.train, inputs.corpus, "train", context.seed)
    data = _train_data(settings, inputs, masker, budget)
    objective = TokenObjective(predict_masked, settings.label_smoothing, settings.smoothing_kind)
    task = TrainingTask(
        Training(model, objective, data, settings.train, _learned(settings, model)),
        measure,
        save=write_masked_lm,
        prefix=settings.metric_prefix,
        report_steps=settings.report_steps,
    )
    _, evaluation = task.run(context)
    write_segments(context.directory, "dev", {**at_start, **evaluation.statistics})
    scores = {**Evaluation.of(at_start, _SIGNATURE).scores, **_amounts(dev, evaluation.statistics)}
    named = {f"dev/{name}": score for name, score in scores.items()}
    write_scores(context.directory, named, settings.metric_prefix)


def _train_data(
    settings: TrainMaskedSettings,
    inputs: TrainLanguageModelInputs[Path],
    masker: Masker,
    budget: int | LengthBatches,
) -> TrainData:
    if settings.sampling is None:
        return MaskedData(masker, budget)

    def masked(text: Encoded) -> MaskedData:
        return MaskedData(Masker(text, masker.ids, settings.masking, masker.seed), budget)

    lines = read_corpus(inputs.corpus / "train").text(TEXT)
    return SampledLines(lines, inputs.tokenizer, settings.sampling, masker.seed, masked)


def _learned(settings: TrainMaskedSettings, model: MaskedLM) -> LearnedParameters:
    if settings.is_body_trained:
        return ALL_LEARNED
    assert isinstance(model, TransformersMaskedLM)
    return LearnedParameters(frozen=(model.body_pattern,))


def _start_model(
    settings: TrainMaskedSettings,
    inputs: TrainLanguageModelInputs[Path],
    context: StageContext,
    ids: MaskingIds,
) -> MaskedLM:
    if inputs.start is not None:
        return read_masked_lm(inputs.start)
    seed = derive_seed(context.seed, "initial weights")
    if settings.checkpoint is not None:
        model, drawn = load_checkpoint(context.locations["checkpoint"], settings.checkpoint.revision, seed)
        # what the checkpoint lacked: its prediction head, if it is a sentence encoder
        write_json(context.directory / "drawn.json", drawn)
        return model
    size = len(load_vocabulary(inputs.tokenizer))
    if settings.encoder is not None:
        return fresh_encoder(settings.encoder, size, seed=seed)
    if settings.bert is None or settings.max_tokens is None:
        raise ContractError(
            f"stage {context.stage.name}: give it a start, a checkpoint, an encoder or a bert with max_tokens"
        )
    return fresh_bert(settings.bert, size, pad_id=ids.pad, max_tokens=settings.max_tokens, seed=seed)


def begin(context: StageContext) -> None:
    """Write a masked language model before any training: a released one, or one with fresh weights."""
    settings, inputs = BEGIN_MASKED.read(context)
    seed = derive_seed(context.stage.seed or 0, "initial weights")
    vocabulary = load_vocabulary(inputs.tokenizer)
    size, pad_id = len(vocabulary), MaskingIds.of(vocabulary).pad
    if settings.bert is not None:
        assert settings.max_tokens is not None
        model = fresh_bert(settings.bert, size, pad_id=pad_id, max_tokens=settings.max_tokens, seed=seed)
    else:
        assert settings.checkpoint is not None
        where = context.locations["checkpoint"], settings.checkpoint.revision
        model = load_checkpoint(*where, seed)[0]
        if settings.is_fresh:
            model = TransformersMaskedLM(fresh_like(model.model, size, pad_id=pad_id, seed=seed))
    write_masked_lm(model, context.directory)


def score(context: StageContext) -> None:
    """Measure the losses of a model on a split."""
    settings, inputs = SCORE_MASKED.read(context)
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))
    model = read_masked_lm(inputs.model).to(context.device)
    data = _scoring_data(inputs.encoded, settings.split, ids, settings.scoring)
    model.refuse_longer(data.masker.tokens.lengths.max(initial=0))
    evaluation = Evaluation.of(masked_losses(model, data, context.device), _SIGNATURE)
    write_split(context.directory, settings.split, evaluation)


def begin_encoder_decoder(context: StageContext) -> None:
    """Write an encoder-decoder initialised with a masked language model on both sides."""
    settings, inputs = BERT2BERT.read(context)
    masked = read_masked_lm(inputs.masked_lm)
    if not isinstance(masked, EncoderMaskedLM):
        raise ContractError(f"stage {context.stage.name}: needs a masked language model on our own encoder")
    config = settings.model or masked.model.config.model_copy(
        update={
            "tying": "decoder",
            "num_decoder_layers": masked.model.config.num_encoder_layers,
            "has_output_bias": False,
        }
    )
    size = len(masked.input_table)
    write_model(bert2bert(masked, config, fresh_model(config, size, size, context.seed)), context.directory)


def _scoring_data(
    encoded: Path, split: str, ids: MaskingIds, scoring: MaskedScoringConfig
) -> MaskedScoringData:
    text = read_encoded(encoded, split)
    if scoring.num_lines is not None:
        # The first lines, so that all trials score the same ones.
        text = text.first(scoring.num_lines)
    return MaskedScoringData(text, ids, scoring, _SCORING_TOKENS)


def _amounts(dev: MaskedScoringData, statistics: Mapping[str, Statistics]) -> dict[str, Score]:
    """Count the predicted characters, and the share of unknown tokens, to compare between trials."""
    unknown = dev.masker.ids.unk
    num_unknown = sum(int((batch.targets == unknown).sum()) for _, batch in dev.in_order())
    share, count = num_unknown / float(statistics[LOSS][:, 1].sum()), len(dev.masker)
    amounts = {"mlm_unknown": Score(share, count, "minimize", _SIGNATURE)}
    if PER_CHARACTER in statistics:
        characters = float(statistics[PER_CHARACTER][:, 1].sum())
        amounts["mlm_chars"] = Score(characters, count, "maximize", _SIGNATURE)
    return amounts


# Text of masked language models: tokenizers in one file format, encoded lines that keep their words.


def learn(context: StageContext) -> None:
    """Learn a tokenizer from the training lines of a corpus."""
    settings, inputs = WORD_TOKENIZER.read(context)
    learn_tokenizer(read_corpus(inputs.corpus / "train").lines(TEXT), settings.tokenizer, context.directory)


def copy_tokenizer(context: StageContext) -> None:
    """Take the tokenizer of a released model.

    Raises:
        DataError: It has none that can be written as ``tokenizer.json``.
    """
    settings, _ = CHECKPOINT_TOKENIZER.read(context)
    checkpoint = context.locations["checkpoint"]
    read_by_transformers(checkpoint, settings.revision).save_pretrained(context.directory)
    if not (context.directory / TOKENIZER_FILE).is_file():
        raise DataError(
            f"{checkpoint}: its tokenizer cannot be written as {TOKENIZER_FILE}; convert it to a fast "
            "tokenizer first"
        )


def encode(context: StageContext) -> None:
    """Encode all splits that the corpus has; lines that are too long are cut and counted."""
    settings, inputs = ENCODED_WORDS.read(context)
    vocabulary = load_vocabulary(inputs.tokenizer)
    unknown = MaskingIds.of(vocabulary).unk
    report: dict[str, object] = {"vocab_sizes": {TEXT: len(vocabulary)}}
    for split, corpus in read_splits(inputs.corpus).items():
        lines = corpus.lines(TEXT)
        counts = Counter[str]()
        encoded = (
            encode_words(inputs.tokenizer / TOKENIZER_FILE, chunk, settings.max_tokens)
            for chunk in chunks(lines)
        )
        write_encoded(context.directory / f"{split}.safetensors", _parts(encoded, unknown, counts))
        report[f"{split}/{TEXT}"] = {
            "cut": counts["cut"],
            "tokens_per_line": counts["tokens"] / max(1, len(lines)),
            "fertility": counts["tokens"] / max(1, counts["words"]),
            "unknown": counts["unknown"],
        }
    write_json(context.directory / REPORT_FILE, report)


def _parts(
    encoded: Iterable[EncodedLines], unknown: int, counts: Counter[str]
) -> Iterator[tuple[str, Ragged]]:
    """Name the streams of encoded lines, and count."""
    for part in encoded:
        counts["cut"] += part.num_cut
        counts["tokens"] += len(part.ids.values)
        counts["words"] += len(part.word_sizes.values)
        counts["unknown"] += int((part.ids.values == unknown).sum())
        yield from ((TEXT, part.ids), (WORDS, part.words), (WORD_SIZES, part.word_sizes))


# Sequence classifiers on the body of a masked language model.


def train_classifier(context: StageContext) -> None:
    """Train a classifier; write it with its dev scores, its size and the learning curves."""
    settings, inputs = TRAIN_CLASSIFIER.read(context)
    # Sorted, so that a class has the same number in every process.
    labels = sorted(set(_labels(inputs, "train")))
    if len(labels) < 2:
        raise DataError(f"train has one label, {labels[0]!r}: nothing is left to decide")
    body = read_body(inputs.body)
    budget = training_budget(settings.train, inputs.corpus, "train", context.seed)
    data: LabelledData | SampledLines = _data(inputs, "train", labels, body, budget, context.seed)
    if settings.sampling is not None:
        data = _sampled(inputs, settings.sampling, data, budget, context.seed)
    dev = _data(inputs, "dev", labels, body)
    model = fresh_classifier(body, len(labels), settings.classifier, context.seed)

    def measure(model: Classifier) -> Evaluation:
        return evaluate_classifier(model, dev, len(labels), context.device)

    def save(model: Classifier, directory: Path) -> None:
        write_classifier(model, labels, directory)

    training = Training(model, classification_objective, data, settings.train)
    outcome, _ = TrainingTask(training, measure, save).run(context)
    # How fast it learns, in one number: a method may end equal and be better on the way.
    mean = Score(_curve_mean(outcome), len(dev), "maximize", "trapezoids over steps|points")
    write_metrics(context.directory, {"dev/accuracy.curve": mean})


def _sampled(
    inputs: ClassifierInputs[Path],
    sampling: WordSampling,
    plain: LabelledData,
    budget: int | LengthBatches,
    seed: int,
) -> SampledLines:
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))

    def labelled(text: Encoded) -> LabelledData:
        return LabelledData(text.stream(TEXT), plain.classes, ids, batch_tokens=budget, seed=seed)

    lines = read_corpus(inputs.corpus / "train").text(TEXT)
    return SampledLines(lines, inputs.tokenizer, sampling, seed, labelled)


def _curve_mean(outcome: TrainOutcome) -> float:
    """Average the accuracy between the first and the last evaluation over the steps."""
    points = np.array([point[:2] for point in outcome.curves["dev/accuracy"]])
    # One evaluation has no width to average over.
    if len(points) == 1:
        return float(points[0, 1])
    # The area under the curve, divided by its width.
    return float(np.trapezoid(points[:, 1], points[:, 0]) / (points[-1, 0] - points[0, 0]))


def score_classifier(context: StageContext) -> None:
    """Score a classifier on a split, with per-line statistics."""
    settings, inputs = SCORE_CLASSIFIER.read(context)
    model, labels = read_classifier(inputs.classifier, inputs.body)
    data = _data(inputs, settings.split, labels, model.body)
    evaluation = evaluate_classifier(model.to(context.device), data, len(labels), context.device)
    write_split(context.directory, settings.split, evaluation)


def _labels(inputs: ClassifierInputs[Path], split: str) -> list[str]:
    return read_corpus(inputs.corpus / split).text("label")


def _data(
    inputs: ClassifierInputs[Path],
    split: str,
    labels: Sequence[str],
    body: MaskedLM,
    batch_tokens: int | LengthBatches = _SCORING_TOKENS,
    seed: int = 0,
) -> LabelledData:
    """Set up the lines of a split.

    Raises:
        DataError: A line is longer than the body's position table, or a label unknown.
    """
    lines = read_encoded(inputs.encoded, split).stream(TEXT)
    body.refuse_longer(lines.lengths.max(initial=0))
    classes = index_labels(_labels(inputs, split), labels, split)
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))
    return LabelledData(lines, classes, ids, batch_tokens=batch_tokens, seed=seed)
