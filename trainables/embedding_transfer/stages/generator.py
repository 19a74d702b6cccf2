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
from nlgraft.nn.config import TransformerConfig
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import StageContext
from nlgraft.training.config import TrainConfig
from nlgraft.training.loop import train
from nlgraft.training.seeds import derive_seed
from nlgraft.training.weights import load_model, save_model
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.cloze import ClozePerturbedData, ClozeReader
from trainables.embedding_transfer.config import MASK_TOKEN
from trainables.embedding_transfer.data import Encoded
from trainables.embedding_transfer.generator_data import CORPUS_SIDES, PerturbedData
from trainables.embedding_transfer.generator_training import GeneratorModel, GeneratorObjective, StateReader
from trainables.embedding_transfer.generators import EmbeddingGenerator
from trainables.embedding_transfer.new_tokens import SimilarOptions, token_counts
from trainables.embedding_transfer.noise import DEV_EPOCH
from trainables.embedding_transfer.perturbation import Rates
from trainables.embedding_transfer.stages.encoder_pretraining import MASKED_LM, is_predicting, read_masked_lm
from trainables.embedding_transfer.stages.text import open_tokenizer, tokenizer_path
from trainables.embedding_transfer.stages.training import infiller, read_model

GENERATOR_DESCRIPTION = "generator.json"
TOKENIZERS = {"encoder": "source_tokenizer", "decoder": "target_tokenizer"}


def transferred_sides(sides: str) -> tuple[str, ...]:
    """List the sides whose vocabulary is exchanged.

    Args:
        sides: ``decoder``, ``encoder`` or ``both``.

    Returns:
        Among ``encoder`` and ``decoder``.
    """
    return ("encoder", "decoder") if sides == "both" else (sides,)


def side_vocabularies(context: StageContext, sides: str, prefix: str = "") -> dict[str, Vocabulary]:
    """Read the vocabularies of the transferred sides.

    Args:
        context: Inputs ``<prefix>source_tokenizer`` and ``<prefix>target_tokenizer``.
        sides: ``decoder``, ``encoder`` or ``both``.
        prefix: Of the input names.

    Returns:
        By side.
    """
    return {
        side: load_vocabulary(tokenizer_path(context.inputs[prefix + TOKENIZERS[side]]))
        for side in transferred_sides(sides)
    }


def old_frequencies(
    encoded: Path, vocabularies: Mapping[str, Vocabulary], is_table_shared: bool
) -> dict[str, list[int]]:
    """Count the old tokens in the training text that each side's table reads.

    Exchange and training of a generator both count here, so that they agree on S_m.

    Args:
        encoded: Upstream text in the old vocabularies.
        vocabularies: Old vocabulary of each side, ``encoder`` or ``decoder``.
        is_table_shared: Whether both sides read one table, which then counts the text of both.

    Returns:
        Count of each old token, by side.
    """
    text = Encoded.read(encoded, "train")
    return {
        side: token_counts(
            [getattr(text, CORPUS_SIDES[read]) for read in (CORPUS_SIDES if is_table_shared else (side,))],
            len(vocabulary),
        )
        for side, vocabulary in vocabularies.items()
    }


