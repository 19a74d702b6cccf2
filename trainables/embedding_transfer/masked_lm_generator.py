"""Training of ATT-EG and PATT-EG inside a frozen masked language model.

Shape letters: B lines, T and S positions of the original and the changed line, D width, W words, N new tokens
of a batch, V old vocabulary, M positions to be predicted.
Source: Liu et al. (2021), section 3.3; what is masked beside the changed words from the authors' code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nlgraft.nn.batch import Tokens
from nlgraft.nn.masked_lm import MaskedBatch, MaskedLM
from nlgraft.training.cross_entropy import SmoothingKind, smoothed_cross_entropy
from nlgraft.training.losses import Loss, freeze_module
from nlgraft.training.masked_text import Masker, labels_of
from nlgraft.training.seeds import generator_for
from nlgraft.training.views import IntArray as Rows
from nlgraft.vocab.tokenizers.vocabulary import Vocabulary
from trainables.embedding_transfer.distillation import NO_WORD, Reduction, distillation_loss
from trainables.embedding_transfer.generators import EmbeddingGenerator, extended
from trainables.embedding_transfer.new_tokens import (
    DEV_EPOCH,
    BatchNumbering,
    ChangedText,
    NewTokens,
    Shard,
    SimilarOptions,
)
from trainables.embedding_transfer.perturbation import PerturbedSentence, Perturber, Rates

TABLE = "encoder"
"""Name of the one table of a masked language model."""


@dataclass(frozen=True)
class ChangedMaskedBatch:
    """Masked lines twice: as they are, and in another segmentation with tokens the vocabulary lacks.

    Attributes:
        original: The lines for the teacher.
        changed: The lines for the student; new token n has id V + n.
        new_tokens: The new tokens.
        original_words: Word number of each position, int64 [B, T]; here a word is the tokenizer's own, the
            unit within which tokens are split and merged.
        changed_words: Likewise of the changed lines, int64 [B, S].
        compared: Words that are masked alike in both, bool [B, W].
    """

    original: MaskedBatch
    changed: MaskedBatch
    new_tokens: NewTokens
    original_words: Tensor
    changed_words: Tensor
    compared: Tensor

    def to(self, device: torch.device | str) -> ChangedMaskedBatch:
        """Move to a device."""
        return ChangedMaskedBatch(
            self.original.to(device),
            self.changed.to(device),
            self.new_tokens.to(device),
            self.original_words.to(device),
            self.changed_words.to(device),
            self.compared.to(device),
        )


class ChangedMaskedData:
    """Batches of masked upstream text, each line in two segmentations.

    Words that are to be predicted are neither split nor merged, so they are masked alike in both.

    **Determinism**: a line's masks and changes depend on the seed, the epoch and the line alone.
    """

    def __init__(
        self,
        masker: Masker,
        vocabulary: Vocabulary,
        rates: Rates,
        options: SimilarOptions,
        *,
        new_mask_rate: float,
        batch_tokens: int,
        max_tokens: int | None,
    ) -> None:
        """Set up the data.

        Args:
            masker: Masks the lines.
            vocabulary: Of the lines.
            rates: How often words are changed.
            options: How similar tokens are chosen.
            new_mask_rate: Share of the new tokens that are hidden and to be predicted.
            batch_tokens: Most padded positions of a batch.
            max_tokens: Longest line, without begin and end, that the model can read; a line that splitting
                would make longer stays as it is.
        """
        self._masker = masker
        self._max_tokens = max_tokens
        self._new_mask_rate = new_mask_rate
        self._perturber = Perturber(vocabulary, rates)
        self._batches = masker.batches(batch_tokens, masker.seed)
        vocabularies = {TABLE: vocabulary}
        self._changed = ChangedText(vocabularies, {TABLE: TABLE}, self._change, self._batches, options)

    def _change(self, _side: str, row: int, epoch: int) -> PerturbedSentence:
        line = self._masker.line(row, epoch)
        generator = generator_for(self._masker.seed, "perturb", TABLE, epoch, row)
        changed = self._perturber.perturb(line.tokens, generator, line.is_predicted)
        if self._max_tokens is not None and len(changed.tokens) > self._max_tokens:
            return PerturbedSentence([*line.tokens], self._perturber.words(line.tokens))
        return changed

    def epoch(self, index: int) -> Sequence[Rows]:
        """Give the rows of each global batch of an epoch."""
        return self._batches.epoch(index)

    def in_order(self) -> Iterator[ChangedMaskedBatch]:
        """Go once through the text in a change of its own, for evaluation.

        Yields:
            Batches, the longest first.
        """
        for rows in self._batches.in_order():
            yield self.batch(rows, DEV_EPOCH)

    def batch(self, rows: Rows, epoch: int) -> ChangedMaskedBatch:
        """Make the batch of some rows."""
        shards = self._changed.by_row(rows, epoch)
        numbering = self._changed.numbering()
        ids = self._masker.ids
        lines = [self._line(int(row), epoch, shards[int(row)], numbering) for row in rows]
        num_words = max((max(line.original_words, default=-1) for line in lines), default=-1) + 1
        compared = torch.ones(len(lines), num_words, dtype=torch.bool)
        for number, line in enumerate(lines):
            compared[number, line.masked_once] = False
        begin, end = ids.begin, ids.end
        return ChangedMaskedBatch(
            self._masker.batch(rows, epoch),
            MaskedBatch.of(
                [[begin, *line.inputs, end] for line in lines], [line.labels for line in lines], ids.pad
            ),
            numbering.new_tokens()[TABLE],
            _pad_words([line.original_words for line in lines]),
            _pad_words([line.changed_words for line in lines]),
            compared,
        )

    def _line(self, row: int, epoch: int, shard: Shard, numbering: BatchNumbering) -> _ChangedLine:
        """Number the new tokens of a line, hide some of them, and put the line's own holes back."""
        line, sentence = self._masker.line(row, epoch), shard.sentences[TABLE][row]
        words = self._perturber.words(line.tokens)
        kept = {word for word, is_asked in zip(words, line.is_predicted, strict=True) if is_asked}
        # words with a hole are as they were: what the model reads there is taken over token by token
        pieces = zip(words, line.inputs, line.is_predicted, strict=True)
        waiting = iter([(given, is_asked) for word, given, is_asked in pieces if word in kept])
        ids = numbering.ids(TABLE, sentence.tokens, shard)
        size = len(self._perturber.vocabulary)
        draws = generator_for(self._masker.seed, "new", epoch, row).random(len(ids))
        inputs: list[int] = []
        asked: list[bool] = []
        masked_once: set[int] = set()
        for identity, word, draw in zip(ids, sentence.words, draws.tolist(), strict=True):
            if word in kept:
                given, is_asked = next(waiting)
            else:
                is_asked = identity >= size and draw < self._new_mask_rate
                given = self._masker.ids.mask if is_asked else identity
                masked_once |= {word} if is_asked else set()
            inputs.append(given)
            asked.append(is_asked)
        return _ChangedLine(inputs, labels_of(ids, asked), words, sentence.words, sorted(masked_once))


