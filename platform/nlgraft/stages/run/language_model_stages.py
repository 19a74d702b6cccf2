"""Pretraining of our own language models."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from nlgraft.basics.errors import DataError
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.run.text_stages import read_encoded, training_budget, vocab_sizes
from nlgraft.stages.run.training_task import TrainingTask, write_scores
from nlgraft.stages.stage_kind import LANGUAGE_MODEL, UNTRAINED_LANGUAGE_MODEL
from nlgraft.text.batches import Ragged
from nlgraft.text.corpora import read_corpus
from nlgraft.training.language_model_training import (
    LanguageModel,
    TextData,
    condition,
    evaluate_language_model,
    fresh_language_model,
    language_model_objective,
    write_language_model,
)
from nlgraft.training.step import Training


def train(context: StageContext) -> None:
    """Train a language model; write it with its dev perplexity, its size and the learning curves."""
    settings, inputs = LANGUAGE_MODEL.read(context)
    sentences = {
        split: read_encoded(inputs.encoded, split).stream(settings.stream) for split in ("train", "dev")
    }
    text, dev = (
        TextData(
            sentences[split],
            batch_tokens=training_budget(settings.train, inputs.corpus, split, context.seed),
            seed=context.seed,
        )
        for split in sentences
    )
    is_whole_N = _whole_lines(sentences["dev"], settings.max_tokens)
    dev_lines = read_corpus(inputs.corpus / "dev").text(settings.role)
    # Of the text, not of its tokens: what vocabularies are compared by.
    characters_N = np.array([len(line) for line in dev_lines])
    vocab_size = vocab_sizes(inputs.encoded)[settings.stream]
    model = fresh_language_model(settings.model.model_copy(update={"vocab_size": vocab_size}), context.seed)

    def measure(model: LanguageModel) -> Evaluation:
        return evaluate_language_model(model, dev, context.device)

    task = TrainingTask(
        Training(model, language_model_objective, text, settings.train),
        measure,
        save=write_language_model,
        prefix=settings.metric_prefix,
    )
    _, evaluation = task.run(context)
    per_character = char_perplexity(model, evaluation, characters_N, is_whole_N)
    write_scores(context.directory, {"dev/char_perplexity": per_character}, settings.metric_prefix)


def write_untrained(context: StageContext) -> None:
    """Write a language model with the initial weights of its pretraining."""
    settings, inputs = UNTRAINED_LANGUAGE_MODEL.read(context)
    vocab_size = vocab_sizes(inputs.encoded)[settings.stream]
    config = settings.model.model_copy(update={"vocab_size": vocab_size})
    write_language_model(fresh_language_model(config, context.seed), context.directory)


def char_perplexity(
    model: LanguageModel,
    evaluation: Evaluation,
    characters_N: NDArray[np.int64],
    is_whole_N: NDArray[np.bool_],
) -> Score:
    """Compute the perplexity per character of the dev lines that were not cut.

    The loss of a line is that of one segmentation, its end tokens included; its characters are those of the
    text, so that models of different vocabularies can be compared.
    """
    nats = evaluation.statistics["loss"][is_whole_N, 0].sum()
    value = math.exp(nats / characters_N[is_whole_N].sum())
    signature = f"char_perplexity|{condition(model)}|uncut lines"
    return Score(value, int(is_whole_N.sum()), "minimize", signature)


def _whole_lines(sentences: Ragged, max_tokens: int | None) -> NDArray[np.bool_]:
    """Find the lines that were not cut; one that has just the longest length counts as cut."""
    is_whole_N = sentences.lengths < (math.inf if max_tokens is None else max_tokens)
    if not sentences.lengths[is_whole_N].any():
        raise DataError(
            f"every dev line has {max_tokens} tokens or more, so none is whole and perplexity per character "
            "cannot be measured: raise max_tokens"
        )
    return is_whole_N
