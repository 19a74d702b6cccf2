"""Settings of vocabulary transfer. Without torch, since reading a study imports this module."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from nlgraft.basics.strict_config import GIVEN, Condition, ReadWhen, StrictConfig
from nlgraft.stages.config_parts import (
    ClassificationConfig,
    MaskedLMConfig,
    UpstreamSeed,
    unmeasured,
)
from nlgraft.text.corpus_config import LabelledConfig, TextConfig, requires
from nlgraft.training.train_config import TrainConfig

Method = Literal[
    "old_vocabulary",
    "from_scratch",
    "all_random",
    "match",
    "fvt",
    "vipi",
    "vipi_count",
    "vipi_one",
    "vipi_shuffled",
    "old_rows_new_ids",
]
PLAN_METHODS = {"match": "random", "old_rows_new_ids": "same_ids"}
"""Methods with a different name in ``nlgraft.vocab.methods``."""
KEPT = "old_vocabulary"
"""The method that keeps the vocabulary."""
SCRATCH = "from_scratch"
"""The method that initialises the whole model at random."""
EXCHANGING = tuple(name for name in get_args(Method) if name not in (KEPT, SCRATCH))
"""Methods that exchange the vocabulary of the pretrained model."""


class SplitConfig(StrictConfig):
    """A stratified split of the downstream examples (section 3.2).

    The examples of the corpus's own three splits are pooled, shuffled and split again; examples with the same
    text go to the same split.
    """

    train: float = Field(default=0.5, gt=0, lt=1)
    """Proportion of train; dev and test get half of the rest each (section 3.2: 50, 25 and 25 %)."""
    num_labels: int | None = Field(default=None, ge=2)
    """Keep only examples with one of this many most frequent labels; null: all."""
    num_examples: int | None = Field(default=None, ge=3)
    """Number of examples sampled, stratified by label; null: all."""


class DataConfig(StrictConfig):
    """Corpora of the pretraining and of the task."""

    upstream: Annotated[TextConfig, requires(has_further_tests=False)] | None = None
    """Pretraining text (section 3.2: Wikipedia); null for a released checkpoint without further
    pretraining."""
    downstream: Annotated[LabelledConfig, requires("source 0", "label", has_further_tests=False)]
    """Labelled lines of the classification task."""
    unlabelled: Annotated[TextConfig, requires(has_further_tests=False)] | None = None
    """Unlabelled text of the task: the new vocabulary is learned on its training split, and the masked-LM
    step is trained on it; null: both use the labelled lines. Lines that also occur in dev or test of
    ``downstream`` are removed from its training split."""
    split: SplitConfig | None = None
    """If given, split the downstream examples again; null: use the corpus's own splits."""
    max_tokens: int = Field(default=126, ge=1)
    """Maximum length of a line in tokens, without begin and end; longer lines are truncated at a word
    boundary and counted."""


class UpstreamConfig(UpstreamSeed):
    """Pretraining as a masked language model (section 3.2)."""

    train: TrainConfig = TrainConfig()
    """Duration, learning rate and selection of the result."""


class TransferConfig(StrictConfig):
    """Initialisation of the embeddings of the new vocabulary (sections 3.3 and 4.1)."""

    method: Method = "vipi"
    """old_vocabulary: the vocabulary is kept. from_scratch: new vocabulary, the whole model random. The
    others keep the body and copy special tokens by role. all_random: the rows of all other tokens are random.
    old_rows_new_ids (control): the old table is read with the new ids, so most tokens get other rows.
    The rest copy the rows of shared tokens and initialise the others: match at random; vipi by the average
    over partitions into old tokens; vipi_count likewise, without preferring the longest token (released
    code); vipi_one by one partition drawn at random; vipi_shuffled by as many random old tokens as the
    partitions have; fvt by the average over the old tokenizer's pieces (Gee et al. 2022)."""


_PRETRAINED: Condition = {"transfer.method": (KEPT, *EXCHANGING)}
_UPSTREAM: Condition = {"upstream": (GIVEN,), **_PRETRAINED}
_TRAINED: tuple[Condition, ...] = (_UPSTREAM, {"intermediate": (GIVEN,)})
"""Conditions under which some stage trains a masked language model."""


class Config(StrictConfig):
    """A trial: pretrained encoder, new vocabulary, further masked-LM training if wanted, classification."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "upstream": (_PRETRAINED,),
        "masked_lm.downstream_tokenizer": ({"transfer.method": (SCRATCH, *EXCHANGING)},),
        "data.unlabelled": ({"transfer.method": (SCRATCH, *EXCHANGING)}, {"intermediate": (GIVEN,)}),
        "masked_lm.masking": _TRAINED,
        "masked_lm.num_scored_sentences": _TRAINED,
        "masked_lm.num_scoring_rounds": _TRAINED,
        "masked_lm.is_body_trained": (_UPSTREAM,),
    }

    data: DataConfig
    """The corpora: pretraining text, labelled and unlabelled text of the task."""
    masked_lm: MaskedLMConfig
    """The pretrained encoder and the tokenizers."""
    upstream: UpstreamConfig | None = None
    """Pretraining of the encoder; null: a released checkpoint without further pretraining."""
    transfer: TransferConfig = TransferConfig()
    """Exchange of the vocabulary."""
    intermediate: TrainConfig | None = None
    """Masked-LM training on the downstream text before the classification (section 4.2); null: none."""
    classification: ClassificationConfig = ClassificationConfig()
    """Classification head, whether the body is frozen or finetuned, and the training."""

    def _problems(self) -> Iterator[str]:
        if self.masked_lm.model is not None and self.upstream is None:
            yield "masked_lm.model is trained from scratch: give upstream, its pretraining"
        if (self.upstream is None) != (self.data.upstream is None):
            present, missing = ("data.upstream", "upstream")[:: 1 if self.upstream is None else -1]
            yield f"{present} is given without {missing}: a pretraining needs text; give both, or neither"
        for name in ("upstream", "intermediate"):
            phase = getattr(self, name)
            train = getattr(phase, "train", phase)
            if train is not None:
                yield from unmeasured(train, "dev/loss", "dev/mlm_loss_per_char", where=f"{name}: ")
