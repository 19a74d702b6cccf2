"""Settings of another vocabulary for a causal language model. Without torch: a study is read with it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag

from nlgraft.basics.errors import DataError
from nlgraft.basics.strict_config import GIVEN, Condition, ReadWhen, StrictConfig
from nlgraft.nn.model_config import LlamaConfig
from nlgraft.stages.config_parts import (
    VECTOR_METHODS,
    PretrainedConfig,
    ScoreConfig,
    UpstreamSeed,
    VectorsConfig,
    defaulting,
    unmeasured,
)
from nlgraft.text.corpus_config import (
    AnyCorpus,
    PairsConfig,
    TestedTextConfig,
    TextConfig,
    as_corpus,
    requires,
    role_problem,
)
from nlgraft.text.files import InputPathOrName
from nlgraft.text.tokenizer_config import LEAST_BYTE_TOKENS, ByteTokenizerConfig
from nlgraft.training.train_config import LoraConfig, TrainConfig

Change = Literal["none", "replace", "extend", "prune", "prune_extend"]
WITH_NEW_ROWS = ("replace", "extend", "prune_extend")
"""Changes that bring new tokens."""
WITH_SIZE = ("replace", "prune", "prune_extend")
EXTENDING = ("extend", "prune_extend")
PRUNING = ("prune", "prune_extend")
KEPT = "old_vocabulary"
"""Name of the training with the old vocabulary, and prefix of its metrics in trials with a new one."""
DONOR_METHODS = ("omp",)
"""Methods that compare tokens in the space of a model that has the new ones."""


def _known(method: str) -> str:
    # imported here: the methods import scipy, which most commands do not need
    from nlgraft.vocab.methods.registry import find_method

    try:
        return find_method(method).name
    except DataError as error:
        raise ValueError(str(error)) from error


def _kind(corpus: Any) -> Literal["pairs", "text"]:
    """Tell if a corpus, typed or as written, has targets; so only the problems of its own kind are told."""
    if not isinstance(corpus, Mapping):
        return "pairs" if has_target(corpus) else "text"
    train = corpus.get("train")
    is_paired = (
        corpus.get("corpus") == "sacrebleu"
        or corpus.get("target") is not None
        or (isinstance(train, Mapping) and train.get("target") is not None)
        or corpus.get("task", "monolingual") != "monolingual"
    )
    return "pairs" if is_paired else "text"


def has_target(corpus: AnyCorpus) -> bool:
    """Tell if a corpus has targets, which only a task reads."""
    return "target" in as_corpus(corpus).roles


_Pairs = Annotated[PairsConfig, Tag("pairs")]
_TextOrPairs = Annotated[Annotated[TextConfig, Tag("text")] | _Pairs, Discriminator(_kind)]
_TestedTextOrPairs = Annotated[Annotated[TestedTextConfig, Tag("text")] | _Pairs, Discriminator(_kind)]


class DataConfig(StrictConfig):
    """Text of the model's own domain or language, and of the one that it is moved to."""

    upstream: Annotated[_TextOrPairs, requires(has_further_tests=False)] | None = None
    """Text of the old domain, or with a task sources and targets: a model from scratch is pretrained on it,
    and the trial's model is scored on its test split, which shows what was forgotten. Null: only with a
    checkpoint; nothing is scored there."""
    downstream: Annotated[_TestedTextOrPairs, requires("source 0")]
    """Text on which the vocabulary is changed and the model is trained on, with a task sources and targets.
    Further test sets are scored, too: other domains, or with a checkpoint the old one."""


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

    ONE_OF = (
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


_DISTILLING: dict[str, Any] = {
    "max_steps": None,
    "max_epochs": 1,
    "batch_tokens": None,
    "batch_sentences": 16,
    "peak_lr": 1e-4,
    "lr_schedule": "constant",
    "warmup_steps": 0,
    "betas": (0.9, 0.999),
    "clip_norm": None,
}
"""A training as in the released code of token distillation."""


class DistillationConfig(StrictConfig):
    """Fitting of new rows to the model's states over the old tokens (Dobler, Elliott and de Melo 2025)."""

    num_contexts: int = Field(default=100, ge=1)
    """Contexts of each new token that are drawn from downstream text, at most: pieces of lines in which it
    stands for several old tokens. A new token without any keeps its row."""
    context_tokens: int = Field(default=50, ge=1)
    """Longest context, in old tokens."""
    layer: int = -1
    """Hidden state that is compared: -1 the last one, 0 the embeddings."""
    train: Annotated[TrainConfig, defaulting(**_DISTILLING)] = TrainConfig(**_DISTILLING)
    """Duration, learning rate and selection of the result; ``batch_sentences`` counts contexts."""

    def _problems(self) -> Iterator[str]:
        yield from unmeasured(self.train, "dev/loss")
        if self.train.batch_sentences is None:
            yield "train.batch_sentences is missing: it is the number of contexts of a batch"


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
    distillation: DistillationConfig | None = Field(default=None, exclude_if=lambda config: config is None)
    """If given, the rows that the method made are where token distillation starts; null: they stay."""


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


class DecodeConfig(StrictConfig):
    """Search for a target by ``generate`` of transformers; beam 1 is greedy search."""

    # No ban on repeated n-grams: transformers would count those of the prompt, whose words a target needs.
    beam: int = Field(default=5, ge=1)
    """Hypotheses kept for each prompt."""
    alpha: float = Field(default=1.0, ge=0)
    """The log-probability of a hypothesis of n tokens is divided by n^alpha; only beams have several."""
    min_length: int = Field(default=0, ge=0)
    """Smallest number of tokens before the end token."""
    batch_sentences: int = Field(default=32, ge=1)
    """Prompts that are read at once, after sorting by length."""

    def _problems(self) -> Iterator[str]:
        if self.beam == 1 and self.alpha != 1.0:
            yield f"alpha {self.alpha} has no effect with beam 1: leave it out, or raise beam"


SOURCE = "{source}"
"""Place of the source in a prompt."""


class TaskConfig(StrictConfig):
    """Writing a target after a prompt, such as a translation or a summary."""

    prompt: str = f"{SOURCE}\n"
    """What the model reads before it writes the target, with {source} where the source stands. It is encoded
    as one text, and the target behind it as another. The loss is that of the target and its end."""
    max_target_tokens: int = Field(default=64, ge=2)
    """Longest target and longest hypothesis in tokens, end included; the prompt has the rest of
    ``causal_lm.max_tokens``. Longer targets, and sources for which a prompt has no room, are cut and counted;
    a target that was cut has no end to learn."""
    decode: DecodeConfig = DecodeConfig()
    """Search for the targets of dev and test."""

    def _problems(self) -> Iterator[str]:
        if self.prompt.count(SOURCE) != 1:
            yield f"prompt {self.prompt!r} needs {SOURCE} once: it says where the source stands"
        if self.decode.min_length >= self.max_target_tokens:
            yield (
                f"decode.min_length {self.decode.min_length} and an end do not fit max_target_tokens "
                f"{self.max_target_tokens}"
            )


_NEW: Condition = {"vocabulary.change": WITH_NEW_ROWS}


class Config(StrictConfig):
    """A trial: pretrained model, changed vocabulary, further training, scores of text or of a task."""

    READ_WHEN: ClassVar[ReadWhen] = {
        "vocabulary.size": ({"vocabulary.change": WITH_SIZE},),
        "vocabulary.num_added": ({"vocabulary.change": EXTENDING},),
        "vocabulary.min_count": ({"vocabulary.change": EXTENDING},),
        "vocabulary.method": (_NEW,),
        "vocabulary.donor": ({**_NEW, "vocabulary.method": DONOR_METHODS},),
        "vocabulary.distillation": (_NEW,),
        "vectors": ({**_NEW, "vocabulary.method": tuple(VECTOR_METHODS)},),
        "training.new_rows_first_steps": (_NEW,),
        "training.table_lr_multiplier": (_NEW, {"training.lora": (None,)}),
        "training.has_reference": ({"vocabulary.change": (*WITH_NEW_ROWS, "prune")},),
        "score": ({"task": (GIVEN,)},),
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
    # Both stay out of the keys of cells and searches where nothing is given: these are older than tasks.
    task: TaskConfig | None = Field(default=None, exclude_if=lambda task: task is None)
    """If given, the model learns to write targets after prompts, and what it writes is scored; null: it
    learns whole lines of text."""
    score: ScoreConfig = Field(default=ScoreConfig(), exclude_if=lambda score: score == ScoreConfig())
    """Metrics of the targets that are written in a task."""

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
        distillation, max_tokens = vocabulary.distillation, self.causal_lm.max_tokens
        if distillation is not None and distillation.context_tokens >= max_tokens:
            yield (
                f"vocabulary.distillation.context_tokens {distillation.context_tokens} and a begin have no "
                f"room in causal_lm.max_tokens {max_tokens}"
            )
        yield from self._task_problems()

    def _task_problems(self) -> Iterator[str]:
        corpora = {name: corpus for name, corpus in self.data if corpus is not None}
        if self.task is None:
            for name in (name for name, corpus in corpora.items() if has_target(corpus)):
                yield f"data.{name} has a target, which only a task reads: give task, or text without targets"
            if self.score != ScoreConfig():
                yield "score is given, but only what a task writes is scored: give task, or leave score out"
            return
        for name, corpus in corpora.items():
            roles = ("source 0", "target")
            problem = role_problem(as_corpus(corpus), *roles, is_exact=True)
            if problem and (name == "downstream" or has_target(corpus)):
                yield f"data.{name} {problem}"
        if self.task.max_target_tokens >= self.causal_lm.max_tokens:
            yield (
                f"task.max_target_tokens {self.task.max_target_tokens} leaves no room for a prompt in "
                f"causal_lm.max_tokens {self.causal_lm.max_tokens}"
            )
