"""What all training stages do: train, score the result on dev, write model, scores and learning curves."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from torch import nn

from nlgraft.evaluation.artifact import write_metrics, write_segments
from nlgraft.evaluation.scores import Evaluation, Score
from nlgraft.pipeline.stage import StageContext
from nlgraft.stages.metrics import metric_name
from nlgraft.stages.stage_kind import SIDE
from nlgraft.text.tokenizer_config import WordSampling
from nlgraft.text.tokenizers import TOKENIZER_FILE, WordSampler
from nlgraft.training.loop import TrainOutcome
from nlgraft.training.loop import train as run_loop
from nlgraft.training.masked_text import TEXT, WORD_SIZES, WORDS
from nlgraft.training.seeds import derive_seed
from nlgraft.training.step import RowsFirst, TrainData, Training
from nlgraft.training.views import Encoded, IntArray
from nlgraft.training.weights import save_model
from nlgraft.vocab.transfer_plan import Provenance, TransferPlan


@dataclass(frozen=True)
class TrainingTask:
    """What one kind of training does in its own way.

    Attributes:
        training: Model, objective, batches and settings.
        measure: Scores the model on dev.
        save: Writes the model into a directory.
        rows_first: Rows that are trained alone in the first steps; None: everything from the start.
        prefix: Prefix of all metrics of a training whose model is not the trial's result.
        report_steps: Steps whose dev scores are metrics of their own, ``dev/loss.step_100``, if the training
            evaluates there; 0: before training.
        measure_more: Further dev metrics for the learning curves, by whole names.
    """

    training: Training
    measure: Callable[[Any], Evaluation]
    save: Callable[[Any, Path], None] = save_model
    rows_first: RowsFirst | None = None
    prefix: str = ""
    report_steps: tuple[int, ...] = ()
    measure_more: Callable[[Any], Mapping[str, float]] = lambda model: {}

    def train(self, context: StageContext) -> TrainOutcome:
        """Train the model and write it into the stage's artifact."""
        config = self.training.config
        # The loop knows metrics by the names that the stage reports.
        changes: dict[str, Any] = {"best_metric": metric_name(config.best_metric, self.prefix)}
        if 0 in self.report_steps:
            changes["is_evaluated_at_start"] = True

        def evaluate(model: Any) -> Mapping[str, float]:
            values = {f"dev/{name}": score.value for name, score in self.measure(model).scores.items()}
            values |= self.measure_more(model)
            return {metric_name(name, self.prefix): value for name, value in values.items()}

        return run_loop(
            replace(self.training, config=config.model_copy(update=changes)),
            context,
            evaluate=evaluate,
            save=self.save,
            rows_first=self.rows_first,
        )

    def run(self, context: StageContext) -> tuple[TrainOutcome, Evaluation]:
        """Train; write the model with its dev scores, its size and the learning curves."""
        outcome = self.train(context)
        # Once more: the result may be the best or averaged weights, not those evaluated last.
        evaluation = self.measure(self.training.model)
        write_split(context.directory, "dev", evaluation, self.prefix)
        scores = outcome.scores | self._scores_of_steps(outcome, evaluation)
        write_scores(context.directory, scores, self.prefix)
        return outcome, evaluation

    def _scores_of_steps(self, outcome: TrainOutcome, evaluation: Evaluation) -> dict[str, Score]:
        return {
            f"dev/{name}.step_{int(step)}": replace(score, value=value)
            for name, score in evaluation.scores.items()
            for step, value, _ in outcome.curves.get(metric_name(f"dev/{name}", self.prefix), [])
            if step in self.report_steps
        }


def write_split(
    directory: Path,
    split: str,
    evaluation: Evaluation,
    prefix: str = "",
) -> None:
    """Write the scores of a split, and the statistics of its segments if the model is the trial's result."""
    if not prefix:
        write_segments(directory, split, evaluation.statistics)
    scores = {f"{split}/{name}": score for name, score in evaluation.scores.items()}
    write_scores(directory, scores, prefix)


def write_scores(
    directory: Path,
    scores: Mapping[str, Score],
    prefix: str,
) -> None:
    """Write scores by their whole names, behind the prefix if there is one."""
    write_metrics(directory, {metric_name(name, prefix): score for name, score in scores.items()})


# Training text that is segmented anew in every epoch, with its words kept.


class SampledLines:
    """Training data whose lines are segmented anew in every epoch."""

    def __init__(
        self,
        lines: Sequence[str],
        tokenizer: Path,
        sampling: WordSampling,
        seed: int,
        data: Callable[[Encoded], TrainData],
    ) -> None:
        """Set up the data.

        Args:
            lines: The text.
            tokenizer: Directory of its BPE tokenizer.
            sampling: How it is segmented.
            seed: Seed of the segmentations.
            data: Makes the data of an epoch from its encoded lines.
        """
        self._lines = lines
        self._sampler = WordSampler(tokenizer / TOKENIZER_FILE, sampling.dropout)
        self._max_tokens = sampling.max_tokens
        self._seed = seed
        self._data = data
        # Batches of one epoch are asked for in turn, so one segmentation is kept.
        self._of = lru_cache(maxsize=1)(self._segmented)

    def _segmented(self, epoch: int) -> TrainData:
        seed = derive_seed(self._seed, "segmentation", epoch)
        segmented = self._sampler.encode(self._lines, self._max_tokens, seed)
        return self._data(
            Encoded({TEXT: segmented.ids, WORDS: segmented.words, WORD_SIZES: segmented.word_sizes})
        )

    def epoch(self, index: int) -> Sequence[IntArray]:
        """Draw up the global batches of an epoch."""
        return self._of(index).epoch(index)

    def batch(self, rows: IntArray, epoch: int) -> Any:
        """Make the batch of some rows."""
        return self._of(epoch).batch(rows, epoch)


KEPT = (Provenance.COPY, Provenance.SPECIAL, Provenance.GAP)
"""Rows that are not new: what the old model learned, and rows without a token."""


def new_rows_first(
    num_steps: int,
    start: Path,
    model: nn.Module,
    names: Iterable[str],
) -> RowsFirst | None:
    """Find the rows of a model with an exchanged vocabulary that learn first.

    Args:
        num_steps: Number of steps in which they are trained alone.
        start: Directory that the exchange wrote, with its plan.
        model: The model; a table with several names counts once.
        names: Parameters that the plan made: tables and output biases.

    Returns:
        The rows of these parameters; None where ``num_steps`` is 0 or nothing was exchanged.
    """
    if not num_steps or not (start / f"plan-{SIDE}").is_dir():
        return None
    plan = TransferPlan.load(start / f"plan-{SIDE}")
    is_new = torch.ones(len(plan), dtype=torch.bool)
    is_new[torch.from_numpy(plan.rows(*KEPT))] = False
    # The optimiser knows a tied table by the first of its names.
    first_names = {id(parameter): name for name, parameter in model.named_parameters()}
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return RowsFirst(
        num_steps, {first_names[id(parameters[name])]: is_new for name in names if name in parameters}
    )
