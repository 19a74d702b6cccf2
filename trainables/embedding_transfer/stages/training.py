"""Training stages: pretraining on domain A, finetuning on domain B."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from nlgraft.errors import DataError
from nlgraft.evaluation.artifact import write_segments
from nlgraft.evaluation.scores import Score, score_corpus
from nlgraft.nn.batch import Tokens
from nlgraft.nn.config import GenerationConfig, TransformerConfig
from nlgraft.nn.contextual import ContextualEmbedding
from nlgraft.nn.embedding import TableEmbedding
from nlgraft.nn.generation import beam_search
from nlgraft.nn.model import Seq2Seq
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.new_rows import EXCHANGED, new_rows_first
from nlgraft.text.corpora import read_corpus
from nlgraft.text.tokenizers import EOS
from nlgraft.training.config import TrainConfig
from nlgraft.training.loop import TrainOutcome, train
from nlgraft.training.losses import SegmentLosses, Seq2SeqObjective, segment_losses
from nlgraft.training.rows_first import RowsFirst
from nlgraft.training.seeds import derive_seed
from nlgraft.training.weights import load_model, save_model
from trainables.embedding_transfer.config import MASK_TOKEN
from trainables.embedding_transfer.data import Encoded, Sampler, TranslationData, batches_in_order
from trainables.embedding_transfer.noise import DEV_EPOCH, Infiller
from trainables.embedding_transfer.stages.text import open_tokenizer, open_tokenizers, sides_of, vocab_sizes

MODEL_DESCRIPTION = "model.json"


def write_model(model: Seq2Seq, directory: Path) -> None:
    """Write a model and what is needed to build it again.

    Args:
        model: Any model.
        directory: Artifact being written.
    """
    save_model(model, directory)
    description = {
        "config": model.config.model_dump(mode="json"),
        "source_vocab_size": _vocab_size(model.source_embedding),
        "target_vocab_size": _vocab_size(model.target_embedding),
    }
    (directory / MODEL_DESCRIPTION).write_text(json.dumps(description, indent=1) + "\n", "utf-8")


def _vocab_size(embedding: TableEmbedding | ContextualEmbedding) -> int:
    if isinstance(embedding, ContextualEmbedding):
        return embedding.context.vocab_size
    return embedding.table.num_embeddings


def read_model(directory: Path) -> Seq2Seq:
    """Build the model that ``write_model`` wrote.

    Args:
        directory: The artifact.

    Returns:
        The model, on the CPU.
    """
    description = json.loads((directory / MODEL_DESCRIPTION).read_text("utf-8"))
    config = TransformerConfig(**description["config"])
    with torch.random.fork_rng(devices=[]):
        model = Seq2Seq(config, description["source_vocab_size"], description["target_vocab_size"])
    load_model(model, directory)
    return model


def fresh_model(config: TransformerConfig, source_size: int, target_size: int, seed: int) -> Seq2Seq:
    """Initialise a model from a seed, whatever was drawn before.

    Args:
        config: Its configuration.
        source_size: Rows of the source table.
        target_size: Rows of the target table.
        seed: Of the stage.

    Returns:
        The model, on the CPU.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derive_seed(seed, "initialise"))
        return Seq2Seq(config, source_size, target_size)


def pretrain(context: StageContext) -> None:
    """Train a model from scratch on domain A.

    Args:
        context: ``model``, ``train``; input ``encoded``.
    """
    model = _fresh(context)
    outcome = train_model(model, context)
    losses = _dev_losses(model, context)
    _write_metrics(
        context.directory,
        {
            "upstream/dev_loss": _loss_score(losses),
            "upstream/parameters": _count("parameters", outcome.num_parameters),
        },
    )


def finetune(context: StageContext) -> None:
    """Train on domain B, from a pretrained model or from scratch.

    Args:
        context: ``train``, and ``new_rows_first_steps`` where tables were exchanged; inputs ``encoded`` and
            ``start``. For a model from scratch instead of the latter
            ``model``, or the input ``architecture``, which is a checkpoint's.
    """
    start = context.inputs.get("start")
    model = _fresh(context) if start is None else read_model(start)
    num_alone = context.config.get("new_rows_first_steps", 0)
    rows_first = None if start is None else new_rows_first(num_alone, start, model, EXCHANGED)
    outcome = train_model(model, context, rows_first=rows_first)
    losses = _dev_losses(model, context)
    write_segments(context.directory, "dev", {"loss": losses.statistics})
    _write_metrics(
        context.directory,
        {
            "dev/loss": _loss_score(losses),
            "parameters/total": _count("parameters", outcome.num_parameters),
            "parameters/trained": _count("parameters", outcome.num_trained_parameters),
            "downstream/train_s": Score(
                "train_s", outcome.seconds, 1, "minimize", "seconds of training steps"
            ),
        },
    )


def _fresh(context: StageContext) -> Seq2Seq:
    source_size, target_size = vocab_sizes(context.inputs["encoded"])
    assert context.seed is not None
    if "architecture" in context.inputs:
        description = json.loads((context.inputs["architecture"] / MODEL_DESCRIPTION).read_text("utf-8"))
        config = TransformerConfig(**description["config"])
    else:
        config = TransformerConfig(**context.config["model"])
    return fresh_model(config, source_size, target_size, context.seed)


