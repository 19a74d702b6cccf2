"""Every knob of vocabulary transfer, typed and frozen. No torch here: studies are read with it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, get_args

from pydantic import Field

from nlgraft.conditions import GIVEN, Condition, ReadWhen
from nlgraft.stages.config_parts import (
    ClassificationConfig,
    MaskedLMConfig,
    SystemConfig,
    UpstreamSeed,
)
from nlgraft.strict_config import StrictConfig
from nlgraft.text.corpus_config import LabelledConfig, TextConfig
from nlgraft.text.roles import requires
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
]
PLAN_METHODS = {"match": "random"}
"""Methods of ``nlgraft.vocab.methods`` that have another name there."""
KEPT = "old_vocabulary"
"""The method that keeps the vocabulary."""
SCRATCH = "from_scratch"
"""The method that draws all weights of the model."""
EXCHANGING = tuple(name for name in get_args(Method) if name not in (KEPT, SCRATCH))
"""Methods that exchange the vocabulary of the pretrained model."""


class SplitConfig(StrictConfig):
    """A split of the downstream examples that keeps the balance of the labels (section 3.2).

    The examples of the corpus's own three splits are pooled, shuffled and split anew; those of equal text
    stay together.
    """

    train: float = Field(default=0.5, gt=0, lt=1)
    """Share of train; dev and test get half of the rest each (section 3.2: 50, 25 and 25 %)."""
    num_labels: int | None = Field(default=None, ge=2)
    """Keep only the examples of this many most frequent labels; null: all."""
    num_examples: int | None = Field(default=None, ge=3)
    """Draw this many examples, likewise balanced; null: all."""


class DataConfig(StrictConfig):
    """The text of the pretraining and of the task."""

    upstream: Annotated[TextConfig, requires(has_further_tests=False)] | None = None
    """Text of the pretraining (section 3.2: Wikipedia); null for a released checkpoint that is taken as it
    is."""
    downstream: Annotated[LabelledConfig, requires("source 0", "label", has_further_tests=False)]
    """Lines and their labels."""
    unlabelled: Annotated[TextConfig, requires(has_further_tests=False)] | None = None
    """Text of the task without labels: the new vocabulary is learned on its train, and the masked-LM step
    reads it; null: both take the labelled lines. Its training text
    is read without the lines of downstream's dev and test."""
    split: SplitConfig | None = None
    """Split the downstream examples anew; null: the corpus's own splits."""
    max_tokens: int = Field(default=126, ge=1)
    """Longest line in tokens, without begin and end; longer ones are cut at a word and counted."""


class UpstreamConfig(UpstreamSeed):
    """The pretraining as a masked language model (section 3.2)."""

    train: TrainConfig = TrainConfig()
    """Length, learning rate, choice of the result."""


class TransferConfig(StrictConfig):
    """Where the embeddings of the new vocabulary come from (sections 3.3 and 4.1)."""

    method: Method = "vipi"
    """old_vocabulary: the vocabulary is kept. from_scratch: new vocabulary, all weights drawn. The others
    keep the body: all_random draws all rows of text; match copies those of shared tokens and draws the
    others; vipi averages partitions into old tokens, vipi_count likewise without the rule of the longest
    token (the released code), vipi_one takes one partition at random, vipi_shuffled as many random old
    tokens; fvt averages the old tokenizer's own pieces (Gee et al. 2022)."""
    norm_match: Literal["none", "median", "class"] = "none"
    """Scale new rows to the median norm of old rows: of all, or of those in the same position in words."""


_EXCHANGED: Condition = {"transfer.method": EXCHANGING}
_PRETRAINED: Condition = {"transfer.method": (KEPT, *EXCHANGING)}
_UPSTREAM: Condition = {"upstream": (GIVEN,), **_PRETRAINED}
_TRAINED: tuple[Condition, ...] = (_UPSTREAM, {"intermediate": (GIVEN,)})
"""Where masked tokens are predicted at all."""


class Config(SystemConfig):
    """A trial: pretrained encoder, new vocabulary, further masked-LM training if wanted, classification."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "upstream": (_PRETRAINED,),
        "transfer.norm_match": (_EXCHANGED,),
        "masked_lm.downstream_tokenizer": ({"transfer.method": (SCRATCH, *EXCHANGING)},),
        "data.unlabelled": ({"transfer.method": (SCRATCH, *EXCHANGING)}, {"intermediate": (GIVEN,)}),
        "masked_lm.masking": _TRAINED,
        "masked_lm.num_scored_sentences": _TRAINED,
        "masked_lm.num_scoring_rounds": _TRAINED,
        "masked_lm.is_body_trained": (_UPSTREAM,),
    }

    data: DataConfig
    """Text and labels."""
    masked_lm: MaskedLMConfig
    """The pretrained encoder, and the tokenizers."""
    upstream: UpstreamConfig | None = None
    """Its pretraining; null: a released checkpoint as it is."""
    transfer: TransferConfig = TransferConfig()
    """The exchange of the vocabulary."""
    intermediate: TrainConfig | None = None
    """Masked-LM training on the downstream text before the classification (section 4.2); null: none."""
    classification: ClassificationConfig = ClassificationConfig()
    """Head, body frozen or finetuned, and their training."""

    def _problems(self) -> Iterator[str]:
        if self.masked_lm.model is not None and self.upstream is None:
            yield "masked_lm.model is trained from scratch: give upstream, its pretraining"
        if (self.upstream is None) != (self.data.upstream is None):
            given, missing = ("data.upstream", "upstream")[:: 1 if self.upstream is None else -1]
            yield f"{given} is given without {missing}: a pretraining needs text; give both, or neither"
        for name in ("upstream", "intermediate"):
            phase = getattr(self, name)
            train = getattr(phase, "train", phase)
            if train is not None and train.best_metric not in ("dev/loss", "dev/mlm_loss_per_char"):
                yield (
                    f"{name}: best_metric is {train.best_metric!r}; measured are dev/loss and "
                    "dev/mlm_loss_per_char"
                )
