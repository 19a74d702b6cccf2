"""The embedding generators ATT-EG and PATT-EG, and their training inside a frozen model.

AVG-EG, which has no parameters, is method ``avg`` of the platform. The model is an encoder-decoder or a
masked language model. It reads upstream text in two segmentations, one of which has out-of-vocabulary tokens:
splits and merges stay within a word, and the text does not change.

Shape letters: B sentences, T and S positions of the original and the changed sequence, D width, N new tokens
of a batch, W similar tokens or words, V old vocabulary, R predicted positions.
Source: Liu et al. (2021), sections 3.2 and 3.3; probabilities of splits and merges from the authors' code,
without its defects. Deviation: weights sum to one. Equations 2 and 3 print a further factor 1/|S_m|, which is
absent from the authors' code and would shrink every generated row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from nlgraft.nn.batch import Batch, Movable, Tokens
from nlgraft.nn.masked_lm_models import MaskedBatch, MaskedLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.stages.run.exchange_stages import TABLES
from nlgraft.stages.stage_kind import SIDE
from nlgraft.text.batches import LengthBatches
from nlgraft.text.corpus_config import PAD
from nlgraft.text.tokenizer_config import SegmentationRates
from nlgraft.training.losses import Loss, smoothed_cross_entropy
from nlgraft.training.masked_text import MaskedLine, Masker
from nlgraft.training.seeds import generator_for
from nlgraft.training.train_config import SmoothingKind, View
from nlgraft.training.views import Encoded, IntArray, Seq2SeqData
from nlgraft.vocab.methods.interface import Method, Request, Rows
from nlgraft.vocab.methods.registry import weighted_rows
from nlgraft.vocab.methods.similar import DEFAULT_CAP, NUM_RELATIONS, Relation, Similar, SimilarTokens
from nlgraft.vocab.tokenizers.resegmentation import IdOrTok, Resegmented, Resegmenter
from nlgraft.vocab.tokenizers.vocabulary import (
    Tok,
    Vocabulary,
)
from trainables.embedding_transfer.config import STREAMS, GeneratorKind

EXCHANGED = {
    "encoder": (TABLES["encoder"],),
    "decoder": (TABLES["decoder"], "output_projection.weight", "output_projection.bias"),
}
"""Parameters of an encoder-decoder whose rows are a side's tokens."""
CHUNK_TOKENS = 4096
"""Tokens generated at once when a whole vocabulary is generated: limits memory, does not affect results."""


class EmbeddingGenerator(nn.Module):
    """Generates the embedding of a token from those of its similar tokens.

    ATT has one weight vector, PATT one for each relation. They begin with zeros, with which both are AVG.
    """

    def __init__(self, kind: GeneratorKind, d_model: int) -> None:
        """Build a generator of width D: att (eq. 2) or patt (eq. 3)."""
        super().__init__()
        shape = (d_model,) if kind == "att" else (NUM_RELATIONS, d_model)
        self.weight = nn.Parameter(torch.zeros(shape))

    def weights(self, rows_NWD: Tensor, relations_NW: Tensor) -> Tensor:
        """Weigh the similar tokens.

        Args:
            rows_NWD: Old rows of the similar tokens; the contents of padded slots are ignored.
            relations_NW: ``Relation`` of each slot, PAD where there is no token.

        Returns:
            Weights [N, W], zero in padded slots; they sum to one wherever there is a similar token.
        """
        valid_NW = relations_NW != int(Relation.PAD)
        if self.weight.ndim == 1:
            scores_NW = rows_NWD @ self.weight
        else:
            # one product with the vectors of all relations, then select that of each slot
            all_NWR = rows_NWD @ self.weight.T
            index_NW1 = relations_NW.clamp(max=NUM_RELATIONS - 1)[..., None]
            scores_NW = all_NWR.gather(2, index_NW1)[..., 0]
        scores_NW = scores_NW.masked_fill(~valid_NW, float("-inf"))
        # a token without similar tokens has no softmax: its weights are zero, not NaN
        scores_NW = scores_NW.masked_fill(~valid_NW.any(1, keepdim=True), 0.0)
        return scores_NW.softmax(1) * valid_NW


def combine(weights_NW: Tensor, rows_NW: Tensor) -> Tensor:
    """Sum rows [N, W, D], or entries of a bias [N, W], by weight: [N, D] or [N].

    Slots of weight zero must be finite, since 0 x inf is NaN.
    """
    return torch.einsum("nw,nw...->n...", weights_NW, rows_NW)


