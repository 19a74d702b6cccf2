"""Settings of another vocabulary for a causal language model. Without torch: a study is read with it."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from nlgraft.basics.errors import DataError
from nlgraft.basics.strict_config import Condition, ReadWhen, StrictConfig
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.stages.config_parts import (
    PretrainedConfig,
    UpstreamSeed,
    VectorsConfig,
    unmeasured,
)
from nlgraft.text.corpus_config import TestedTextConfig, TextConfig, requires
from nlgraft.text.files import InputPathOrName
from nlgraft.text.tokenizer_config import LEAST_BYTE_TOKENS, ByteTokenizerConfig
from nlgraft.training.train_config import TrainConfig

Change = Literal["none", "replace", "extend", "prune", "prune_extend"]
WITH_NEW_ROWS: tuple[Change, ...] = ("replace", "extend", "prune_extend")
"""Changes that bring new tokens."""
WITH_SIZE: tuple[Change, ...] = ("replace", "prune", "prune_extend")
EXTENDING: tuple[Change, ...] = ("extend", "prune_extend")
PRUNING: tuple[Change, ...] = ("prune", "prune_extend")
KEPT = "old_vocabulary"
"""Name of the training with the old vocabulary, and prefix of its metrics in trials with a new one."""
VECTOR_METHODS = ("word2vec", "cbow", "focus", "wechsel")
"""Methods that compare tokens by vectors learned from text."""


DONOR_METHODS = ("omp",)
"""Methods that compare tokens in the space of a model that has the new ones."""


def _known(method: str) -> str:
    # imported here: the methods import scipy, which most commands do not need
    from nlgraft.vocab.methods.registry import find_method

    try:
        return find_method(method).name
    except DataError as error:
        raise ValueError(str(error)) from error


class DataConfig(StrictConfig):
    """Text of the model's own domain or language, and of the one that it is moved to."""

    upstream: Annotated[TextConfig, requires(has_further_tests=False)] | None = None
    """Text of the old domain: a model from scratch is pretrained on it, and the trial's model is scored on
    its test split, which shows what was forgotten. Null: only with a checkpoint; nothing is scored there."""
    downstream: Annotated[TestedTextConfig, requires("source 0")]
    """Text on which the vocabulary is changed and the model is trained on. Further test sets are scored, too:
    other domains, or with a checkpoint the old one."""


class ModelConfig(PretrainedConfig):
    """A causal language model of transformers: a checkpoint, or one that is trained from scratch."""

    checkpoint: InputPathOrName | None = None
    """Hub name or local directory of a Llama, Qwen, Gemma, Mistral, Phi or GPT-2 type checkpoint with its
    tokenizer."""
    model: LlamaConfig | None = None
    """Sizes of a model that is trained from scratch instead of a checkpoint; null: the checkpoint."""


class CausalLMConfig(ModelConfig):
    """The pretrained model and its vocabulary."""

    tokenizer: ByteTokenizerConfig | None = None
    """Vocabulary of a model trained from scratch, learned from upstream text; null with a checkpoint, which
    brings its own."""
    max_tokens: int = Field(default=128, ge=2)
    """Predicted tokens of a sequence of packed lines in training, and longest context in scoring, where each
    line stands by itself and a longer one is read in several windows. Nothing is cut."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if (self.model is None) != (self.tokenizer is None):
            yield (
                "tokenizer is that of a model trained from scratch: give it with model, and leave it out "
                "with checkpoint, which brings its own"
            )


class PackedTrainConfig(TrainConfig):
    """One training on packed text: batches of whole lines, put end to end and cut into sequences."""

    ONE_OF: ClassVar[tuple[tuple[str, ...], ...]] = (
        ("max_steps", "max_epochs"),
        ("batch_characters", "batch_tokens", "batch_sentences"),
    )

    batch_characters: int | None = Field(default=8192, ge=1)
    """Characters of a batch, ends of lines included. As with ``batch_sentences``, all vocabularies then read
    the same lines, and so the same bytes, at the same step. Null where another batch size is set."""
    batch_tokens: int | None = Field(default=None, ge=1)
    """Tokens of a batch, ends of lines included: a coarser vocabulary reads more text in as many steps."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        yield from unmeasured(self, "dev/loss", "dev/bits_per_byte", where="")


class UpstreamConfig(UpstreamSeed):
    """Pretraining of a model from scratch."""

    train: PackedTrainConfig = PackedTrainConfig()
    """Duration, learning rate and selection of the result."""


class DonorConfig(ModelConfig):
    """A model that has new tokens, in whose space they are compared with shared ones."""

    train: PackedTrainConfig | None = None
    """Training of ``model`` on downstream text in the new vocabulary; null with a checkpoint, of which the
    tokens are used that the new vocabulary has. No measure of the trial's training counts this one."""

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if (self.model is None) != (self.train is None):
            yield "train is that of model: give both, or a checkpoint alone"


