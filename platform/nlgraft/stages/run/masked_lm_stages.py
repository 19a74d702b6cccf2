"""Training and scoring of masked language models, and encoder-decoders initialised with one."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.basics.errors import ContractError, DataError
from nlgraft.evaluation.artifact import write_metrics, write_segments
from nlgraft.evaluation.scores import Score, score_statistics
from nlgraft.evaluation.sufficient import Statistics
from nlgraft.nn.masked_lm_models import (
    EncoderMaskedLM,
    MaskedLM,
    TransformersMaskedLM,
    fresh_bert,
    load_checkpoint,
)
from nlgraft.nn.transformers_lms import fresh_like
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.kinds.language_model_kinds import TrainLanguageModelInputs
from nlgraft.stages.kinds.masked_lm_kinds import (
    BEGIN_MASKED,
    BERT2BERT,
    SCORE_MASKED,
    TRAIN_MASKED,
    TrainMaskedSettings,
)
from nlgraft.stages.metrics import metric_name
from nlgraft.stages.run.new_rows import new_rows_of_one_table
from nlgraft.stages.run.text_stages import read_encoded, text_of, training_budget
from nlgraft.text.batches import LengthBatches
from nlgraft.text.corpora import read_corpus
from nlgraft.training.loop import Training, TrainOutcome
from nlgraft.training.loop import train as run_loop
from nlgraft.training.masked_lm_training import (
    MaskedLosses,
    MaskedObjective,
    bert2bert,
    fresh_encoder,
    masked_losses,
    read_masked_lm,
    write_masked_lm,
)
from nlgraft.training.masked_text import TEXT, MaskedData, MaskedScoringData, Masker, MaskingIds
from nlgraft.training.models import fresh_model, write_model
from nlgraft.training.rows_first import RowsFirst
from nlgraft.training.sampled_lines import SampledLines
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import TrainData
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, MaskedScoringConfig, TrainConfig
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary

LOSS, PER_CHARACTER = "loss", "mlm_loss_per_char"
_SIGNATURE = "all tokens of the units masked, the same units in every trial"
_SCORING_TOKENS = 4096
"""Positions of a batch that is only read."""


def train(context: StageContext) -> None:
    """Train a masked language model, fresh, released or from an earlier one; write it with its dev losses."""
    settings, inputs = TRAIN_MASKED.read(context)
    assert context.seed is not None
    ids = MaskingIds.of(load_vocabulary(inputs.tokenizer))
    model = _start_model(settings, inputs, context, ids).to(context.device)
    masker = Masker(read_encoded(inputs.encoded, "train"), ids, settings.masking, context.seed)
    dev = _scoring_data(inputs.encoded, "dev", ids, settings.scoring)
    _check_positions(model, masker, dev.masker)
    statistics: dict[str, Statistics] = {}
    if 0 in settings.report_steps:
        at_start = _statistics(masked_losses(model, dev, context.device))
        statistics = {f"{name}.step_0": rows for name, rows in at_start.items()}
    prefix, config = settings.metric_prefix, _train_config(settings)

    def evaluate(model: MaskedLM) -> Mapping[str, float]:
        losses = masked_losses(model, dev, context.device)
        return {metric_name(f"dev/{name}", prefix): score.value for name, score in _scores(losses).items()}

    budget = training_budget(config, inputs.corpus, "train", context.seed)
    data = _train_data(settings, inputs, masker, budget)
    objective = MaskedObjective(settings.label_smoothing, settings.smoothing_kind)
    outcome = run_loop(
        Training(model, objective, data, config, _learned(settings, model)),
        context,
        evaluate=evaluate,
        save=write_masked_lm,
        rows_first=_new_rows_first(settings, inputs, model),
    )
    losses = masked_losses(model, dev, context.device)
    statistics |= _statistics(losses)
    scores = {name: score_statistics(name, rows, _SIGNATURE) for name, rows in statistics.items()}
    scores |= _step_scores(settings, outcome, len(losses.nats)) | _amounts(losses)
    write_segments(context.directory, "dev", statistics)
    named = {f"dev/{name}": score for name, score in scores.items()} | outcome.scores
    write_metrics(context.directory, {metric_name(name, prefix): score for name, score in named.items()})


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

    lines = text_of(read_corpus(inputs.corpus / "train"), [TEXT])
    return SampledLines(lines, inputs.tokenizer, settings.sampling, masker.seed, masked)


def _train_config(settings: TrainMaskedSettings) -> TrainConfig:
    config = settings.train
    changes: dict[str, Any] = {"best_metric": metric_name(config.best_metric, settings.metric_prefix)}
    if 0 in settings.report_steps:
        changes["is_evaluated_at_start"] = True
    return config.model_copy(update=changes)


def _learned(settings: TrainMaskedSettings, model: MaskedLM) -> LearnedParameters:
    if settings.is_body_trained:
        return ALL_LEARNED
    assert isinstance(model, TransformersMaskedLM)
    return LearnedParameters(frozen=(model.body_pattern,))


def _new_rows_first(
    settings: TrainMaskedSettings, inputs: TrainLanguageModelInputs[Path], model: MaskedLM
) -> RowsFirst | None:
    if inputs.start is None:
        return None
    return new_rows_of_one_table(settings.new_rows_first_steps, inputs.start, model, model.vocabulary_tensors)


def _step_scores(settings: TrainMaskedSettings, outcome: TrainOutcome, num_lines: int) -> dict[str, Score]:
    """Take the losses after the steps that are reported from the learning curves."""
    scores = {}
    for name in (LOSS, PER_CHARACTER):
        for step, value, _ in outcome.curves.get(metric_name(f"dev/{name}", settings.metric_prefix), []):
            if step and step in settings.report_steps:
                key = f"{name}.step_{int(step)}"
                scores[key] = Score(key, value, num_lines, "minimize", _SIGNATURE)
    return scores


def _start_model(
    settings: TrainMaskedSettings,
    inputs: TrainLanguageModelInputs[Path],
    context: StageContext,
    ids: MaskingIds,
) -> MaskedLM:
    if inputs.start is not None:
        return read_masked_lm(inputs.start)
    assert context.seed is not None
    seed = derive_seed(context.seed, "initial weights")
    if settings.checkpoint is not None:
        model, drawn = load_checkpoint(context.locations["checkpoint"], settings.checkpoint.revision, seed)
        # what the checkpoint lacked: its prediction head, if it is a sentence encoder
        (context.directory / "drawn.json").write_text(json.dumps(drawn, indent=1) + "\n", "utf-8")
        return model
    size = len(load_vocabulary(inputs.tokenizer))
    if settings.encoder is not None:
        return fresh_encoder(settings.encoder, size, seed=seed)
    if settings.bert is None or settings.max_tokens is None:
        raise ContractError(
            f"stage {context.stage.name}: give it a start, a checkpoint, an encoder or a bert with max_tokens"
        )
    return fresh_bert(settings.bert, size, pad_id=ids.pad, max_tokens=settings.max_tokens, seed=seed)


def _check_positions(model: MaskedLM, *maskers: Masker) -> None:
    longest = max(int(masker.tokens.lengths.max(initial=0)) for masker in maskers)
    if model.max_tokens is not None and longest > model.max_tokens:
        raise DataError(
            f"the text has lines of {longest} tokens, the model positions for {model.max_tokens} beside "
            f"begin and end; set data.max_tokens to at most {model.max_tokens}"
        )


def begin(context: StageContext) -> None:
    """Write a masked language model before any training: a released one, or one with fresh weights."""
    settings, inputs = BEGIN_MASKED.read(context)
    seed = derive_seed(context.seed or 0, "initial weights")
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
    _check_positions(model, data.masker)
    losses = masked_losses(model, data, context.device)
    write_segments(context.directory, settings.split, _statistics(losses))
    write_metrics(
        context.directory, {f"{settings.split}/{name}": score for name, score in _scores(losses).items()}
    )


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
    assert context.seed is not None
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


def _statistics(losses: MaskedLosses) -> dict[str, Statistics]:
    """Nats with masked tokens, and with masked characters, of every line, [N, 2]."""
    found = {LOSS: np.stack([losses.nats, losses.tokens], 1)}
    if losses.characters is not None:
        found[PER_CHARACTER] = np.stack([losses.nats, losses.characters], 1)
    return found


def _scores(losses: MaskedLosses) -> dict[str, Score]:
    return {name: score_statistics(name, rows, _SIGNATURE) for name, rows in _statistics(losses).items()}


def _amounts(losses: MaskedLosses) -> dict[str, Score]:
    """Count the predicted characters, and the share of unknown tokens, to compare between trials."""
    count, unknown = len(losses.nats), float(losses.unknown.sum() / losses.tokens.sum())
    amounts = {"mlm_unknown": Score("mlm_unknown", unknown, count, "minimize", _SIGNATURE)}
    if losses.characters is not None:
        characters = float(losses.characters.sum())
        amounts["mlm_chars"] = Score("mlm_chars", characters, count, "maximize", _SIGNATURE)
    return amounts