def _pad_words(words: Sequence[Sequence[int]]) -> Tensor:
    """Word numbers of every position; begin, end and padding have none."""
    return Tokens.from_lists([[NO_WORD, *numbers, NO_WORD] for numbers in words], NO_WORD).ids


@dataclass(frozen=True)
class _ChangedLine:
    inputs: list[int]
    labels: list[int]
    original_words: list[int]
    changed_words: list[int]
    masked_once: list[int]


class MaskedGeneratorModel(nn.Module):
    """A generator around a frozen masked language model.

    Only the generator's weights are parameters of this module: the model is not registered, so nothing can
    train it, put it into training mode, or store it once more.
    """

    def __init__(self, body: MaskedLM, generator: EmbeddingGenerator) -> None:
        """Freeze the model.

        Args:
            body: The pretrained model; frozen in place, in evaluation mode for good.
            generator: Of its table.
        """
        super().__init__()
        self.generators = nn.ModuleDict({TABLE: generator})
        self._body = (cast(MaskedLM, freeze_module(body)),)

    @property
    def body(self) -> MaskedLM:
        """The frozen model."""
        return self._body[0]

    @property
    def table(self) -> Tensor:
        """The frozen table of input embeddings, [V, D]."""
        return self.body.input_table

    def forward(self, batch: ChangedMaskedBatch) -> tuple[Tensor, Tensor, Tensor]:
        """Run the student.

        Args:
            batch: What to read and to predict.

        Returns:
            Last hidden states [B, S, D]; logits [M, V + N] where something is asked; true tokens [M].
        """
        tensors = self._extended(batch.new_tokens)
        states, logits = functional_call(self.body, tensors, (batch.changed,), tie_weights=False)
        return states, logits, batch.changed.targets

    @torch.no_grad()
    def teach(self, batch: ChangedMaskedBatch) -> Tensor:
        """Run the frozen model on the original segmentation.

        Args:
            batch: What to read.

        Returns:
            Last hidden states [B, T, D].
        """
        return self.body(batch.original.without_labels())[0]

    def _extended(self, new: NewTokens) -> dict[str, Tensor]:
        """Append generated rows to the input table, the output table and the bias, under all their names."""
        generator = cast(EmbeddingGenerator, self.generators[TABLE])
        weights_NW = generator.weights(self.table[new.members], new.relations)
        made: dict[int, Tensor] = {}
        tensors: dict[str, Tensor] = {}
        parameters = self.body.state_dict(keep_vars=True)
        for name in sorted(self.body.vocabulary_tensors):
            # tied names get one tensor
            tensor = parameters[name]
            key = tensor.data_ptr()
            if key not in made:
                made[key] = extended(tensor, weights_NW, new.members)
            tensors[name] = made[key]
        return tensors


