"""The stage that trains an embedding generator inside a masked language model, everything else frozen."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from nlgraft.pipeline.stage import StageContext
from nlgraft.training.config import MaskingConfig, TrainConfig
from nlgraft.training.loop import train
from nlgraft.training.masked_lm import read_masked_lm
from nlgraft.training.masked_text import TEXT, Masker, MaskingIds
from nlgraft.training.seeds import derive_seed
from nlgraft.training.views import Encoded
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.generators import EmbeddingGenerator
from trainables.embedding_transfer.masked_lm_generator import (
    TABLE,
    ChangedMaskedData,
    MaskedGeneratorModel,
    MaskedGeneratorObjective,
)
from trainables.embedding_transfer.new_tokens import SimilarOptions, token_counts
from trainables.embedding_transfer.perturbation import Rates
from trainables.embedding_transfer.stages.generator import evaluation, save_generators
from trainables.embedding_transfer.stages.masked_lm_text import read_text


def train_generator(context: StageContext) -> None:
    """Train the generator of the model's one table and write it.

    Args:
        context: Settings of the generator; inputs ``upstream``, ``encoded`` and ``vocabulary``.
    """
    config = context.config
    assert context.seed is not None
    body = read_masked_lm(context.inputs["upstream"]).to(context.device)
    width = body.input_table.shape[1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(context.seed, "generator"))
        generator = EmbeddingGenerator(config["kind"], width, scale=config["scale"], init=config["init"])
    model = MaskedGeneratorModel(body, generator)
    train_config = TrainConfig(**config["train"])
    objective = MaskedGeneratorObjective(
        config["distillation_lambda"],
        config["distillation_reduction"],
        train_config.label_smoothing,
        train_config.smoothing_kind,
    )
    text, vocabulary = read_text(context, "train"), load_vocabulary(context.inputs["vocabulary"])
    frequencies: dict[str, list[int]] = {}
    if config["order"] == "frequency":
        frequencies[TABLE] = token_counts([text.stream(TEXT)], len(vocabulary))
    options = SimilarOptions(config["cap"], config["order"], frequencies)
    dev_text = read_text(context, "dev").first(config["num_dev_sentences"])
    data, dev = (
        _data(context, read, vocabulary, options, train_config, body.max_tokens) for read in (text, dev_text)
    )

    def save(trained: MaskedGeneratorModel, directory: Path) -> None:
        save_generators(trained, trained.generators, width, directory)

    evaluate = evaluation(objective, dev, context.device)
    outcome = train(model, objective, data, train_config, context, evaluate=evaluate, save=save)
    scores = {
        "generator/dev_loss": (outcome.best_value, "L_p + lambda L_d, nats per hidden token"),
        "generator/parameters": (outcome.num_trained_parameters, "trained parameters"),
    }
    document = {name: {"value": value, "signature": how, "n": 1} for name, (value, how) in scores.items()}
    (context.directory / "metrics.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")


def _data(
    context: StageContext,
    text: Encoded,
    vocabulary: Vocabulary,
    options: SimilarOptions,
    train_config: TrainConfig,
    max_tokens: int | None,
) -> ChangedMaskedData:
    config = context.config
    assert context.seed is not None
    return ChangedMaskedData(
        Masker(text, MaskingIds.of(vocabulary), MaskingConfig(**config["masking"]), context.seed),
        vocabulary,
        Rates(**config["perturbation"]),
        options,
        new_mask_rate=config["new_mask_rate"],
        batch_tokens=train_config.batch_tokens,
        max_tokens=max_tokens,
    )
