"""Objectives with which the study's own language models are pretrained, built on models of transformers.

All of them receive the same batches of masked lines, from which the original tokens can be restored.

Shape letters: B lines, T positions with begin and end, V vocabulary, M masked positions.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
import transformers
from torch import Tensor, nn

from nlgraft.nn.masked_lm_models import NOT_PREDICTED, MaskedBatch, TransformersMaskedLM, fresh_bert
from nlgraft.nn.model_config import BertConfig
from nlgraft.nn.modes import seeded
from nlgraft.training.losses import Loss, TokenObjective
from nlgraft.training.masked_lm_training import predict_masked
from trainables.prlm_fusion.config import BertPrlm, DistilbertPrlm, ElectraPrlm, GptPrlm, PretrainedPrlm


def true_ids(batch: MaskedBatch) -> Tensor:
    """Restore the original tokens of masked lines, [B, T]."""
    return torch.where(batch.labels == NOT_PREDICTED, batch.tokens.ids, batch.labels)


class Pretraining(nn.Module, ABC):
    """A language model with its objective.

    Losses are sums over positions, so that the sum over the workers' shares of a batch is that of the batch.
    """

    @property
    @abstractmethod
    def result(self) -> Any:
        """The transformers model that is saved."""

    @abstractmethod
    def forward(self, batch: MaskedBatch) -> Loss:
        """Compute the summed loss of a batch, and the number of predictions over which it is a mean."""


class MaskedTokens(Pretraining):
    """Masked language model (Devlin et al. 2019, section 3.1)."""

    def __init__(self, model: TransformersMaskedLM) -> None:
        super().__init__()
        self.model = model

    @property
    def result(self) -> Any:
        """The model with its prediction head."""
        return self.model.model

    def forward(self, batch: MaskedBatch) -> Loss:
        """Compute the cross-entropy of the masked tokens."""
        return TokenObjective(predict_masked)(self.model, batch)


class NextTokens(Pretraining):
    """Left-to-right language model (Radford et al. 2019); the end is predicted like any other token."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model: Any = model

    @property
    def result(self) -> Any:
        """The model with its prediction head."""
        return self.model

    def forward(self, batch: MaskedBatch) -> Loss:
        """Compute the cross-entropy of every token but the first."""
        ids_BT, valid_BT = true_ids(batch), batch.tokens.valid
        logits_BTV = self.model(input_ids=ids_BT, attention_mask=valid_BT.long()).logits
        is_next = valid_BT[:, 1:]
        logits_PV = logits_BTV[:, :-1][is_next]
        loss = F.cross_entropy(logits_PV, ids_BT[:, 1:][is_next], reduction="sum")
        return Loss(loss, int(is_next.sum()))


class ReplacedTokens(Pretraining):
    """Discriminator of replaced tokens and the generator that proposes them (Clark et al. 2020, section 2).

    Generator and discriminator share their embeddings. ``masked_share`` is the share of masked positions: it
    scales the discriminator's sum over all positions to the generator's sum over masked ones.
    """

    def __init__(
        self,
        generator: TransformersMaskedLM,
        discriminator: nn.Module,
        weight: float,
        masked_share: float,
    ) -> None:
        super().__init__()
        self.generator, self.weight = generator, weight * masked_share
        self.discriminator: Any = discriminator
        # Better than separate tables (Clark et al. 2020, section 3.2).
        generator.model.electra.embeddings = self.discriminator.electra.embeddings
        generator.model.generator_lm_head.weight = generator.model.get_input_embeddings().weight

    @property
    def result(self) -> Any:
        """The discriminator."""
        return self.discriminator

    def forward(self, batch: MaskedBatch) -> Loss:
        """Sum L_MLM over masked positions and weight x L_Disc over all, scaled by the masked share."""
        _, logits_MV = self.generator(batch)
        targets_M, truth_BT, valid_BT = batch.targets, true_ids(batch), batch.tokens.valid
        masked = F.cross_entropy(logits_MV, targets_M, reduction="sum")
        # No gradient passes through the samples: the generator learns from its own loss alone.
        read_BT = self.corrupted(batch, logits_MV.detach())
        found_BT = self.discriminator(input_ids=read_BT, attention_mask=valid_BT.long()).logits
        is_replaced = (read_BT != truth_BT)[valid_BT].to(found_BT.dtype)
        discriminated = F.binary_cross_entropy_with_logits(found_BT[valid_BT], is_replaced, reduction="sum")
        return Loss(masked + self.weight * discriminated, len(targets_M))

    def corrupted(self, batch: MaskedBatch, logits_MV: Tensor) -> Tensor:
        """Replace the masked positions of the original tokens by samples of the generator, [B, T]."""
        read_BT = true_ids(batch)
        drawn_M1 = torch.multinomial(logits_MV.float().softmax(-1), 1)
        read_BT[batch.labels != NOT_PREDICTED] = drawn_M1[:, 0]
        return read_BT


