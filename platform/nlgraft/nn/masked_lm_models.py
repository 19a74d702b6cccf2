"""Masked language models, our own and those of transformers, and classifiers with their bodies.

transformers is imported only when one of its models is built.

Shape letters: B lines, T positions of a line with begin and end, D model width, V vocabulary, M positions
whose token is predicted.
Source: Devlin et al. (2019), section 3.1.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from nlgraft.basics.errors import DataError
from nlgraft.nn.batch import Movable, Tokens
from nlgraft.nn.conversion.encoders import PredictionHead
from nlgraft.nn.model import Seq2Seq
from nlgraft.nn.model_config import BertConfig, ClassifierConfig
from nlgraft.nn.modes import freeze_unused
from nlgraft.nn.transformers_lms import TransformersLM, build_fresh, load_language_model, position_limit

NOT_PREDICTED = -100
"""Label of positions whose token is not predicted."""
TRANSFORMERS_TYPES = "BERT, RoBERTa, DistilBERT, ELECTRA or ModernBERT type"


@dataclass(frozen=True)
class MaskedBatch(Movable):
    """Lines with masked tokens.

    Attributes:
        tokens: What the model reads, begin and end included, [B, T].
        labels: True token where it is predicted, ``NOT_PREDICTED`` elsewhere, int64 [B, T].
    """

    tokens: Tokens
    labels: Tensor

    @classmethod
    def of(
        cls,
        ids: Sequence[Sequence[int]],
        labels: Sequence[Sequence[int]],
        pad_id: int,
    ) -> MaskedBatch:
        """Pack lines and their labels, begin and end included."""
        return cls(Tokens.from_lists(ids, pad_id), Tokens.from_lists(labels, NOT_PREDICTED).ids)

    @property
    def targets(self) -> Tensor:
        """True tokens of the predicted positions, line by line, int64 [M]."""
        return self.labels[self.labels != NOT_PREDICTED]

    @property
    def num_targets(self) -> Tensor:
        """Number of predicted positions of each line, int64 [B]."""
        return (self.labels != NOT_PREDICTED).sum(1)


class MaskedLM(nn.Module, ABC):
    """A model that predicts masked tokens; its head runs where a token is predicted, and nowhere else.

    Attributes:
        can_predict: False for a checkpoint without a prediction head, which has states only.
    """

    can_predict: bool = True

    @abstractmethod
    def forward(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Read lines.

        Returns:
            Last hidden states [B, T, D], and logits [M, V] of the predicted positions, line by line.
        """

    def states(self, tokens: Tokens) -> Tensor:
        """Read lines [B, T] without predicting anything: last hidden states [B, T, D]."""
        return self(MaskedBatch(tokens, torch.full_like(tokens.ids, NOT_PREDICTED)))[0]

    def refuse_longer(self, longest: int) -> None:
        """Refuse lines for which the model has no positions; ``longest`` counts no begin and end.

        Raises:
            DataError: The longest has more tokens.
        """
        if self.max_tokens is not None and longest > self.max_tokens:
            raise DataError(
                f"the text has lines of {longest} tokens, the model positions for {self.max_tokens} beside "
                f"begin and end; set data.max_tokens to at most {self.max_tokens}"
            )

    @property
    @abstractmethod
    def input_table(self) -> Tensor:
        """The table of input embeddings, [V, D]."""

    @property
    @abstractmethod
    def vocabulary_tensors(self) -> frozenset[str]:
        """Names of the parameters with a row or an entry for each token: tables and output biases."""

    @property
    @abstractmethod
    def max_tokens(self) -> int | None:
        """Longest line that it has positions for, without begin and end; None: any length."""


