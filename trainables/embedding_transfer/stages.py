"""Stages of the generators: training on domain A with all else frozen, and the resulting transfer plans."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.exchange_stages import write_plans
from nlgraft.stages.run.seq2seq_stages import masked_spans
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.training.loop import train
from nlgraft.training.masked_lm_training import read_masked_lm
from nlgraft.training.masked_text import Masker, MaskingIds
from nlgraft.training.models import read_model
from nlgraft.training.step import Training
from nlgraft.training.train_config import View
from nlgraft.training.views import Encoded
from nlgraft.training.weights import MODEL_FILE, load_weights
from nlgraft.vocab.methods.interface import Method
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.embedding_transfer.config import STREAMS
from trainables.embedding_transfer.generators import (
    DEV_EPOCH,
    ChangedData,
    ChangedLines,
    ChangedPairs,
    ChangedSide,
    EmbeddingGenerator,
    FrozenMaskedLM,
    FrozenModel,
    FrozenSeq2Seq,
    GeneratorModel,
    GeneratorObjective,
    generator_method,
)
from trainables.embedding_transfer.graph import (
    GENERATED_PLAN,
    GENERATOR,
    GeneratorInputs,
    GeneratorSettings,
)


def train_generator(context: StageContext) -> None:
    """Train and write a generator for each table that the perturbed sides read."""
    settings, inputs = GENERATOR.read(context)
    body = _read_body(settings, inputs).to(context.device)
    objective = GeneratorObjective(
        settings.distillation_lambda,
        settings.train.label_smoothing,
        settings.train.smoothing_kind,
    )
    sides = {
        side: ChangedSide(
            load_vocabulary(inputs.tokenizers[side]),
            settings.rates[side],
            table,
            settings.cap,
            body.max_tokens,
        )
        for side, table in body.sides.items()
    }
    data = _data("train", settings, inputs, sides, context.seed)
    dev = _data("dev", settings, inputs, sides, context.seed)
    outcome = train(
        Training(GeneratorModel(body, settings.kind), objective, data, settings.train),
        context,
        evaluate=lambda model: _dev_losses(model, objective, dev, context.device),
    )
    assert outcome.best_value is not None
    signature = "L_p + lambda L_d, nats per predicted token"
    num_parameters = outcome.num_trained_parameters
    scores = {
        "generator/dev_loss": Score(outcome.best_value, 1, "minimize", signature),
        "generator/parameters": Score(num_parameters, 1, "minimize", "trained parameters"),
    }
    write_metrics(context.directory, scores)


def _read_body(settings: GeneratorSettings, inputs: GeneratorInputs[Path]) -> FrozenModel:
    if settings.masking is None:
        return FrozenSeq2Seq(read_model(inputs.model), [*settings.rates])
    model = FrozenMaskedLM(read_masked_lm(inputs.model))
    # Without a prediction head L_d is the only loss.
    if not model.can_predict and not settings.distillation_lambda:
        raise DataError(
            "upstream.checkpoint has no prediction head, so generators can be trained by distillation only, "
            "but generator.distillation_lambda is 0: set it above 0, or use avg_eg or another checkpoint"
        )
    return model


def _data(
    split: str,
    settings: GeneratorSettings,
    inputs: GeneratorInputs[Path],
    sides: Mapping[str, ChangedSide],
    seed: int,
) -> ChangedData:
    encoded = read_encoded(inputs.encoded, split)
    if split == "dev":
        encoded = encoded.first(settings.num_dev_sentences)
    batch_tokens = settings.train.batch_tokens
    assert batch_tokens is not None, "generators have a budget of tokens"
    if settings.masking is not None:
        assert settings.new_mask_rate is not None
        (side,) = sides.values()
        masker = Masker(encoded, MaskingIds.of(side.vocabulary), settings.masking, seed)
        return ChangedLines(masker, batch_tokens, settings.new_mask_rate, side)
    if settings.masked_spans is not None:
        # monolingual text has one tokenizer; its spans are masked once, and only the segmentation varies from
        # epoch to epoch
        tokenizers = {STREAMS["decoder"]: next(iter(inputs.tokenizers.values()))}
        _, masked = masked_spans(View(), encoded, settings.masked_spans, tokenizers)
        source = masked.epoch(DEV_EPOCH, seed)
        encoded = Encoded({**encoded.streams, STREAMS["encoder"]: source})
    return ChangedPairs(encoded, settings.view, batch_tokens, sides, seed=seed)


def _dev_losses(
    model: Any,
    objective: GeneratorObjective,
    dev: ChangedData,
    device: str,
) -> dict[str, float]:
    """Compute ``generator/dev_*``: losses per token of perturbed text."""
    sums = defaultdict[str, float](float)
    tokens = 0
    for batch in dev.in_order():
        loss = objective(model, batch.to(device))
        tokens += loss.num_tokens
        for name, value in {"loss": loss.loss_sum, **loss.terms}.items():
            sums[name] += float(value)
    return {f"generator/dev_{name}": total / tokens for name, total in sums.items()}


def plan_by_generator(context: StageContext) -> None:
    """Plan the rows of each side's new vocabulary by trained generators."""
    settings, inputs = GENERATED_PLAN.read(context)
    # by table, of generators.TABLE.weight
    stored = load_weights(inputs.generator / MODEL_FILE)
    weights = {name.split(".")[1]: weight for name, weight in stored.items()}

    def method(side: str, table: Tensor) -> Method:
        # a single generator serves both sides of a shared table, or the only side of a masked LM
        weight = weights[side] if side in weights else next(iter(weights.values()))
        generator = EmbeddingGenerator("att" if weight.ndim == 1 else "patt", weight.shape[-1])
        generator.load_state_dict({"weight": weight})
        return generator_method(settings.method, generator, table)

    write_plans(context, settings, inputs, method)
