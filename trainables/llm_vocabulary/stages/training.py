"""Training and scoring of causal language models of transformers."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
from safetensors.numpy import load_file, save_file

from nlgraft.basics.errors import ContractError
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.nn.causal_lms import TransformersCausalLM, fresh_llama, load_causal_lm
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.kinds.language_model_kinds import TrainLanguageModelInputs
from nlgraft.stages.run.new_rows import new_rows_of_one_table
from nlgraft.stages.run.text_stages import read_encoded
from nlgraft.stages.run.training_task import TrainingTask, evaluate_statistics, write_scores, write_split
from nlgraft.training.causal_lm_training import causal_losses, causal_objective, check_positions
from nlgraft.training.causal_text import LineEnds, PackedText, token_counts
from nlgraft.training.loop import TrainOutcome
from nlgraft.training.rows_first import RowsFirst
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import Training
from nlgraft.training.train_config import ALL_LEARNED, LearnedParameters, ParameterGroup
from nlgraft.training.views import IntArray
from nlgraft.vocab.tokenizers.directories import copy_tokenizer
from nlgraft.vocab.tokenizers.loading import load_vocabulary
from trainables.llm_vocabulary.adapters import ALWAYS, add_adapters, merge_adapters, rows_and_adapters
from trainables.llm_vocabulary.kinds import (
    RELEASED_CAUSAL,
    SCORE_CAUSAL,
    TEXT,
    TRAIN_CAUSAL,
    ScoreCausalInputs,
    TrainCausalSettings,
)
from trainables.llm_vocabulary.stages.text import bytes_of, lines_of

READ_FILE = "tokens_read.safetensors"
"""How often each token was read in the training."""
_SIGNATURE = "each line by itself, its end one byte and one token"


def read_released(context: StageContext) -> None:
    """Take a released model as it is."""
    settings, _ = RELEASED_CAUSAL.read(context)
    load_causal_lm(context.locations["checkpoint"], settings.revision).write(context.directory)


def train(context: StageContext) -> None:
    """Train a causal language model; write it as a directory of transformers, with its dev scores."""
    settings, inputs = TRAIN_CAUSAL.read(context)
    assert context.seed is not None, "the graph gives every training a seed"
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    model = _start_model(settings, inputs, context, ends).to(context.device)
    check_positions(model, settings.max_tokens)
    text = _packed(settings, inputs, ends, context.seed)

    def measure(model: TransformersCausalLM) -> Evaluation:
        return _evaluate(model, inputs, "dev", settings.max_tokens, context.device)

    def save(model: TransformersCausalLM, directory: Path) -> None:
        if settings.lora is not None:
            merge_adapters(model)
        # With its tokenizer the artifact is whole for transformers.
        model.write(directory)
        copy_tokenizer(inputs.tokenizer, directory)

    rows_first = _rows_first(settings, inputs, model, context.seed)
    training = Training(model, causal_objective, text, settings.train, _learned(settings, model))
    outcome, _ = TrainingTask(training, measure, save, rows_first, settings.metric_prefix).run(context)
    times = text.times_read(outcome.steps * settings.train.accumulation)
    counts = token_counts(read_encoded(inputs.encoded, "train").stream(TEXT), times, len(model.input_table))
    save_file({"counts": counts}, context.directory / READ_FILE)
    num_bytes = int(times @ bytes_of(inputs.corpus, "train"))
    write_scores(context.directory, _bytes_read(num_bytes, outcome), settings.metric_prefix)


def tokens_read(directory: Path) -> IntArray | None:
    """Read how often each token was read in the training of an artifact; None if it is not of a training."""
    file = directory / READ_FILE
    return load_file(file)["counts"] if file.is_file() else None


def _start_model(
    settings: TrainCausalSettings,
    inputs: TrainLanguageModelInputs[Path],
    context: StageContext,
    ends: LineEnds,
) -> TransformersCausalLM:
    if inputs.start is not None:
        return load_causal_lm(str(inputs.start), None)
    if settings.llama is None or context.seed is None:
        raise ContractError(f"stage {context.stage.name}: give it a start, or a llama and a seed")
    return fresh_llama(
        settings.llama,
        len(load_vocabulary(inputs.tokenizer)),
        end_id=ends.end,
        max_tokens=settings.max_tokens,
        seed=derive_seed(context.seed, "initial weights"),
    )


def _rows_first(
    settings: TrainCausalSettings,
    inputs: TrainLanguageModelInputs[Path],
    model: TransformersCausalLM,
    seed: int,
) -> RowsFirst | None:
    """Put adapters into the model if it gets any, and find the rows that learn alone."""
    if inputs.start is None:
        return None
    if settings.lora is not None:
        add_adapters(model, settings.lora, derive_seed(seed, "adapters"))
    steps = ALWAYS if settings.lora is not None else settings.new_rows_first_steps
    rows = new_rows_of_one_table(steps, inputs.start, model, model.vocabulary_tensors)
    return rows if settings.lora is None else rows_and_adapters(model, rows)


def _packed(
    settings: TrainCausalSettings, inputs: TrainLanguageModelInputs[Path], ends: LineEnds, seed: int
) -> PackedText:
    config, lines = settings.train, read_encoded(inputs.encoded, "train").stream(TEXT)
    if config.batch_tokens is not None:
        sizes = lines.lengths + 1
    elif config.batch_characters is not None:
        sizes = np.array([len(line) + 1 for line in lines_of(inputs.corpus, "train")], dtype=np.int64)
    else:
        sizes = np.ones(len(lines), dtype=np.int64)
    budget = config.batch_tokens or config.batch_characters or config.batch_sentences
    assert budget is not None, "a training has one budget"
    return PackedText(lines, sizes, ends, budget=budget, max_tokens=settings.max_tokens, seed=seed)


def _learned(settings: TrainCausalSettings, model: TransformersCausalLM) -> LearnedParameters:
    if settings.table_lr_multiplier == 1.0:
        return ALL_LEARNED
    # The optimiser knows a tied table by the first of its names.
    names = {name for name, _ in model.named_parameters()} & model.vocabulary_tensors
    pattern = f"^({'|'.join(map(re.escape, sorted(names)))})$"
    group = ParameterGroup(pattern=pattern, lr_multiplier=settings.table_lr_multiplier)
    return LearnedParameters(groups=(group,))


def _bytes_read(num_bytes: int, outcome: TrainOutcome) -> dict[str, Score]:
    speed, signature = num_bytes / outcome.seconds, "ends of lines included, as often as they were read"
    return {
        "train_bytes": Score("train_bytes", num_bytes, 1, "minimize", signature),
        "train_bytes_per_s": Score("train_bytes_per_s", speed, 1, "maximize", signature),
    }


def score(context: StageContext) -> None:
    """Measure the losses of a model on a split."""
    settings, inputs = SCORE_CAUSAL.read(context)
    model = load_causal_lm(str(inputs.model), None).to(context.device)
    check_positions(model, settings.max_tokens)
    evaluation = _evaluate(model, inputs, settings.split, settings.max_tokens, context.device)
    write_split(context.directory, settings.split, evaluation, settings.metric_prefix)


def _evaluate(
    model: TransformersCausalLM,
    inputs: TrainLanguageModelInputs[Path] | ScoreCausalInputs[Path],
    split: str,
    max_tokens: int,
    device: str,
) -> Evaluation:
    """Measure nats with tokens, and with bytes, of every line."""
    ends = LineEnds.of(load_vocabulary(inputs.tokenizer))
    lines = read_encoded(inputs.encoded, split).stream(TEXT)
    rows = causal_losses(model, lines, ends, max_tokens, device)
    num_bytes = bytes_of(inputs.corpus, split).astype(np.float64)
    statistics = {"loss": rows, "bits_per_byte": np.stack([rows[:, 0], num_bytes], 1)}
    return evaluate_statistics(statistics, _SIGNATURE)