def train_model(
    model: Seq2Seq,
    context: StageContext,
    train_only: tuple[str, ...] = (),
    rows_first: RowsFirst | None = None,
) -> TrainOutcome:
    """Train a translation model on encoded text and write the result.

    Args:
        model: Changed in place.
        context: ``train``, ``metric_prefix`` and what a phase says of sampling and dev BLEU; input
            ``encoded``.
        train_only: Patterns of the only parameters that learn; none: what ``train`` says.
        rows_first: Rows that learn alone in the first steps; None: all learns from the beginning.

    Returns:
        What came of it.
    """
    config = TrainConfig(**context.config["train"])
    changes: dict[str, Any] = {"best_metric": _reported_name(context, config.best_metric)}
    config = config.model_copy(update=changes | ({"train_only": train_only} if train_only else {}))
    encoded = Encoded.read(context.inputs["encoded"], "train")
    _check_positions(model.config, encoded)
    assert context.seed is not None
    data = TranslationData(encoded, config.batch_tokens, context.seed, _sampler(context))
    objective = Seq2SeqObjective(config.label_smoothing, config.smoothing_kind)
    evaluate = _evaluation(context, config.batch_tokens)
    return train(
        model,
        objective,
        data,
        config,
        context,
        evaluate=evaluate,
        save=write_model,
        rows_first=rows_first,
    )


def _check_positions(config: TransformerConfig, encoded: Encoded) -> None:
    """Refuse text that is longer than learned positions."""
    for side, positions, longest in zip(
        ("source", "target"),
        (config.source_positions, config.target_positions),
        encoded.lengths.max(axis=0, initial=0).tolist(),
        strict=True,
    ):
        if positions == "learned" and longest > config.max_positions:
            raise DataError(
                f"{side} text has up to {longest} tokens with its end, the model {config.max_positions} "
                f"positions; set data.max_tokens to at most {config.max_positions - 1}"
            )


def _reported_name(context: StageContext, name: str) -> str:
    """Name a dev metric so that a pretraining's cannot be taken for the trial's: upstream/dev_loss."""
    prefix = context.config["metric_prefix"]
    return f"{prefix}/{name.replace('/', '_')}" if prefix else name


def _sampler(context: StageContext) -> Sampler | Infiller | None:
    if "mask_rate" in context.config:
        return infiller(context, Encoded.read(context.inputs["encoded"], "train"))
    alpha = context.config.get("sampling_alpha")
    if alpha is None:
        return None
    lines = sides_of(read_corpus(context.inputs["corpus"] / "train"))
    return Sampler(lines, open_tokenizers(context), alpha, context.config["max_tokens"])


def infiller(context: StageContext, text: Encoded) -> Infiller:
    """Say how a stage makes holes in its text.

    Args:
        context: ``mask_rate`` and ``mean_span_tokens``; input ``target_tokenizer``.
        text: The text.

    Returns:
        What makes them.
    """
    mask_id = open_tokenizer(context.inputs["target_tokenizer"]).id(MASK_TOKEN)
    return Infiller(text, mask_id, context.config["mask_rate"], context.config["mean_span_tokens"])


def _read_dev(context: StageContext) -> Encoded:
    dev = Encoded.read(context.inputs["encoded"], "dev")
    if "mask_rate" not in context.config:
        return dev
    assert context.seed is not None
    return infiller(context, dev).epoch(DEV_EPOCH, context.seed)


def _evaluation(context: StageContext, batch_tokens: int) -> Callable[[Any], Mapping[str, float]]:
    """Make the function that measures dev loss, and BLEU of greedy search where it was asked for."""
    dev = _read_dev(context)
    num_sentences = context.config.get("num_bleu_sentences", 0)
    loss_name, bleu_name = (_reported_name(context, name) for name in ("dev/loss", "dev/greedy_bleu"))

    def evaluate(model: Seq2Seq) -> dict[str, float]:
        batches = batches_in_order(dev, batch_tokens)
        metrics = {loss_name: segment_losses(model, batches, len(dev), context.device).per_token}
        if num_sentences:
            metrics[bleu_name] = _greedy_bleu(model, context, dev, num_sentences)
        return metrics

    return evaluate


def _greedy_bleu(model: Seq2Seq, context: StageContext, dev: Encoded, num_sentences: int) -> float:
    _, references = sides_of(read_corpus(context.inputs["corpus"] / "dev"))
    count = min(num_sentences, len(dev))
    sources = Tokens.from_lists([[*dev.source[i].tolist(), EOS] for i in range(count)])
    found = beam_search(model, [sources], config=GenerationConfig(beam=1))
    tokenizer = open_tokenizer(context.inputs["target_tokenizer"])
    hypotheses = tokenizer.decode([hypotheses[0].ids for hypotheses in found])
    return score_corpus(hypotheses, references[:count], ("bleu",))["bleu"].value


def _dev_losses(model: Seq2Seq, context: StageContext) -> SegmentLosses:
    dev = _read_dev(context)
    batch_tokens = context.config["train"]["batch_tokens"]
    return segment_losses(model, batches_in_order(dev, batch_tokens), len(dev), context.device)


def _loss_score(losses: SegmentLosses) -> Score:
    signature = "nats per target token, end of sentence counted, unsmoothed"
    return Score("loss", losses.per_token, len(losses.statistics), "minimize", signature)


def _count(name: str, value: int) -> Score:
    return Score(name, value, 1, "minimize", "tied parameters once")


def _write_metrics(directory: Path, scores: Mapping[str, Score]) -> None:
    document = {name: score.to_json() for name, score in scores.items()}
    (directory / "metrics.json").write_text(json.dumps(document, indent=1) + "\n", "utf-8")