class Distillation(Pretraining):
    """Student of a frozen masked language model (Sanh et al. 2019, section 3 and released code).

    ``masked_share`` is the share of masked positions: it scales the cosine distance, a sum over all
    positions, to the sums over masked ones.
    """

    def __init__(
        self,
        student: TransformersMaskedLM,
        teacher: TransformersMaskedLM,
        config: DistilbertPrlm,
        masked_share: float,
    ) -> None:
        super().__init__()
        self.student, self.config = student, config
        self.teacher = teacher.requires_grad_(False).eval()
        self.cosine_weight = config.cosine_weight * masked_share

    @property
    def result(self) -> Any:
        """The student with its prediction head."""
        return self.student.model

    def train(self, mode: bool = True) -> Distillation:
        """Set the mode of the student; the teacher remains in evaluation mode."""
        super().train(mode)
        self.teacher.eval()
        return self

    def forward(self, batch: MaskedBatch) -> Loss:
        """Sum soft and hard cross-entropy over masked tokens, and the cosine distance over all, scaled."""
        config, targets_M = self.config, batch.targets
        states_BTD, logits_MV = self.student(batch)
        with torch.no_grad():
            their_states_BTD, their_logits_MV = self.teacher(batch)
        heat = config.temperature
        soft = F.kl_div(
            (logits_MV / heat).log_softmax(-1), (their_logits_MV / heat).softmax(-1), reduction="sum"
        )
        hard = F.cross_entropy(logits_MV, targets_M, reduction="sum")
        cosine_BT = F.cosine_similarity(states_BTD, their_states_BTD, dim=-1)
        far = (1 - cosine_BT[batch.tokens.valid]).sum()
        # Softened gradients shrink with the square of the temperature (Hinton et al. 2015, section 2).
        loss = config.soft_weight * heat**2 * soft + config.hard_weight * hard + self.cosine_weight * far
        return Loss(loss, len(targets_M))


def initializer_range(d_model: int) -> float:
    """Standard deviation of initial weights: BERT's 0.02 at its width of 768, larger for narrower models.

    A layer then changes its input equally at every width. With 0.02, layers of width 64 start close to the
    identity and learn late (README.md, deviations).
    """
    return 0.02 * math.sqrt(768 / d_model)


def build(
    prlm: PretrainedPrlm,
    vocab_size: int,
    *,
    pad_id: int,
    max_tokens: int,
    seed: int,
    teacher: Path | None,
    masked_share: float,
) -> Pretraining:
    """Build a language model, randomly initialised or from layers of its teacher, with its objective."""
    if isinstance(prlm, BertPrlm):
        return MaskedTokens(
            fresh_bert(
                prlm.model,
                vocab_size,
                pad_id=pad_id,
                max_tokens=max_tokens,
                seed=seed,
                initializer_range=initializer_range(prlm.model.d_model),
            )
        )
    common: dict[str, Any] = {"vocab_size": vocab_size, "pad_token_id": pad_id}
    with seeded(seed):
        if isinstance(prlm, GptPrlm):
            return NextTokens(_gpt(prlm.model, max_tokens, common))
        if isinstance(prlm, ElectraPrlm):
            return _electra(prlm, max_tokens, common, masked_share)
        assert teacher is not None
        return _distilbert(prlm, teacher, common, masked_share)


def _gpt(
    sizes: BertConfig,
    max_tokens: int,
    common: dict[str, Any],
) -> nn.Module:
    return transformers.GPT2LMHeadModel(
        transformers.GPT2Config(
            n_embd=sizes.d_model,
            n_layer=sizes.num_layers,
            n_head=sizes.num_heads,
            n_inner=sizes.ffn_dim,
            n_positions=max_tokens + 2,
            resid_pdrop=sizes.dropout,
            embd_pdrop=sizes.dropout,
            attn_pdrop=sizes.dropout,
            bos_token_id=None,  # begin and end are in the text
            eos_token_id=None,
            initializer_range=initializer_range(sizes.d_model),
            **common,
        )
    )


