"""The embedding generators ATT-EG and PATT-EG, and their training inside a frozen model.

AVG-EG, which has no parameters, is method ``avg`` of the platform. The model is an encoder-decoder or a
masked language model.

Shape letters: B sentences, T and S positions of the original and the changed sequence, D width, N new tokens
of a batch, W similar tokens, V old vocabulary, R predicted positions.
Source: Liu et al. (2021), sections 3.2 and 3.3. Deviation: weights sum to one. Equations 2 and 3 print a
further factor 1/|S_m|, which is absent from the authors' code and would shrink every generated row.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.func import functional_call

from nlgraft.nn.batch import Batch, Movable, Tokens
from nlgraft.nn.masked_lm_models import MaskedBatch, MaskedLM
from nlgraft.nn.model import Seq2Seq
from nlgraft.stages.run.exchange_stages import TABLES
from nlgraft.stages.stage_kind import SIDE
from nlgraft.training.losses import Loss, smoothed_cross_entropy
from nlgraft.training.train_config import SmoothingKind
from nlgraft.vocab.methods.interface import Method, Request, Rows
from nlgraft.vocab.methods.registry import weighted_rows
from nlgraft.vocab.methods.similar import NUM_RELATIONS, Relation, Similar

Kind = Literal["att", "patt"]

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

    def __init__(self, kind: Kind, d_model: int) -> None:
        """Build a generator of width D: att (eq. 2) or patt (eq. 3)."""
        super().__init__()
        self.kind = kind
        self.weight = nn.Parameter(torch.zeros((d_model,) if kind == "att" else (NUM_RELATIONS, d_model)))

    def weights(self, rows_NWD: Tensor, relations_NW: Tensor) -> Tensor:
        """Weigh the similar tokens.

        Args:
            rows_NWD: Old rows of the similar tokens; the contents of padded slots are ignored.
            relations_NW: ``Relation`` of each slot, PAD where there is no token.

        Returns:
            Weights [N, W], zero in padded slots; they sum to one wherever there is a similar token.
        """
        valid_NW = relations_NW != int(Relation.PAD)
        if self.kind == "att":
            scores_NW = rows_NWD @ self.weight
        else:
            # one product with the vectors of all relations, then select that of each slot
            all_NWR = rows_NWD @ self.weight.T
            scores_NW = all_NWR.gather(2, relations_NW.clamp(max=NUM_RELATIONS - 1)[..., None])[..., 0]
        scores_NW = scores_NW.masked_fill(~valid_NW, float("-inf"))
        # a token without similar tokens has no softmax: its weights are zero, not NaN
        scores_NW = scores_NW.masked_fill(~valid_NW.any(1, keepdim=True), 0.0)
        return scores_NW.softmax(1) * valid_NW


def combine(weights_NW: Tensor, rows_NWD: Tensor) -> Tensor:
    """Sum rows by weight, [N, D]. Slots of weight zero must be finite, since 0 x inf is NaN."""
    return torch.einsum("nw,nwd->nd", weights_NW, rows_NWD)


def extended(table: Tensor, weights_NW: Tensor, members_NW: Tensor) -> Tensor:
    """Append generated rows to a table, or generated entries to a bias: [E ; G].

    Args:
        table: Old rows [V, D], or old entries [V].
        weights_NW: Weights of the similar tokens, zero in padded slots.
        members_NW: Their ids.

    Returns:
        [V + N, D], or [V + N].
    """
    is_bias = table.ndim == 1
    rows_VD = table[:, None] if is_bias else table
    generated_ND = combine(weights_NW, rows_VD[members_NW]).to(table.dtype)
    return torch.cat([table, generated_ND[:, 0] if is_bias else generated_ND])


def padded(similar: Sequence[Similar]) -> tuple[Tensor, Tensor]:
    """Lay S_m of N tokens out as a rectangle: members, and relations padded with ``Relation.PAD``, [N, W]."""
    members = Tokens.from_lists([[member for member, _ in row] for row in similar])
    relations = Tokens.from_lists([[int(relation) for _, relation in row] for row in similar], Relation.PAD)
    return members.ids, relations.ids


@torch.no_grad()
def generator_method(name: str, generator: EmbeddingGenerator, table_VD: Tensor) -> Method:
    """Wrap a trained generator as a method of transfer plans; its weights depend on the rows of the table."""

    def produce(request: Request) -> Rows:
        similar = request.similar()
        weights: list[dict[int, float]] = []
        for start in range(0, len(similar), CHUNK_TOKENS):
            chunk = similar[start : start + CHUNK_TOKENS]
            members_NW, relations_NW = padded(chunk)
            weights_NW = generator.weights(table_VD[members_NW].float(), relations_NW).tolist()
            for members, row in zip(chunk, weights_NW, strict=True):
                weights.append({member: weight for (member, _), weight in zip(members, row, strict=False)})
        return weighted_rows(similar, weights)

    return Method(name=name, produce=produce, source="Liu et al. (2021), eq. 2 and 3")


@dataclass(frozen=True)
class NewTokens(Movable):
    """Out-of-vocabulary tokens of a batch, with their similar tokens.

    Attributes:
        members: Ids of similar tokens, int64 [N, W].
        relations: ``Relation`` of each slot, int64 [N, W].
    """

    members: Tensor
    relations: Tensor


@dataclass(frozen=True)
class ChangedBatch(Movable):
    """A batch in two segmentations: the original one, and one that contains out-of-vocabulary tokens.

    Attributes:
        original: Input of the teacher.
        changed: Input of the student; new token n of a table has id V + n.
        new_tokens: The new tokens of each table.
        original_words: Word number of each position, int64 [B, T], of each side that was changed.
        changed_words: Likewise of the changed sequence, int64 [B, S].
        compared: Words that are masked identically in both, bool [B, W], by side; on a side without an entry
            all words are compared.
    """

    original: Batch | MaskedBatch
    changed: Batch | MaskedBatch
    new_tokens: Mapping[str, NewTokens]
    original_words: Mapping[str, Tensor]
    changed_words: Mapping[str, Tensor]
    compared: Mapping[str, Tensor] = field(default_factory=dict)


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
        # a table shared by both sides has one generator
        is_shared = model.config.tying == "all" and len(sides) > 1
        self.sides = {side: "decoder" if is_shared else side for side in sides}
        names = dict(model.named_parameters(remove_duplicate=False))
        self.tables = {
            table: [f"model.{name}" for name in EXCHANGED[table] if name in names]
            for table in self.sides.values()
        }
        config = model.config
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
        names = dict(self.named_parameters(remove_duplicate=False))
        tensors = sorted(f"model.{name}" for name in model.vocabulary_tensors)
        # the table of input embeddings comes first
        self.tables = {SIDE: sorted(tensors, key=lambda name: names[name] is not model.input_table)}
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

    def __init__(self, body: FrozenModel, generators: Mapping[str, EmbeddingGenerator]) -> None:
        """Freeze the model in place, permanently in evaluation mode; each table needs a generator."""
        super().__init__()
        self.generators = nn.ModuleDict(dict(generators))
        self._body = (cast(FrozenModel, body.eval().requires_grad_(False)),)

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
                    made[id(old)] = extended(old, weights_NW, new.members)
                tensors[name] = made[id(old)]
        return tensors


@dataclass(frozen=True)
class GeneratorObjective:
    """L = L_p + lambda L_d (eq. 5).

    L_p is the pretraining loss over the extended vocabulary. L_d of a sentence is weighted by its number of
    predicted tokens, since the training loop divides the sum by the tokens of the whole batch: the result is
    the same however the rows are distributed over workers.

    Attributes:
        distillation_lambda: Weight of L_d; with 0 the teacher is not run.
        smoothing: Label smoothing of L_p.
        kind: Kind of label smoothing.
        has_prediction: False for a model without a pretrained prediction head, for which L_p is undefined.
    """

    distillation_lambda: float
    smoothing: float = 0.0
    kind: SmoothingKind = "uniform_all"
    has_prediction: bool = True

    def __call__(self, model: Any, batch: ChangedBatch) -> Loss:
        """Compute the summed loss of a batch, with its two parts."""
        reading: Reading = model(batch)
        terms: dict[str, Tensor] = {}
        if self.has_prediction:
            terms["pretraining"] = smoothed_cross_entropy(
                reading.logits, reading.targets, self.smoothing, self.kind
            )
        if self.distillation_lambda:
            distillation_B = self.distillation(model, batch, reading)
            terms["distillation"] = self.distillation_lambda * (distillation_B * reading.num_targets).sum()
        return Loss(torch.stack([*terms.values()]).sum(), len(reading.targets), terms)

    def distillation(self, model: Any, batch: ChangedBatch, reading: Reading) -> Tensor:
        """Compute L_d of each sentence, without lambda, summed over the perturbed sides: [B]."""
        taught = model.teach(batch)
        total_B = torch.zeros_like(reading.num_targets, dtype=torch.float32)
        for side in batch.original_words:
            total_B = total_B + distillation_loss(
                taught[side].float(),
                batch.original_words[side],
                reading.states[side].float(),
                batch.changed_words[side],
                compared_BW=batch.compared.get(side),
            )
        return total_B


# Distillation loss: the hidden states of a word should not depend on its segmentation.
#
# Shape letters: B sentences, T and S positions of the teacher's and the student's sequence, D width, W words.
# Source: Liu et al. (2021), eq. 4.


NO_WORD = -1
"""Word number of positions that belong to no word: begin and end of sentence, padding."""


def word_means(states_BTD: Tensor, words_BT: Tensor, num_words: int) -> Tensor:
    """Average the states of each word's tokens: [B, W, D], zero where a sentence has no such word."""
    batch, _, width = states_BTD.shape
    # positions outside any word are collected in an extra last slot, which is dropped
    index_BT = torch.where(words_BT == NO_WORD, num_words, words_BT)
    sums = states_BTD.new_zeros(batch, num_words + 1, width)
    sums = sums.scatter_add(1, index_BT[..., None].expand(-1, -1, width), states_BTD)
    counts = states_BTD.new_zeros(batch, num_words + 1)
    counts = counts.scatter_add(1, index_BT, torch.ones_like(words_BT, dtype=states_BTD.dtype))
    return (sums / counts.clamp(min=1)[..., None])[:, :num_words]


