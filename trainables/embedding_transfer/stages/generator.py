"""The stage that trains an embedding generator on domain A, everything else frozen."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlgraft.errors import DataError
from nlgraft.evaluation.artifact import write_metrics
from nlgraft.evaluation.scores import Score
from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.config import MASK_TOKEN
from nlgraft.stages.run.seq2seq import masked_spans
from nlgraft.stages.run.text import open_tokenizer, read_encoded, tokenizer_path
from nlgraft.training.config import View
from nlgraft.training.loop import train
from nlgraft.training.models import read_model
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import Encoded
from nlgraft.training.weights import load_model, save_model
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.arms import STREAMS
from trainables.embedding_transfer.cloze import ClozePerturbedData, ClozeReader
from trainables.embedding_transfer.generator_data import PerturbedData
from trainables.embedding_transfer.generator_training import GeneratorModel, GeneratorObjective, StateReader
from trainables.embedding_transfer.generators import EmbeddingGenerator
from trainables.embedding_transfer.kinds import GENERATOR, GeneratorInputs, GeneratorSettings
from trainables.embedding_transfer.new_tokens import DEV_EPOCH, SimilarOptions, token_counts
from trainables.embedding_transfer.perturbation import Rates
from trainables.embedding_transfer.stages.encoder_pretraining import is_predicting, read_masked_lm

GENERATOR_DESCRIPTION = "generator.json"


def transferred_sides(sides: str) -> tuple[str, ...]:
    """List the sides whose vocabulary is exchanged: among ``encoder`` and ``decoder``."""
    return ("encoder", "decoder") if sides == "both" else (sides,)


def side_vocabularies(tokenizers: Mapping[str, Path], sides: str) -> dict[str, Vocabulary]:
    """Read the vocabularies of the exchanged sides from the tokenizers of their streams."""
    return {
        side: load_vocabulary(tokenizer_path(tokenizers[STREAMS[side]])) for side in transferred_sides(sides)
    }


def old_frequencies(
    encoded: Path, vocabularies: Mapping[str, Vocabulary], is_table_shared: bool
) -> dict[str, list[int]]:
    """Count the old tokens in the training text that each side's table reads.

    Exchange and training of a generator both count here, so that they agree on S_m.

    Args:
        encoded: Upstream text in the old vocabularies.
        vocabularies: Old vocabulary of each side, ``encoder`` or ``decoder``.
        is_table_shared: If true, both sides read one table, which then counts the text of both.

    Returns:
        Count of each old token, by side.
    """
    text = read_encoded(encoded, "train")
    return {
        side: token_counts(
            [text.stream(STREAMS[read]) for read in (STREAMS if is_table_shared else (side,))],
            len(vocabulary),
        )
        for side, vocabulary in vocabularies.items()
    }


def train_generator(context: StageContext) -> None:
    """Train the generators of the exchanged sides and write them."""
    settings, inputs = GENERATOR.read(context)
    assert context.seed is not None
    body, reader = _read_body(inputs, context.device, settings.mask_rate is not None)
    is_table_shared = body.config.tying == "all" and settings.sides == "both"
    # one generator for a table that both sides read
    tables = ("decoder",) if is_table_shared else transferred_sides(settings.sides)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(context.seed, "generator"))
        generators = {
            table: EmbeddingGenerator(
                settings.kind, body.config.d_model, scale=settings.scale, init=settings.init
            )
            for table in tables
        }
    model = GeneratorModel(body, generators, reader)
    objective = GeneratorObjective(
        settings.distillation_lambda,
        settings.distillation_reduction,
        settings.distillation_align,
        settings.train.label_smoothing,
        settings.train.smoothing_kind,
        has_prediction=settings.mask_rate is None or _predicts(settings, inputs),
    )
    options = _similar_options(settings, inputs, body.config.tying == "all")
    data, dev = (
        _data(split, settings, inputs, options, is_table_shared, body.config, context.seed)
        for split in ("train", "dev")
    )
    outcome = train(
        model,
        objective,
        data,
        settings.train,
        context,
        evaluate=evaluation(objective, dev, context.device),
        save=_save,
    )
    assert outcome.best_value is not None
    how = "L_p + lambda L_d, nats per target token"
    num_parameters = outcome.num_trained_parameters
    scores = {
        "generator/dev_loss": Score("loss", outcome.best_value, 1, "minimize", how),
        "generator/parameters": Score("parameters", num_parameters, 1, "minimize", "trained parameters"),
    }
    write_metrics(context.directory, scores)


def _read_body(
    inputs: GeneratorInputs[Path], device: str, is_masked: bool
) -> tuple[Seq2Seq, Callable[[Seq2Seq], StateReader]]:
    """Read the pretrained model, and what reads its states."""
    if not is_masked:
        return read_model(inputs.upstream).to(device), StateReader
    body, head = read_masked_lm(inputs.upstream)
    moved = None if head is None else head.to(device)
    return body.to(device), partial(ClozeReader, head=moved)


def _predicts(settings: GeneratorSettings, inputs: GeneratorInputs[Path]) -> bool:
    """Tell if there is an L_p; where there is none, L_d must teach alone."""
    has_prediction = is_predicting(inputs.upstream)
    if not has_prediction and not settings.distillation_lambda:
        raise DataError(
            "upstream.checkpoint has no prediction head, so that distillation alone can teach a generator, "
            "and generator.distillation_lambda is 0: raise it, take avg_eg, or another checkpoint"
        )
    return has_prediction


def _read(split: str, settings: GeneratorSettings, inputs: GeneratorInputs[Path], seed: int) -> Encoded:
    encoded = read_encoded(inputs.encoded, split)
    if split == "dev":
        encoded = encoded.first(settings.num_dev_sentences)
    if settings.masked_spans is None:
        return encoded
    # the same masked spans in all epochs: what changes from epoch to epoch are the segmentations
    _, masked = masked_spans(View(), encoded, settings.masked_spans, inputs.tokenizers)
    return Encoded({**encoded.streams, STREAMS["encoder"]: masked.epoch(DEV_EPOCH, seed)})


def _similar_options(
    settings: GeneratorSettings, inputs: GeneratorInputs[Path], is_table_shared: bool
) -> SimilarOptions:
    if settings.order != "frequency":
        return SimilarOptions(settings.cap, settings.order)
    vocabularies = side_vocabularies(inputs.tokenizers, settings.sides)
    frequencies = old_frequencies(inputs.encoded, vocabularies, is_table_shared)
    return SimilarOptions(settings.cap, settings.order, frequencies)


def _data(
    split: str,
    settings: GeneratorSettings,
    inputs: GeneratorInputs[Path],
    options: SimilarOptions,
    is_table_shared: bool,
    model: TransformerConfig,
    seed: int,
) -> PerturbedData:
    is_limited = "learned" in (model.source_positions, model.target_positions)
    data: dict[str, Any] = {
        "encoded": _read(split, settings, inputs, seed),
        "vocabularies": side_vocabularies(inputs.tokenizers, settings.sides),
        "rates": {side: Rates(**rates.model_dump()) for side, rates in settings.rates.items()},
        "options": options,
        "batch_tokens": settings.train.batch_tokens,
        "seed": seed,
        # begin and end have positions, too
        "max_tokens": model.max_positions - 2 if is_limited else None,
    }
    if settings.mask_rate is None:
        return PerturbedData(**data, is_table_shared=is_table_shared)
    mask_id = open_tokenizer(inputs.tokenizers[STREAMS["decoder"]]).id(MASK_TOKEN)
    return ClozePerturbedData(**data, mask_id=mask_id, rate=settings.mask_rate)


def evaluation(objective: Any, dev: Any, device: str) -> Callable[[Any], Mapping[str, float]]:
    """Build the evaluation of a generator on changed dev text.

    Args:
        objective: The generator's objective; gives the losses of a batch, summed.
        dev: Changed dev text, read in order.
        device: Where to compute.

    Returns:
        Gives ``generator/dev_*`` of a model: losses per token.
    """

    def evaluate(model: nn.Module) -> dict[str, float]:
        sums: dict[str, float] = {}
        tokens = 0
        for batch in dev.in_order():
            loss = objective(model, batch.to(device))
            tokens += loss.num_tokens
            for name, value in {"loss": loss.loss_sum, **loss.terms}.items():
                sums[name] = sums.get(name, 0.0) + float(value)
        return {f"generator/dev_{name}": total / tokens for name, total in sums.items()}

    return evaluate


def _save(model: GeneratorModel, directory: Path) -> None:
    save_generators(model, model.generators, model.body.config.d_model, directory)


def save_generators(model: nn.Module, generators: nn.ModuleDict, d_model: int, directory: Path) -> None:
    """Write trained generators.

    Args:
        model: The module that has them as ``generators``, and no other parameters.
        generators: By table.
        d_model: Width of the tables.
        directory: Artifact being written.
    """
    save_model(model, directory)
    described = {table: _describe(generator) for table, generator in generators.items()}
    text = json.dumps({"d_model": d_model, "generators": described}, indent=1)
    (directory / GENERATOR_DESCRIPTION).write_text(text + "\n", "utf-8")


def _describe(generator: nn.Module) -> dict[str, Any]:
    assert isinstance(generator, EmbeddingGenerator)
    return {"kind": generator.kind, "scale": generator.scale}


def read_generators(directory: Path) -> dict[str, EmbeddingGenerator]:
    """Read trained generators.

    Args:
        directory: What the stage wrote.

    Returns:
        By table: ``encoder`` or ``decoder``; one that both sides share is the decoder's.
    """
    description = json.loads((directory / GENERATOR_DESCRIPTION).read_text("utf-8"))
    generators = {
        table: EmbeddingGenerator(said["kind"], description["d_model"], scale=said["scale"])
        for table, said in description["generators"].items()
    }
    holder = nn.Module()
    holder.generators = nn.ModuleDict(generators)
    load_model(holder, directory)
    return generators