class EncoderMaskedLM(MaskedLM):
    """The encoder of our Transformer; logits come from the embedding table that all sides share."""

    def __init__(
        self,
        model: Seq2Seq,
        head: PredictionHead | None,
        *,
        can_predict: bool,
    ) -> None:
        """Take the encoder of a model with ``tying`` ``all``, whose decoder is dropped.

        ``head`` stands between the states and the table; None: nothing does.
        """
        super().__init__()
        # an unread decoder would be counted, saved and handed to the optimiser
        model.decoder = nn.ModuleList()
        del model.decoder_norm, model.target_input
        self.model = model
        self.head = head
        self.can_predict = can_predict

    def forward(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Read lines: states [B, T, D] and logits [M, V]."""
        states_BTD = self.model.encode([batch.tokens]).bank[0].states
        predicted_MD = states_BTD.flatten(0, 1).index_select(0, _predicted(batch))
        return states_BTD, self.model.logits(predicted_MD if self.head is None else self.head(predicted_MD))

    @property
    def input_table(self) -> Tensor:
        """The one table, [V, D]."""
        return self.model.output_projection.weight

    @property
    def vocabulary_tensors(self) -> frozenset[str]:
        """Names of table and output bias."""
        names = {"model.source_embedding.table.weight", "model.output_projection.weight"}
        if self.model.config.has_output_bias:
            names.add("model.output_projection.bias")
        return frozenset(names)

    @property
    def max_tokens(self) -> int | None:
        """Longest line: learned positions are limited, sinusoids are not."""
        config = self.model.config
        return config.max_positions - 2 if config.source_positions == "learned" else None


class TransformersMaskedLM(TransformersLM, MaskedLM):
    """A masked language model of transformers, whatever its architecture."""

    def forward(self, batch: MaskedBatch) -> tuple[Tensor, Tensor]:
        """Read lines: states [B, T, D] and logits [M, V]."""
        positions_M = _predicted(batch)
        states: list[Tensor] = []

        def keep_predicted(
            _module: nn.Module,
            _inputs: Any,
            output: Any,
        ) -> Any:
            states.append(output.last_hidden_state)
            flat = output.last_hidden_state.flatten(0, 1)
            return type(output)(last_hidden_state=flat.index_select(0, positions_M)[None])

        # Every architecture has its own head behind the body, so the body's output is what can be changed
        # for all of them.
        handle = self.model.base_model.register_forward_hook(keep_predicted)
        try:
            tokens = batch.tokens
            logits = self.model(input_ids=tokens.ids, attention_mask=tokens.valid.long()).logits
        finally:
            handle.remove()
        return states[0], logits[0]

    @property
    def body_pattern(self) -> str:
        """Regular expression of the names of all parameters but the head's own."""
        return rf"^model\.{self.model.base_model_prefix}\."

    @property
    def max_tokens(self) -> int | None:
        """Number of positions, without those of begin and end."""
        limit = position_limit(self.model)
        return None if limit is None else limit - 2


def _predicted(batch: MaskedBatch) -> Tensor:
    return (batch.labels.flatten() != NOT_PREDICTED).nonzero()[:, 0]


def load_checkpoint(
    name: str,
    revision: str | None,
    seed: int,
) -> tuple[TransformersMaskedLM, list[str]]:
    """Read a checkpoint of transformers in fp32.

    Args:
        name: Hub name or directory.
        revision: Commit, tag or branch of a hub name.
        seed: Seed of parameters that the checkpoint lacks, such as a prediction head.

    Returns:
        The model, and the names of the parameters that were drawn.

    Raises:
        DataError: It cannot be read as a masked language model, or part of its body is missing.
    """
    what = "a masked language model"
    model, missing = load_language_model(
        "AutoModelForMaskedLM", name, revision, seed=seed, what=what, types=TRANSFORMERS_TYPES
    )
    return TransformersMaskedLM(model), missing


def fresh_bert(
    config: BertConfig,
    vocab_size: int,
    *,
    pad_id: int,
    max_tokens: int,
    seed: int,
    initializer_range: float = 0.02,
) -> TransformersMaskedLM:
    """Build a BERT of transformers with fresh weights; ``max_tokens`` does not count begin and end."""
    import transformers

    settings = transformers.BertConfig(
        vocab_size=vocab_size,
        hidden_size=config.d_model,
        num_hidden_layers=config.num_layers,
        num_attention_heads=config.num_heads,
        intermediate_size=config.ffn_dim,
        hidden_dropout_prob=config.dropout,
        attention_probs_dropout_prob=config.dropout,
        max_position_embeddings=max_tokens + 2,
        pad_token_id=pad_id,
        initializer_range=initializer_range,
    )
    return TransformersMaskedLM(build_fresh(transformers.BertForMaskedLM, settings, seed))


# Sequence classification with the body of a masked language model.
#
# Shape letters: B lines, T positions of a line with begin and end, D width of the body, C classes.


class Classifier(nn.Module):
    """A body, pooled to one state per line, and a head.

    **Frozen** bodies get no gradient and stay in evaluation mode. **Finetuned** ones are trained except for
    the prediction head, on which the states do not depend.

    Source: Devlin et al. (2019), section 4.1 (the first token's state, through a dense layer with tanh).
    """

    def __init__(
        self,
        body: MaskedLM,
        num_classes: int,
        config: ClassifierConfig,
    ) -> None:
        super().__init__()
        self.config = config
        self.body = body
        probe = Tokens.from_lists([[i % len(body.input_table) for i in (5, 6, 5)]])
        with torch.no_grad():
            # Measured, since configurations name the width differently from one architecture to the next.
            width = body.states(probe).shape[2]
        layers: list[nn.Module] = []
        if config.has_hidden_layer:
            layers += [nn.Linear(width, width), nn.Tanh()]
        layers += [nn.Dropout(config.dropout), nn.Linear(width, num_classes)]
        self.head = nn.Sequential(*layers)
        for layer in self.head:
            if isinstance(layer, nn.Linear):
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        if config.is_body_trained:
            freeze_unused(body, lambda: body.states(probe))
        else:
            body.requires_grad_(False)
        self.train(self.training)

    def train(self, mode: bool = True) -> Classifier:
        """Set the mode of everything but a frozen body."""
        super().train(mode)
        if not self.config.is_body_trained:
            self.body.eval()
        return self

    def forward(self, tokens: Tokens) -> Tensor:
        """Compute the logits of the classes, [B, C]."""
        with nullcontext() if self.config.is_body_trained else torch.no_grad():
            states_BTD = self.body.states(tokens)
        if self.config.pooling == "first":
            return self.head(states_BTD[:, 0])
        # Every line has begin and end, so the count is never zero.
        valid_BT1 = tokens.valid[:, :, None]
        pooled_BD = (states_BTD * valid_BT1).sum(1) / valid_BT1.sum(1)
        return self.head(pooled_BD)