def train_generator(context: StageContext) -> None:
    """Train the generators of the transferred sides and write them.

    Args:
        context: Settings of the generator; inputs ``upstream``, ``encoded`` and both tokenizers.
    """
    config = context.config
    assert context.seed is not None
    is_masked = config["sides"] == MASKED_LM
    body, reader = _read_body(context, is_masked)
    is_table_shared = body.config.tying == "all" and config["sides"] == "both"
    is_one_table = is_table_shared or is_masked
    tables = ("decoder",) if is_one_table else transferred_sides(config["sides"])
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(context.seed, "generator"))
        generators = {
            table: EmbeddingGenerator(
                config["kind"], body.config.d_model, scale=config["scale"], init=config["init"]
            )
            for table in tables
        }
    model = GeneratorModel(body, generators, reader)
    train_config = TrainConfig(**config["train"])
    objective = GeneratorObjective(
        config["distillation_lambda"],
        config["distillation_reduction"],
        config["distillation_align"],
        train_config.label_smoothing,
        train_config.smoothing_kind,
        has_prediction=not is_masked or _predicts(context),
    )
    options = _similar_options(context, body.config.tying == "all")
    data, dev = (
        _data(context, _read(context, split), options, is_table_shared, train_config, body.config)
        for split in ("train", "dev")
    )
    outcome = train(
        model,
        objective,
        data,
        train_config,
        context,
        evaluate=evaluation(objective, dev, context.device),
        save=_save,
    )
    scores = {
        "generator/dev_loss": (outcome.best_value, "L_p + lambda L_d, nats per target token"),
        "generator/parameters": (outcome.num_trained_parameters, "trained parameters"),
    }
    document = {name: {"value": value, "signature": how, "n": 1} for name, (value, how) in scores.items()}
    (context.directory / "metrics.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _read_body(context: StageContext, is_masked: bool) -> tuple[Seq2Seq, Callable[[Seq2Seq], StateReader]]:
    """Read the pretrained model, and say how its states are read."""
    upstream = context.inputs["upstream"]
    if not is_masked:
        return read_model(upstream).to(context.device), StateReader
    body, head = read_masked_lm(upstream)
    moved = None if head is None else head.to(context.device)
    return body.to(context.device), partial(ClozeReader, head=moved)


def _predicts(context: StageContext) -> bool:
    """Whether there is an L_p; where there is none, L_d must teach alone."""
    has_prediction = is_predicting(context.inputs["upstream"])
    if not has_prediction and not context.config["distillation_lambda"]:
        raise DataError(
            "upstream.checkpoint has no prediction head, so that distillation alone can teach a generator, "
            "and generator.distillation_lambda is 0: raise it, take avg_eg, or another checkpoint"
        )
    return has_prediction


def _read(context: StageContext, split: str) -> Encoded:
    encoded = Encoded.read(context.inputs["encoded"], split)
    if split == "dev":
        encoded = encoded.first(context.config["num_dev_sentences"])
    if "mean_span_tokens" not in context.config:
        return encoded
    assert context.seed is not None
    # one set of holes for all epochs: what changes from epoch to epoch are the segmentations
    return infiller(context, encoded).epoch(DEV_EPOCH, context.seed)


def _similar_options(context: StageContext, is_table_shared: bool) -> SimilarOptions:
    config = context.config
    if config["order"] != "frequency":
        return SimilarOptions(config["cap"], config["order"])
    # text of a masked language model is the same on both sides
    vocabularies = side_vocabularies(context, "decoder" if config["sides"] == MASKED_LM else config["sides"])
    frequencies = old_frequencies(context.inputs["encoded"], vocabularies, is_table_shared)
    return SimilarOptions(config["cap"], config["order"], frequencies)


def _data(
    context: StageContext,
    encoded: Encoded,
    options: SimilarOptions,
    is_table_shared: bool,
    train_config: TrainConfig,
    model: TransformerConfig,
) -> PerturbedData:
    config = context.config
    assert context.seed is not None
    is_limited = "learned" in (model.source_positions, model.target_positions)
    # begin and end have positions, too
    max_tokens = model.max_positions - 2 if is_limited else None
    settings = {"batch_tokens": train_config.batch_tokens, "seed": context.seed, "max_tokens": max_tokens}
    if config["sides"] == MASKED_LM:
        return ClozePerturbedData(
            encoded,
            side_vocabularies(context, "decoder"),
            {"decoder": Rates(**config["encoder_rates"])},
            options,
            **settings,
            mask_id=open_tokenizer(context.inputs["target_tokenizer"]).id(MASK_TOKEN),
            rate=config["mask_rate"],
        )
    sides = transferred_sides(config["sides"])
    return PerturbedData(
        encoded,
        side_vocabularies(context, config["sides"]),
        {side: Rates(**config[f"{side}_rates"]) for side in sides},
        options,
        **settings,
        is_table_shared=is_table_shared,
    )


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