@dataclass(frozen=True)
class NewTokens(Movable):
    """Out-of-vocabulary tokens with their similar tokens.

    Attributes:
        members: Ids of similar tokens, int64 [N, W].
        relations: ``Relation`` of each slot, int64 [N, W], PAD where there is no token.
    """

    members: Tensor
    relations: Tensor

    @classmethod
    def of(cls, similar: Sequence[Similar]) -> NewTokens:
        """Lay S_m of N tokens out as a rectangle."""
        members = Tokens.from_lists([[member for member, _ in row] for row in similar])
        relations = [[int(relation) for _, relation in row] for row in similar]
        return cls(members.ids, Tokens.from_lists(relations, Relation.PAD).ids)


def generator_method(name: str, generator: EmbeddingGenerator, table_VD: Tensor) -> Method:
    """Wrap a trained generator as a method of transfer plans; its weights depend on the rows of the table."""

    @torch.no_grad()
    def produce(request: Request) -> Rows:
        similar = request.similar()
        weights: list[dict[int, float]] = []
        for start in range(0, len(similar), CHUNK_TOKENS):
            chunk = similar[start : start + CHUNK_TOKENS]
            new = NewTokens.of(chunk)
            weights_NW = generator.weights(table_VD[new.members].float(), new.relations).tolist()
            for members, row in zip(chunk, weights_NW, strict=True):
                ids = [member for member, _ in members]
                weights.append(dict(zip(ids, row, strict=False)))
        return weighted_rows(similar, weights)

    return Method(name=name, produce=produce, source="Liu et al. (2021), eq. 2 and 3")


# Text in perturbed segmentations.


NUM_REMEMBERED = 2**17
"""New tokens whose similar tokens are remembered: the frequent ones come in every batch."""