def distillation_loss(
    teacher_BTD: Tensor,
    teacher_words_BT: Tensor,
    student_BSD: Tensor,
    student_words_BS: Tensor,
    *,
    compared_BW: Tensor | None = None,
) -> Tensor:
    """Compute L_d of every sentence: the mean over its words of the squared distance of word states.

    Args:
        teacher_BTD: Last hidden states of the frozen model on the original segmentation.
        teacher_words_BT: Word number of each of its positions.
        student_BSD: Last hidden states with generated embeddings on the changed segmentation.
        student_words_BS: Word number of each of its positions; the same words as the teacher's.
        compared_BW: Words to compare, bool [B, W]; None for all words of a sentence. Excluded are words that
            are masked in only one of the two sequences, whose states would differ whatever the embeddings.

    Returns:
        L_d [B]; 0 for a sentence without words.
    """
    num_words = int(torch.maximum(teacher_words_BT.max(), student_words_BS.max())) + 1
    if num_words == 0:
        return student_BSD.new_zeros(student_BSD.shape[0])
    difference_BWD = word_means(teacher_BTD.to(student_BSD.dtype), teacher_words_BT, num_words) - word_means(
        student_BSD, student_words_BS, num_words
    )
    distance_BW = difference_BWD.square().sum(2)
    present_BW = torch.arange(num_words, device=student_BSD.device) <= student_words_BS.max(1).values[:, None]
    if compared_BW is not None:
        present_BW = present_BW & compared_BW
    return (distance_BW * present_BW).sum(1) / present_BW.sum(1).clamp(min=1)
