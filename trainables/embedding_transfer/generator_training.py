"""Training of ATT-EG and PATT-EG inside a frozen translation model.

Shape letters: B sentences, T and S positions of the original and the changed sequence, D width, N new tokens
of a batch, W similar tokens, V old vocabulary, R real target positions.
Source: Liu et al. (2021), section 3.3.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from nlgraft.nn.batch import Batch
from nlgraft.nn.model import Seq2Seq
from nlgraft.stages.run.new_rows import TABLES
from nlgraft.training.losses import Loss, SmoothingKind, freeze_module, smoothed_cross_entropy
from trainables.embedding_transfer.distillation import Reduction, distillation_loss
from trainables.embedding_transfer.generators import EmbeddingGenerator, extended
from trainables.embedding_transfer.new_tokens import NewTokens


@dataclass(frozen=True)
class PerturbedBatch:
    """A batch twice: as it is, and in another segmentation with tokens the vocabulary lacks.

    Attributes:
        original: The batch for the teacher.
        perturbed: The batch for the student; new token n of a side has id V + n.
        new_tokens: The new tokens of each table that is transferred, by ``encoder`` or ``decoder``; a table
            that both sides share is the decoder's.
        original_words: Word number of each position, int64 [B, T], of each side that was changed.
        perturbed_words: Likewise of the changed sequence, int64 [B, S].
    """

    original: Batch
    perturbed: Batch
    new_tokens: Mapping[str, NewTokens]
    original_words: Mapping[str, Tensor]
    perturbed_words: Mapping[str, Tensor]

    def to(self, device: torch.device | str) -> PerturbedBatch:
        """Move to a device."""
        return PerturbedBatch(
            self.original.to(device),
            self.perturbed.to(device),
            {side: tokens.to(device) for side, tokens in self.new_tokens.items()},
            {side: words.to(device) for side, words in self.original_words.items()},
            {side: words.to(device) for side, words in self.perturbed_words.items()},
        )


class GeneratorModel(nn.Module):
    """The generators of the transferred sides around a frozen model.

    Only the generators are parameters of this module: the model is not registered, so nothing can train it,
    put it into training mode, or store it once more.
    """

    def __init__(
        self,
        body: Seq2Seq,
        generators: Mapping[str, EmbeddingGenerator],
        reader: Callable[[Seq2Seq], StateReader] | None = None,
    ) -> None:
        """Freeze the model.

        Args:
            body: The pretrained model; frozen in place, in evaluation mode for good.
            generators: One generator for each transferred table, ``encoder`` or ``decoder``.
            reader: Reads the states of the model; the decoder's, and the encoder's when asked, unless given.
        """
        super().__init__()
        self.generators = nn.ModuleDict(dict(generators))
        self._body = ((reader or StateReader)(cast(Seq2Seq, freeze_module(body))),)

    @property
    def body(self) -> Seq2Seq:
        """The frozen model."""
        return self._body[0].model

    def table(self, side: str) -> Tensor:
        """The frozen embedding table of a side, [V, D]."""
        return self.body.get_parameter(TABLES[side])

    def forward(self, batch: PerturbedBatch) -> tuple[dict[str, Tensor], Tensor, Tensor]:
        """Run the student.

        Args:
            batch: What to read and say.

        Returns:
            Last hidden states [B, S, D] by ``decoder``, and ``encoder`` where sources were changed; logits
            [R, V + N] at real target positions; their true tokens [R].
        """
        extended, output_weight, output_bias = self._extended(batch)
        arguments = (batch.perturbed, "encoder" in batch.original_words)
        # a table that two modules share is exchanged under one name; the output weight is given below
        states = functional_call(self._body[0], extended, arguments, tie_weights=False)
        valid = batch.perturbed.target_input.valid
        said_RD = self._body[0].predicting(states["decoder"][valid])
        logits = F.linear(said_RD, output_weight, output_bias)
        return states, logits, batch.perturbed.target_output[valid]

    @torch.no_grad()
    def teach(self, batch: PerturbedBatch) -> dict[str, Tensor]:
        """Run the frozen model on the original segmentation.

        Args:
            batch: What to read and say.

        Returns:
            Last hidden states by side, [B, T, D].
        """
        return self._body[0](batch.original, "encoder" in batch.original_words)

    def _extended(self, batch: PerturbedBatch) -> tuple[dict[str, Tensor], Tensor, Tensor | None]:
        """Append generated rows to the tables: [E; G] of every side, output rows and bias likewise."""
        body = self.body
        tables: dict[str, Tensor] = {}
        output_weight, output_bias = body.output_projection.weight, body.output_projection.bias
        for side, new in batch.new_tokens.items():
            generator = cast(EmbeddingGenerator, self.generators[side])
            table_VD = self.table(side)
            weights_NW = generator.weights(table_VD[new.members], new.relations)
            tables[f"model.{TABLES[side]}"] = extended(table_VD, weights_NW, new.members)
            if side != "decoder":
                continue
            # an output table with rows of its own is given the same weights
            if body.config.tying == "none":
                output_weight = extended(output_weight, weights_NW, new.members)
            else:
                output_weight = tables[f"model.{TABLES[side]}"]
            if output_bias is not None:
                output_bias = extended(output_bias, weights_NW, new.members)
        return tables, output_weight, output_bias


class StateReader(nn.Module):
    """A model that gives the last states of its decoder, and of its encoder when asked."""

    def __init__(self, model: Seq2Seq) -> None:
        """Take the model.

        Args:
            model: Any.
        """
        super().__init__()
        self.model = model

    def forward(self, batch: Batch, has_encoder_states: bool) -> dict[str, Tensor]:
        """Run the model.

        Args:
            batch: What to read and say.
            has_encoder_states: Whether the encoder's states are given, too.

        Returns:
            Last states [B, T, D] by side.
        """
        states = {"decoder": self.model(batch)}
        if has_encoder_states:
            states["encoder"] = self.model.encode(batch.sources, batch.contexts).bank[0].states
        return states

    def predicting(self, states: Tensor) -> Tensor:
        """What the output table reads of some states [..., D]: here the states themselves."""
        return states


@dataclass(frozen=True)
class GeneratorObjective:
    """L = L_p + lambda L_d (eq. 5).

    L_p is the pretraining loss over the extended vocabulary. L_d is summed over sentences, each as often as
    it has target tokens, so that the loop's division by tokens leaves a mean over sentences whatever rows a
    worker has.

    Attributes:
        distillation_lambda: Weight of L_d; 0 runs no teacher.
        reduction: How squared distances are added up over D.
        align: Whether a word's decoder states are those after reading its tokens or those that say them.
        smoothing: Label smoothing of L_p.
        kind: Its kind.
        has_prediction: Whether there is an L_p: a model that never learned to predict has none.
    """

    distillation_lambda: float
    reduction: Reduction = "sum_dim"
    align: str = "input"
    smoothing: float = 0.1
    kind: SmoothingKind = "uniform_all"
    has_prediction: bool = True

    def __call__(self, model: Any, batch: PerturbedBatch) -> Loss:
        """Compute the summed loss of a batch, with its two parts."""
        states, logits_RV, target_R = model(batch)
        pretraining = smoothed_cross_entropy(logits_RV, target_R, self.smoothing, self.kind)
        num_tokens = len(target_R)
        if not self.distillation_lambda:
            return Loss(pretraining, num_tokens, {"pretraining": pretraining})
        distillation_B = self.distillation(model, batch, states)
        tokens_B = batch.perturbed.target_input.valid.sum(1)
        distillation = self.distillation_lambda * (distillation_B * tokens_B).sum()
        if not self.has_prediction:
            return Loss(distillation, num_tokens, {"distillation": distillation})
        terms = {"pretraining": pretraining, "distillation": distillation}
        return Loss(pretraining + distillation, num_tokens, terms)

    def distillation(self, model: Any, batch: PerturbedBatch, states: Mapping[str, Tensor]) -> Tensor:
        """Compute L_d of every sentence, added up over the transferred sides.

        Args:
            model: The generators around the frozen model.
            batch: Both segmentations.
            states: The student's last states.

        Returns:
            L_d [B], without lambda.
        """
        taught = model.teach(batch)
        total_B = next(iter(states.values())).new_zeros(len(batch.original.target_output))
        for side in batch.original_words:
            teacher_words, student_words = batch.original_words[side], batch.perturbed_words[side]
            if side == "decoder" and self.align == "target":
                teacher_words, student_words = _said_at(teacher_words), _said_at(student_words)
            total_B = total_B + distillation_loss(
                taught[side].float(),
                teacher_words,
                states[side].float(),
                student_words,
                reduction=self.reduction,
            )
        return total_B


def _said_at(words_BT: Tensor) -> Tensor:
    """Move word numbers from the positions that read a token to those that say it, one earlier."""
    return torch.cat([words_BT[:, 1:], words_BT.new_full((len(words_BT), 1), -1)], 1)