class VocabularyConfig(StrictConfig):
    """The new vocabulary, and the rows of its new tokens."""

    change: Change = "extend"
    """none: the vocabulary is kept. replace: by a byte-level BPE learned on downstream text. extend: further
    merges (or unigram pieces) are learned on it; old ids stay. prune: tokens that are rare in it are dropped.
    prune_extend: pruned, then extended."""
    size: int = Field(default=4000, ge=LEAST_BYTE_TOKENS)
    """Number of tokens of a vocabulary that replaces the old one, or that pruning leaves: an upper bound."""
    num_added: int = Field(default=1000, ge=1)
    """Number of tokens by which a vocabulary is extended: an upper bound."""
    min_count: int = Field(default=2, ge=1)
    """Occurrences in downstream text that a token needs by which a vocabulary is extended."""
    method: Annotated[str, AfterValidator(_known)] = "fvt"
    """Rows of new tokens: any of ``nlgraft vocab methods``. random draws them, mean takes the mean of all
    old rows, fvt that of the old tokenizer's pieces (Gee et al. 2022), focus a combination of similar shared
    tokens (Dobler and de Melo 2023), omp one that is found in the donor's space."""
    # Left out of the keys of cells and searches where it is null: these are older than the donor.
    donor: DonorConfig | None = Field(default=None, exclude_if=lambda donor: donor is None)
    """The model that knows new tokens, for the method omp; null: none."""


class LoraConfig(StrictConfig):
    """Low-rank adapters beside all linear maps of the body (Hu et al. 2022); needs the extra ``peft``."""

    rank: int = Field(default=8, ge=1)
    """Rank of the change of a matrix."""
    alpha: int = Field(default=16, ge=1)
    """The change is scaled by alpha over rank."""

    def _problems(self) -> Iterator[str]:
        if find_spec("peft") is None:
            yield "peft is not installed: pip install 'nlgraft[peft]', or set lora to null"


class TrainingConfig(StrictConfig):
    """Training of the model with its new vocabulary on downstream text."""

    train: PackedTrainConfig = PackedTrainConfig()
    """Duration, learning rate and selection of the result."""
    new_rows_first_steps: int = Field(default=0, ge=0)
    """Number of first steps that train only the rows of new tokens; as many as ``train`` has: nothing else
    is ever trained."""
    table_lr_multiplier: float = Field(default=1.0, gt=0)
    """Factor on the learning rate of input and output tables."""
    lora: LoraConfig | None = None
    """If given, only adapters of the body and the rows of new tokens learn; the adapters are added to the
    weights at the end. Null: all weights learn."""
    has_reference: bool = True
    """If true, the model with its old vocabulary is trained likewise, so that a trial reports when it has
    caught up with that; trials with the same seed share this training."""

    def _problems(self) -> Iterator[str]:
        if self.lora is not None and self.new_rows_first_steps:
            yield (
                f"new_rows_first_steps is {self.new_rows_first_steps}, but with lora new rows and adapters "
                "learn together: set it to 0, or lora to null"
            )


_NEW: Condition = {"vocabulary.change": WITH_NEW_ROWS}


class Config(StrictConfig):
    """A trial: pretrained model, changed vocabulary, further training, scores in bits per byte."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "vocabulary.size": ({"vocabulary.change": WITH_SIZE},),
        "vocabulary.num_added": ({"vocabulary.change": EXTENDING},),
        "vocabulary.min_count": ({"vocabulary.change": EXTENDING},),
        "vocabulary.method": (_NEW,),
        "vocabulary.donor": ({**_NEW, "vocabulary.method": DONOR_METHODS},),
        "vectors": ({**_NEW, "vocabulary.method": VECTOR_METHODS},),
        "training.new_rows_first_steps": (_NEW,),
        "training.has_reference": ({"vocabulary.change": (*WITH_NEW_ROWS, "prune")},),
    }

    data: DataConfig
    """The corpora."""
    causal_lm: CausalLMConfig
    """The pretrained model and its tokenizer."""
    upstream: UpstreamConfig | None = None
    """Pretraining of a model from scratch; null: a checkpoint."""
    vocabulary: VocabularyConfig = VocabularyConfig()
    """The new vocabulary."""
    vectors: VectorsConfig = VectorsConfig()
    """Token vectors, for methods that compare tokens by them."""
    training: TrainingConfig | None = TrainingConfig()
    """Training after the exchange; null: none."""

    def _problems(self) -> Iterator[str]:
        if (self.upstream is None) != (self.causal_lm.model is None):
            origin = "checkpoint" if self.causal_lm.model is None else "model"
            yield (
                "upstream is the pretraining of causal_lm.model, which starts from scratch; causal_lm has "
                f"a {origin}: give upstream with a model, and leave it out with a checkpoint"
            )
        if self.causal_lm.model is not None and self.data.upstream is None:
            yield "causal_lm.model is pretrained on data.upstream, which is missing: give it"
        vocabulary = self.vocabulary
        if vocabulary.method in DONOR_METHODS and vocabulary.donor is None:
            yield (
                f"vocabulary.method {vocabulary.method} compares tokens in a model that has them: give "
                "vocabulary.donor a checkpoint, or model and train"
            )