@dataclass(frozen=True)
class MaskedGeneratorObjective:
    """L = L_p + lambda L_d (eq. 5).

    L_p is the masked-LM loss over the extended vocabulary. L_d is summed over lines, each as often as it has
    hidden tokens, so that the loop's division by tokens leaves a mean over lines whatever rows a worker has.

    Attributes:
        distillation_lambda: Weight of L_d; 0 runs no teacher.
        reduction: How squared distances are added up over D.
        smoothing: Label smoothing of L_p.
        kind: Its kind.
    """

    distillation_lambda: float
    reduction: Reduction = "sum_dim"
    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    def __call__(self, model: Any, batch: ChangedMaskedBatch) -> Loss:
        """Compute the summed loss of a batch, with its two parts."""
        states, logits_MV, target_M = model(batch)
        pretraining = smoothed_cross_entropy(logits_MV, target_M, self.smoothing, self.kind)
        if not self.distillation_lambda:
            return Loss(pretraining, len(target_M), {"pretraining": pretraining})
        asked_B = batch.changed.num_targets
        distillation = self.distillation_lambda * (self.distillation(model, batch, states) * asked_B).sum()
        terms = {"pretraining": pretraining, "distillation": distillation}
        return Loss(pretraining + distillation, len(target_M), terms)

    def distillation(self, model: Any, batch: ChangedMaskedBatch, states: Tensor) -> Tensor:
        """Compute L_d of every line.

        Args:
            model: The generator around the frozen model.
            batch: Both segmentations.
            states: The student's last states.

        Returns:
            L_d [B], without lambda.
        """
        return distillation_loss(
            model.teach(batch).float(),
            batch.original_words,
            states.float(),
            batch.changed_words,
            reduction=self.reduction,
            compared_BW=batch.compared,
        )