class ChangedSide(Resegmenter):
    """A side of the text, whose words are split and merged.

    Attributes:
        table: Name of its embedding table; sides that share a table share the vocabulary.
        similar: Finds the similar tokens of a new token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        rates: SegmentationRates,
        table: str = SIDE,
        cap: int | None = DEFAULT_CAP,
        max_tokens: int | None = None,
    ) -> None:
        """Take the vocabulary and its table; a token has at most ``cap`` similar ones."""
        super().__init__(vocabulary, rates, max_tokens)
        self.table = table
        self.similar = lru_cache(NUM_REMEMBERED)(SimilarTokens(vocabulary, cap).of)

    def ids(self, tokens: Sequence[IdOrTok], numbers: dict[Tok, int]) -> list[int]:
        """Give the new tokens of a sentence the ids V, V + 1, ... in order of appearance in a batch.

        Args:
            tokens: The sentence.
            numbers: Numbers of the new tokens so far; those of this sentence are added.
        """
        size = len(self.vocabulary)
        return [
            size + numbers.setdefault(token, len(numbers)) if isinstance(token, Tok) else token
            for token in tokens
        ]


@dataclass(frozen=True)
class ChangedBatch(Movable):
    """A batch in two segmentations: the original one, and one that contains out-of-vocabulary tokens.

    Attributes:
        original: Input of the teacher.
        changed: Input of the student; new token n of a table has id V + n.
        new_tokens: The new tokens of each table.
        original_words: Word number of each position, int64 [B, T], of each side that was changed.
        changed_words: Likewise of the changed sequence, int64 [B, S].
    """

    original: Batch | MaskedBatch
    changed: Batch | MaskedBatch
    new_tokens: Mapping[str, NewTokens]
    original_words: Mapping[str, Tensor]
    changed_words: Mapping[str, Tensor]


DEV_EPOCH = -1
"""Epoch number for the perturbation of dev text, distinct from all training epochs."""
NO_WORD = -1
"""Word number of positions that belong to no word: begin and end of sentence, padding."""


@dataclass(eq=False)
class ChangedData(ABC):
    """Batches of upstream text, each sentence in two segmentations.

    **Determinism**: the perturbation of a sentence depends only on the seed, the epoch and the sentence, not
    on the sentences beside it, nor on the number of workers.
    """

    _batches: LengthBatches
    _sides: Mapping[str, ChangedSide]
    _seed: int

    def epoch(self, index: int) -> Sequence[IntArray]:
        """List the global batches of an epoch, each as row numbers."""
        return self._batches.epoch(index)

    def in_order(self) -> Iterator[ChangedBatch]:
        """Yield the text once for evaluation, with a fixed perturbation, longest batch first."""
        for rows in self._batches.in_order():
            yield self.batch(rows, DEV_EPOCH)

    @abstractmethod
    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""

    def change(
        self,
        side: str,
        row: int,
        epoch: int,
        ids: Sequence[int],
        is_kept: Sequence[bool] = (),
    ) -> Resegmented:
        """Perturb a sentence of a side for an epoch."""
        generator = generator_for(self._seed, "perturb", side, epoch, row)
        return self._sides[side].perturb(ids, generator, is_kept)

    def numbered(
        self, sentences: Mapping[str, Sequence[Resegmented]]
    ) -> tuple[dict[str, list[list[int]]], dict[str, NewTokens]]:
        """Give ids to the new tokens of a batch.

        Returns:
            Ids of each sentence, by side, and the new tokens, by table.
        """
        tables = {side.table: side for side in self._sides.values()}
        numbers: dict[str, dict[Tok, int]] = {table: {} for table in tables}
        ids = {}
        for name, side in self._sides.items():
            ids[name] = [side.ids(sentence.tokens, numbers[side.table]) for sentence in sentences[name]]
        new_tokens = {}
        for table, side in tables.items():
            new_tokens[table] = NewTokens.of([*map(side.similar, numbers[table])])
        return ids, new_tokens


class ChangedPairs(ChangedData):
    """Sentence pairs for an encoder-decoder."""

    def __init__(
        self,
        encoded: Encoded,
        view: View,
        batch_tokens: int,
        sides: Mapping[str, ChangedSide],
        *,
        seed: int,
    ) -> None:
        """Set up batches of at most ``batch_tokens`` padded positions on either side."""
        self._data = Seq2SeqData(encoded, view, batch_tokens=batch_tokens, seed=seed)
        self._streams = {side: encoded.stream(STREAMS[side]) for side in sides}
        super().__init__(self._data.batches, sides, seed)

    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""
        sentences = {
            side: [self.change(side, row, epoch, stream[row].tolist()) for row in rows.tolist()]
            for side, stream in self._streams.items()
        }
        ids, new_tokens = self.numbered(sentences)
        original_words, changed_words, parts = {}, {}, dict[str, Any]()
        for side in self._sides:
            before, after = self._around(side)
            if side == "encoder":
                parts["sources"] = [_surrounded(ids[side], before, after)]
            else:
                parts["target_output"] = _surrounded(ids[side], before[1:], after).ids
                # what the decoder predicts last is no input of its own
                after = after[:-1]
                parts["target_input"] = _surrounded(ids[side], before, after)
            numbers = _word_numbers(sentences[side], len(before), len(after))
            original_words[side], changed_words[side] = numbers
        original = self._data.batch(rows, 0)
        return ChangedBatch(original, replace(original, **parts), new_tokens, original_words, changed_words)

    def _around(self, side: str) -> tuple[Sequence[int], Sequence[int]]:
        """Return the ids before and behind a sentence, the first input of the decoder included."""
        view = self._data.view
        if side == "encoder":
            return view.sources[0].prefix, view.sources[0].suffix
        return (view.target_start, *view.target.prefix), view.target.suffix


class ChangedLines(ChangedData):
    """Masked lines for a masked language model.

    Words that contain a predicted token are not perturbed, so that they are masked identically in both
    segmentations. Some of the new tokens are masked in the perturbed line only; their words have no number
    there, which excludes them from L_d.

    Source: masking of new tokens from the authors' code.
    """

    def __init__(
        self,
        masker: Masker,
        batch_tokens: int,
        new_mask_rate: float,
        side: ChangedSide,
    ) -> None:
        """Set up batches of at most ``batch_tokens`` padded positions.

        ``new_mask_rate`` is the share of the new tokens that are masked and predicted.
        """
        self._masker = masker
        self._new_mask_rate = new_mask_rate
        super().__init__(masker.batches(batch_tokens, masker.seed), {SIDE: side}, masker.seed)

    def batch(self, rows: IntArray, epoch: int) -> ChangedBatch:
        """Make the batch of some rows."""
        numbers, masker = rows.tolist(), self._masker
        lines = [masker.line(row, epoch) for row in numbers]
        sentences = [
            self.change(SIDE, row, epoch, line.tokens, line.is_predicted)
            for row, line in zip(numbers, lines, strict=True)
        ]
        ids, new_tokens = self.numbered({SIDE: sentences})
        draws = [generator_for(self._seed, "new", epoch, row) for row in numbers]
        changed_lines, sentences = zip(*map(self._masked, lines, sentences, ids[SIDE], draws), strict=True)
        original_words, changed_words = _word_numbers(sentences, 1, 1)
        return ChangedBatch(
            masker.pack(lines),
            masker.pack(changed_lines),
            new_tokens,
            {SIDE: original_words},
            {SIDE: changed_words},
        )

    def _masked(
        self,
        line: MaskedLine,
        changed: Resegmented,
        ids: list[int],
        generator: np.random.Generator,
    ) -> tuple[MaskedLine, Resegmented]:
        """Mask some new tokens of a perturbed line, and reapply the line's own masks.

        Returns:
            The perturbed line, and the sentence without the numbers of words that it alone masks.
        """
        pieces = [*zip(changed.original_words, line.inputs, line.is_predicted, strict=True)]
        kept = {word for word, _, is_predicted in pieces if is_predicted}
        # kept words have the same tokens in both segmentations, so their masks are copied token by token
        waiting = iter([piece for piece in pieces if piece[0] in kept])
        size = len(self._sides[SIDE].vocabulary)
        inputs, predicted, masked_once = [], [], set()
        draws = generator.random(len(ids)).tolist()
        for identity, word, draw in zip(ids, changed.words, draws, strict=True):
            read, is_predicted = identity, False
            if word in kept:
                _, read, is_predicted = next(waiting)
            elif identity >= size and draw < self._new_mask_rate:
                read, is_predicted = self._masker.ids.mask, True
                masked_once.add(word)
            inputs.append(read)
            predicted.append(is_predicted)
        words = [NO_WORD if word in masked_once else word for word in changed.words]
        return MaskedLine(ids, inputs, predicted), replace(changed, words=words)


def _word_numbers(sentences: Sequence[Resegmented], num_before: int, num_after: int) -> tuple[Tensor, Tensor]:
    """Word number of every position of both segmentations, [B, longest]; none around words and in padding."""
    begin, end = [NO_WORD] * num_before, [NO_WORD] * num_after
    original = [sentence.original_words for sentence in sentences]
    changed = [sentence.words for sentence in sentences]
    return (
        _surrounded(original, begin, end, NO_WORD).ids,
        _surrounded(changed, begin, end, NO_WORD).ids,
    )


def _surrounded(
    lines: Sequence[Sequence[int]],
    before: Sequence[int],
    after: Sequence[int],
    pad_id: int = PAD,
) -> Tokens:
    return Tokens.from_lists([[*before, *line, *after] for line in lines], pad_id)


# Generators around a frozen model, and what they learn from.


class Reading(NamedTuple):
    """Outputs of a frozen model on a batch.

    Attributes:
        states: Last hidden states of each side, [B, S, D].
        logits: Of the predicted positions, [R, V + N].
        targets: Their true tokens, int64 [R].
        num_targets: Number of predicted positions of each sentence, int64 [B].
    """

    states: Mapping[str, Tensor]
    logits: Tensor
    targets: Tensor
    num_targets: Tensor


class FrozenModel(nn.Module, ABC):
    """A frozen pretrained model, with the interface that generator training needs.

    Attributes:
        tables: Names of the parameters with a row or an entry for each token, by table; the first is the
            table of input embeddings.
        sides: Name of the table that each perturbed side reads.
        max_tokens: Maximum length for which it has positions, without begin and end; None: unlimited.
        can_predict: False without a pretrained prediction head, for which L_p is undefined.
    """

    can_predict: bool = True
    tables: Mapping[str, Sequence[str]]
    sides: Mapping[str, str]
    max_tokens: int | None

    def table(self, name: str) -> Tensor:
        """The table of input embeddings, [V, D]."""
        return self.get_parameter(self.tables[name][0])

    @abstractmethod
    def states(self, batch: Any) -> Mapping[str, Tensor]:
        """Compute the last hidden states of each side, [B, T, D]."""

    @abstractmethod
    def forward(self, batch: Any) -> Reading:
        """Read and predict a batch."""


class FrozenSeq2Seq(FrozenModel):
    """An encoder-decoder of which one or both sides are perturbed."""

    def __init__(self, model: Seq2Seq, sides: Sequence[str]) -> None:
        super().__init__()
        self.model = model
        config = model.config
        # a table shared by both sides has one generator
        is_shared = config.tying == "all" and len(sides) > 1
        self.sides = {side: "decoder" if is_shared else side for side in sides}
        names = model.state_dict()
        self.tables = {
            table: [f"model.{name}" for name in EXCHANGED[table] if name in names]
            for table in self.sides.values()
        }
        is_limited = "learned" in (config.source_positions, config.target_positions)
        self.max_tokens = config.max_positions - 2 if is_limited else None

    def states(self, batch: Batch) -> Mapping[str, Tensor]:
        """Compute the states of decoder and, where it is changed, encoder, [B, T, D]."""
        states = {"decoder": self.model(batch)}
        if "encoder" in self.sides:
            states["encoder"] = self.model.encode(batch.sources, batch.contexts).bank[0].states
        return states

    def forward(self, batch: Batch) -> Reading:
        """Read sources and predict targets."""
        states, valid_BS = self.states(batch), batch.target_input.valid
        logits_RV = self.model.logits(states["decoder"][valid_BS])
        return Reading(states, logits_RV, batch.target_output[valid_BS], valid_BS.sum(1))


class FrozenMaskedLM(FrozenModel):
    """A masked language model, with one side and one table."""

    def __init__(self, model: MaskedLM) -> None:
        super().__init__()
        self.model = model
        self.sides = {SIDE: SIDE}
        # the table of input embeddings comes first
        names = sorted(
            model.vocabulary_tensors,
            key=lambda name: (model.get_parameter(name) is not model.input_table, name),
        )
        self.tables = {SIDE: [f"model.{name}" for name in names]}
        self.max_tokens, self.can_predict = model.max_tokens, model.can_predict

    def states(self, batch: MaskedBatch) -> Mapping[str, Tensor]:
        """Compute the states of the lines, [B, T, D]."""
        return {SIDE: self.model.states(batch.tokens)}

    def forward(self, batch: MaskedBatch) -> Reading:
        """Read lines and predict masked tokens."""
        states_BSD, logits_RV = self.model(batch)
        return Reading({SIDE: states_BSD}, logits_RV, batch.targets, batch.num_targets)


class GeneratorModel(nn.Module):
    """The generators of the tables around a frozen model.

    Only the generators are parameters of this module. The model is not registered as a submodule, so that it
    cannot be trained, switched to training mode or saved along with them.
    """

    def __init__(self, body: FrozenModel, kind: GeneratorKind) -> None:
        """Freeze the model in place, permanently in evaluation mode; each table gets a generator."""
        super().__init__()
        self.generators = nn.ModuleDict(
            {table: EmbeddingGenerator(kind, body.table(table).shape[1]) for table in body.tables}
        )
        self._body = (body,)
        body.eval().requires_grad_(False)

    @property
    def body(self) -> FrozenModel:
        """The frozen model."""
        return self._body[0]

    def forward(self, batch: ChangedBatch) -> Reading:
        """Run the student: the frozen model with the rows of the new tokens on the changed batch."""
        tensors = self._extended(batch.new_tokens)
        # tied names get one tensor below; a table that two modules share is replaced under one name
        return functional_call(self.body, tensors, (batch.changed,), tie_weights=False)

    @torch.no_grad()
    def teach(self, batch: ChangedBatch) -> Mapping[str, Tensor]:
        """Run the frozen model on the original batch: last hidden states of each side, [B, T, D]."""
        return self.body.states(batch.original)

    def _extended(self, new_tokens: Mapping[str, NewTokens]) -> dict[str, Tensor]:
        """Append generated rows to tables and outputs, and entries to biases: [E; G]."""
        tensors: dict[str, Tensor] = {}
        for table, new in new_tokens.items():
            generator = cast(EmbeddingGenerator, self.generators[table])
            weights_NW = generator.weights(self.body.table(table)[new.members], new.relations)
            made: dict[int, Tensor] = {}
            for name in self.body.tables[table]:
                old = self.body.get_parameter(name)
                if id(old) not in made:
                    generated = combine(weights_NW, old[new.members]).to(old.dtype)
                    made[id(old)] = torch.cat([old, generated])
                tensors[name] = made[id(old)]
        return tensors


@dataclass(frozen=True)
class GeneratorObjective:
    """L = L_p + lambda L_d (eq. 5).

    L_p is the pretraining loss over the extended vocabulary; a model without a pretrained prediction head has
    none. L_d of a sentence is weighted by its number of predicted tokens, since the training loop divides the
    sum by the tokens of the whole batch: the result is the same however the rows are distributed over
    workers.

    Attributes:
        distillation_lambda: Weight of L_d; with 0 the teacher is not run.
        smoothing: Label smoothing of L_p.
        kind: Kind of label smoothing.
    """

    distillation_lambda: float
    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"

    def __call__(self, model: Any, batch: ChangedBatch) -> Loss:
        """Compute the summed loss of a batch, with its two parts."""
        reading: Reading = model(batch)
        terms: dict[str, Tensor] = {}
        if model.body.can_predict:
            terms["pretraining"] = smoothed_cross_entropy(
                reading.logits, reading.targets, self.smoothing, self.kind
            )
        if self.distillation_lambda:
            distillation_B = self.distillation(model, batch, reading)
            terms["distillation"] = self.distillation_lambda * (distillation_B * reading.num_targets).sum()
        return Loss(torch.stack([*terms.values()]).sum(), len(reading.targets), terms)

    def distillation(
        self,
        model: Any,
        batch: ChangedBatch,
        reading: Reading,
    ) -> Tensor:
        """Compute L_d of each sentence, without lambda, summed over the perturbed sides: [B]."""
        taught = model.teach(batch)
        losses = []
        for side, original_words in batch.original_words.items():
            teacher, student = taught[side].float(), reading.states[side].float()
            losses.append(distillation_loss(teacher, original_words, student, batch.changed_words[side]))
        return torch.stack(losses).sum(0)


def word_means(
    states_BTD: Tensor,
    words_BT: Tensor,
    num_words: int,
) -> tuple[Tensor, Tensor]:
    """Average the states of each word's tokens: [B, W, D], zero where a sentence has no such word; see which.

    Returns:
        The means, and True where there is such a word, bool [B, W].
    """
    batch, _, width = states_BTD.shape
    # positions outside any word are collected in an extra last slot, which is dropped
    index_BT = torch.where(words_BT == NO_WORD, num_words, words_BT)
    sums = states_BTD.new_zeros(batch, num_words + 1, width)
    sums = sums.scatter_add(1, index_BT[..., None].expand(-1, -1, width), states_BTD)
    counts = states_BTD.new_zeros(batch, num_words + 1)
    counts = counts.scatter_add(1, index_BT, torch.ones_like(words_BT, dtype=states_BTD.dtype))
    means = sums / counts.clamp(min=1)[..., None]
    return means[:, :num_words], counts[:, :num_words] > 0


def distillation_loss(
    teacher_BTD: Tensor,
    teacher_words_BT: Tensor,
    student_BSD: Tensor,
    student_words_BS: Tensor,
) -> Tensor:
    """Compute L_d of every sentence: the mean over its words of the squared distance of word states.

    The hidden states of a word should not depend on its segmentation.

    Args:
        teacher_BTD: Last hidden states of the frozen model on the original segmentation.
        teacher_words_BT: Word number of each of its positions.
        student_BSD: Last hidden states with generated embeddings on the changed segmentation.
        student_words_BS: Word number of each of its positions. Words that it lacks are not compared, such as
            those that are masked in only one of the two, whose states would differ whatever the embeddings.

    Returns:
        L_d [B]; 0 for a sentence without words.

    Source: Liu et al. (2021), eq. 4.
    """
    num_words = int(torch.maximum(teacher_words_BT.max(), student_words_BS.max())) + 1
    if num_words == 0:
        return student_BSD.new_zeros(student_BSD.shape[0])
    teacher_BWD, _ = word_means(teacher_BTD, teacher_words_BT, num_words)
    student_BWD, present_BW = word_means(student_BSD, student_words_BS, num_words)
    distance_BW = (teacher_BWD - student_BWD).square().sum(2)
    return (distance_BW * present_BW).sum(1) / present_BW.sum(1).clamp(min=1)
