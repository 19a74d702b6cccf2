"""Training stages of masked language models, and their losses."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from nlgraft.errors import DataError
from nlgraft.evaluation.artifact import write_segments
from nlgraft.evaluation.scores import Score, score_statistics
from nlgraft.evaluation.sufficient import Statistics
from nlgraft.nn.config import BertConfig
from nlgraft.nn.masked_lm import MaskedLM, fresh_bert, load_checkpoint
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.new_rows import new_rows_first
from nlgraft.training.config import MaskedScoringConfig, MaskingConfig, TrainConfig
from nlgraft.training.loop import TrainOutcome, train
from nlgraft.training.masked_lm import (
    MaskedLosses,
    MaskedObjective,
    masked_losses,
    read_masked_lm,
    write_masked_lm,
)
from nlgraft.training.masked_text import MaskedData, MaskedScoringData, Masker, MaskingIds
from nlgraft.training.rows_first import RowsFirst
from nlgraft.training.seeds import derive_seed
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.embedding_transfer.masked_lm_generator import TABLE
from trainables.embedding_transfer.stages.masked_lm_text import read_text

LOSS, PER_CHARACTER = "loss", "mlm_loss_per_char"
_SIGNATURE = "whole words hidden, the same words in every trial"
_SCORING_TOKENS = 4096
"""Positions of a batch that is only read."""


def pretrain(context: StageContext) -> None:
    """Make the masked language model of domain A: from a checkpoint, or from scratch.

    A checkpoint without a prediction head gets one here, and only learns to use it; ``is_body_trained`` says
    whether the body learns too.

    Args:
        context: ``train``, ``rates``, ``scoring``, ``max_tokens``, and ``model``, or ``checkpoint`` among its
            locations; inputs ``encoded`` and ``vocabulary``.
    """
    config = context.config
    ids = MaskingIds.of(load_vocabulary(context.inputs["vocabulary"]))
    assert context.seed is not None
    seed = derive_seed(context.seed, "initial weights")
    changes: dict[str, Any] = {}
    drawn: list[str] = []
    if "model" in config:
        model = fresh_bert(
            BertConfig(**config["model"]),
            len(load_vocabulary(context.inputs["vocabulary"])),
            pad_id=ids.pad,
            max_tokens=config["max_tokens"],
            seed=seed,
        )
    else:
        model, drawn = load_checkpoint(context.locations["checkpoint"], config.get("revision"), seed)
        _check_length(model, config["max_tokens"])
        if not config["is_body_trained"]:
            changes["freeze"] = (*config["train"]["freeze"], model.body_pattern)
    # what the checkpoint lacked: its prediction head, if it is a sentence encoder
    (context.directory / "drawn.json").write_text(json.dumps(drawn, indent=1) + "\n", "utf-8")
    dev = _scoring(context, ids, "dev")
    outcome = _train(model, context, ids, dev, prefix="upstream", changes=changes)
    losses = masked_losses(model, dev, context.device)
    count = Score("parameters", outcome.num_parameters, 1, "minimize", "tied parameters once")
    _write_metrics(
        context.directory,
        {
            "upstream/dev_loss": _scores(losses)[LOSS],
            "upstream/dev_mlm_loss_per_char": _scores(losses)[PER_CHARACTER],
            "upstream/parameters_total": count,
        },
    )


def continue_training(context: StageContext) -> None:
    """Continue masked-LM training on domain B, and say what the loss is on dev as it goes.

    Args:
        context: ``train``, ``rates``, ``scoring``, ``report_steps``, ``new_rows_first_steps`` after an
            exchange; inputs ``start``, ``encoded`` and ``vocabulary``.
    """
    ids = MaskingIds.of(load_vocabulary(context.inputs["vocabulary"]))
    model = read_masked_lm(context.inputs["start"]).to(context.device)
    dev = _scoring(context, ids, "dev")
    at_start = masked_losses(model, dev, context.device)
    num_alone = context.config.get("new_rows_first_steps", 0)
    rows_first = new_rows_first(num_alone, context.inputs["start"], model, _exchanged(model))
    outcome = _train(
        model,
        context,
        ids,
        dev,
        prefix="",
        changes={"is_evaluated_at_start": True},
        rows_first=rows_first,
    )
    statistics = {f"{name}.step_0": rows for name, rows in _statistics(at_start).items()}
    metrics = {f"dev/{name}": score_statistics(name, rows, _SIGNATURE) for name, rows in statistics.items()}
    for name in (LOSS, PER_CHARACTER):
        for step, value, _ in outcome.curves[f"dev/{name}"]:
            if step and step in context.config["report_steps"]:
                key = f"{name}.step_{int(step)}"
                metrics[f"dev/{key}"] = Score(key, value, len(at_start.nats), "minimize", _SIGNATURE)
    write_segments(context.directory, "dev", statistics)
    _write_metrics(context.directory, metrics | _sizes(outcome))


def score(context: StageContext) -> None:
    """Measure the loss of the result on every split, and say what was asked.

    Args:
        context: ``splits``, ``scoring``; inputs ``model``, ``encoded`` and
            ``vocabulary``.
    """
    ids = MaskingIds.of(load_vocabulary(context.inputs["vocabulary"]))
    model = read_masked_lm(context.inputs["model"]).to(context.device)
    metrics = {}
    for split in context.config["splits"]:
        data = _scoring(context, ids, split)
        losses = masked_losses(model, data, context.device)
        write_segments(context.directory, split, _statistics(losses))
        metrics |= {f"{split}/{name}": found for name, found in _scores(losses).items()}
        if split == "dev":
            metrics |= _amounts(losses)
    _write_metrics(context.directory, metrics)


def _train(
    model: MaskedLM,
    context: StageContext,
    ids: MaskingIds,
    dev: MaskedScoringData,
    *,
    prefix: str,
    changes: Mapping[str, Any],
    rows_first: RowsFirst | None = None,
) -> TrainOutcome:
    config = TrainConfig(**{**context.config["train"], **changes})
    config = config.model_copy(update={"best_metric": _reported_name(prefix, config.best_metric)})
    assert context.seed is not None
    masking = MaskingConfig(**context.config["masking"])
    masker = Masker(read_text(context, "train"), ids, masking, context.seed)
    objective = MaskedObjective.of(config)
    data = MaskedData(masker, config.batch_tokens)
    evaluate = _evaluation(dev, context.device, prefix)
    return train(
        model,
        objective,
        data,
        config,
        context,
        evaluate=evaluate,
        save=write_masked_lm,
        rows_first=rows_first,
    )


def _exchanged(model: MaskedLM) -> dict[str, list[str]]:
    """Name the parameters whose rows are tokens, by the one table whose plan made them."""
    return {TABLE: list(model.vocabulary_tensors)}


def _reported_name(prefix: str, name: str) -> str:
    """Name a dev metric so that upstream training's cannot be taken for the trial's: upstream/dev_loss."""
    return f"{prefix}/{name.replace('/', '_')}" if prefix else name


def _evaluation(dev: MaskedScoringData, device: str, prefix: str) -> Callable[[Any], Mapping[str, float]]:
    def evaluate(model: MaskedLM) -> dict[str, float]:
        losses = masked_losses(model, dev, device)
        assert losses.per_character is not None
        found = {LOSS: losses.per_token, PER_CHARACTER: losses.per_character}
        return {_reported_name(prefix, f"dev/{name}"): value for name, value in found.items()}

    return evaluate


def _scoring(context: StageContext, ids: MaskingIds, split: str) -> MaskedScoringData:
    scoring = MaskedScoringConfig(**context.config["scoring"])
    text = read_text(context, split)
    if scoring.num_lines is not None:
        text = text.first(scoring.num_lines)
    return MaskedScoringData(text, ids, scoring, _SCORING_TOKENS)


def _check_length(model: MaskedLM, max_tokens: int) -> None:
    room = model.max_tokens
    if room is not None and max_tokens > room:
        raise DataError(
            f"data.max_tokens is {max_tokens}, but the checkpoint has room for {room} tokens beside begin "
            f"and end; set data.max_tokens to at most {room}"
        )


def _statistics(losses: MaskedLosses) -> dict[str, Statistics]:
    """Nats with hidden tokens, and with hidden characters, of every line, [N, 2]."""
    assert losses.characters is not None
    return {
        LOSS: np.stack([losses.nats, losses.tokens], 1),
        PER_CHARACTER: np.stack([losses.nats, losses.characters], 1),
    }


def _scores(losses: MaskedLosses) -> dict[str, Score]:
    return {name: score_statistics(name, rows, _SIGNATURE) for name, rows in _statistics(losses).items()}


def _amounts(losses: MaskedLosses) -> dict[str, Score]:
    """What was asked, so that a reader can see that it was the same in all trials."""
    count = len(losses.nats)
    assert losses.characters is not None
    characters, unknown = float(losses.characters.sum()), float(losses.unknown.sum() / losses.tokens.sum())
    return {
        "dev/mlm_chars": Score("mlm_chars", characters, count, "maximize", _SIGNATURE),
        "dev/mlm_unknown": Score("mlm_unknown", unknown, count, "minimize", _SIGNATURE),
    }


def _sizes(outcome: TrainOutcome) -> dict[str, Score]:
    sizes = {"total": outcome.num_parameters, "trained": outcome.num_trained_parameters}
    found = {
        f"parameters/{name}": Score("parameters", value, 1, "minimize", "tied parameters once")
        for name, value in sizes.items()
    }
    seconds = Score("train_s", outcome.seconds, 1, "minimize", "seconds of training steps")
    return found | {"train_s": seconds}


def _write_metrics(directory: Path, scores: Mapping[str, Score]) -> None:
    document = {name: found.to_json() for name, found in scores.items()}
    (directory / "metrics.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