def _electra(
    prlm: ElectraPrlm,
    max_tokens: int,
    common: dict[str, Any],
    masked_share: float,
) -> ReplacedTokens:
    sizes = prlm.model

    def config(part: int) -> transformers.ElectraConfig:
        return transformers.ElectraConfig(
            embedding_size=sizes.d_model,
            hidden_size=sizes.d_model // part,
            num_hidden_layers=sizes.num_layers,
            num_attention_heads=max(1, sizes.num_heads // part),
            intermediate_size=max(1, sizes.ffn_dim // part),
            hidden_dropout_prob=sizes.dropout,
            attention_probs_dropout_prob=sizes.dropout,
            max_position_embeddings=max_tokens + 2,
            initializer_range=initializer_range(sizes.d_model),
            **common,
        )

    generator = TransformersMaskedLM(transformers.ElectraForMaskedLM(config(2)))
    discriminator = transformers.ElectraForPreTraining(config(1))
    return ReplacedTokens(generator, discriminator, prlm.discriminator_weight, masked_share)


_STUDENT_NAMES = {
    "attention.self.query": "attention.q_lin",
    "attention.self.key": "attention.k_lin",
    "attention.self.value": "attention.v_lin",
    "attention.output.dense": "attention.out_lin",
    "attention.output.LayerNorm": "sa_layer_norm",
    "intermediate.dense": "ffn.lin1",
    "output.dense": "ffn.lin2",
    "output.LayerNorm": "output_layer_norm",
}
"""Parts of a layer of BERT, and their names in DistilBERT."""


def _distilbert(
    prlm: DistilbertPrlm,
    directory: Path,
    common: dict[str, Any],
    masked_share: float,
) -> Distillation:
    teacher = transformers.BertForMaskedLM.from_pretrained(directory, dtype=torch.float32)
    teacher_config = teacher.config
    student = transformers.DistilBertForMaskedLM(
        transformers.DistilBertConfig(
            dim=teacher_config.hidden_size,
            n_layers=prlm.num_layers,
            n_heads=teacher_config.num_attention_heads,
            hidden_dim=teacher_config.intermediate_size,
            dropout=teacher_config.hidden_dropout_prob,
            attention_dropout=teacher_config.attention_probs_dropout_prob,
            max_position_embeddings=teacher_config.max_position_embeddings,
            # Read when the random-weights control is drawn.
            initializer_range=teacher_config.initializer_range,
            **common,
        )
    )
    student.load_state_dict(_begun_with(teacher, prlm.num_layers), strict=False)
    return Distillation(TransformersMaskedLM(student), TransformersMaskedLM(teacher), prlm, masked_share)


def _begun_with(teacher: Any, num_layers: int) -> dict[str, Tensor]:
    """Select a teacher's tables, head and evenly spaced layers, under DistilBERT's names."""
    state, depth = teacher.state_dict(), teacher.config.num_hidden_layers
    embeddings, head = "bert.embeddings", "cls.predictions"
    begun = {"distilbert.embeddings.word_embeddings.weight": state[f"{embeddings}.word_embeddings.weight"]}
    # DistilBERT has no segment embeddings: BERT's first one is folded into the positions
    begun["distilbert.embeddings.position_embeddings.weight"] = (
        state[f"{embeddings}.position_embeddings.weight"]
        + state[f"{embeddings}.token_type_embeddings.weight"][0]
    )
    begun["vocab_projector.bias"] = state[f"{head}.bias"]
    for kind in ("weight", "bias"):
        begun[f"distilbert.embeddings.LayerNorm.{kind}"] = state[f"{embeddings}.LayerNorm.{kind}"]
        begun[f"vocab_transform.{kind}"] = state[f"{head}.transform.dense.{kind}"]
        begun[f"vocab_layer_norm.{kind}"] = state[f"{head}.transform.LayerNorm.{kind}"]
        for index in range(num_layers):
            source = index * depth // num_layers
            for teacher_name, student_name in _STUDENT_NAMES.items():
                begun[f"distilbert.transformer.layer.{index}.{student_name}.{kind}"] = state[
                    f"bert.encoder.layer.{source}.{teacher_name}.{kind}"
                ]
    return begun
