"""Kinds of stages: typed settings and inputs, shared by a graph and the function that a stage runs.

A kind is declared once::

    class TrainSettings(TrainingSettings):
        model: TransformerConfig | None = None

    class TrainInputs(Inputs[T]):
        encoded: T
        start: T | None = None

    TRAIN = StageKind(
        "nlgraft.stages.run.seq2seq_stages:train", TrainSettings, TrainInputs, workers="train"
    )

A graph builds a stage with ``TRAIN.stage("finetuned", TrainSettings(...), TrainInputs(encoded=encoded))``,
whose inputs are stages. The function begins with ``settings, inputs = TRAIN.read(context)``, whose inputs are
the directories of the artifacts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar, dataclass_transform

from nlgraft.basics.errors import ContractError
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.nn.context_config import LanguageModelConfig
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import Stage, StageContext, StageGraph, StageWorkers, Work
from nlgraft.stages.config_parts import VECTOR_METHODS, VectorKind, VectorsConfig
from nlgraft.text.corpus_config import Split
from nlgraft.text.tokenizer_config import LearnedTokenizerConfig
from nlgraft.training.train_config import PRECISION_INPUT, TrainConfig

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound="Settings")
InputsT = TypeVar("InputsT", bound="Inputs[Any]")
ConfigT = TypeVar("ConfigT")


class Settings(StrictConfig):
    """The slice of a system's config that a stage reads: immutable, without unknown keys.

    All fields enter the fingerprint, defaults included. A setting that only some stages of a kind read is
    ``None`` for the others, so that they do not depend on it.
    """

    def work(self, inputs: Mapping[str, Stage]) -> Work | None:
        """Estimate the work of a stage with these settings; None for stages that train nothing."""
        return None

    def further_inputs(self) -> Mapping[str, Stage]:
        """Name stages that these settings need besides the inputs of the kind; read by ``context.inputs``."""
        return {}


class NoSettings(Settings):
    """Settings of a stage that depends on its inputs alone."""


@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
@dataclass(frozen=True, kw_only=True)
class Inputs(Generic[T]):
    """Inputs of a stage by name: stages in a graph, directories of artifacts in a running stage.

    Each subclass is a frozen dataclass. A field is required (``T``), optional (``T | None = None``) or a
    family (``Mapping[str, T]``, e.g. one translation for each split).
    """

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        dataclass(frozen=True, kw_only=True)(cls)

    def named(self) -> Iterator[tuple[str, T]]:
        """Yield the inputs that are there, members of a family as ``field/member``."""
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                yield from ((f"{name}/{key}", member) for key, member in value.items())
            elif value is not None:
                yield name, value


@dataclass(frozen=True)
class StageKind(Generic[SettingsT, InputsT]):
    """The function, settings and inputs that stages of one kind have in common.

    Attributes:
        run: ``package.module:function``, imported only in the process that runs a stage.
        settings: Type of its settings.
        inputs: Type of its inputs, a subclass of ``Inputs``.
        version: Raised whenever the same settings and inputs would give another artifact.
        workers: See ``Stage``.
        keeps: See ``Stage``.
        check: ``package.module:function`` that looks at the data of its stages before anything runs; None if
            there is nothing to look at.
    """

    run: str
    settings: type[SettingsT]
    inputs: type[InputsT]
    version: int = 1
    workers: StageWorkers = "none"
    keeps: Literal["weights", "states", "means"] | None = None
    check: str | None = None

    def stage(
        self,
        name: str,
        settings: SettingsT,
        inputs: InputsT,
        *,
        seed: int | None = None,
        locations: Mapping[str, Any] | None = None,
    ) -> Stage:
        """Build a stage of this kind; ``seed`` and ``locations`` as in ``Stage``."""
        named = {**dict(inputs.named()), **settings.further_inputs()}
        return Stage(
            name=name,
            run=self.run,
            version=self.version,
            config=settings.model_dump(mode="json"),
            inputs=named,
            seed=seed,
            workers=self.workers,
            locations=locations or {},
            work=settings.work(named),
            keeps=self.keeps,
            check=self.check,
        )

    def read(self, context: StageContext) -> tuple[SettingsT, InputsT]:
        """Read the settings and the input directories of a running stage."""
        settings = self.settings_of(context.stage)
        return settings, self._directories(context, settings.further_inputs())

    def settings_of(self, stage: Stage) -> SettingsT:
        """Read the settings of a stage of this kind."""
        # By way of JSON, in which strict pydantic accepts lists for tuples.
        return self.settings.model_validate_json(canonical_json(stage.config))

    def _directories(self, context: StageContext, further: Mapping[str, Stage]) -> InputsT:
        directories: dict[str, Any] = {}
        for key, directory in context.inputs.items():
            if key in further:
                continue
            # A member of a family is named ``field/member``.
            name, slash, member = key.partition("/")
            if slash:
                directories.setdefault(name, {})[member] = directory
            else:
                directories[name] = directory
        try:
            return self.inputs(**directories)
        except TypeError as error:
            raise ContractError(f"stage {context.stage.name}: inputs of {self.run}: {error}") from error


class TrialStages(ABC, Generic[ConfigT]):
    """Makes the stages of one trial, each once; a system derives its own and exports its ``graph``."""

    def __init__(self, config: ConfigT, seed: int) -> None:
        self.config, self.seed = config, seed

    @classmethod
    def graph(
        cls,
        config: ConfigT,
        *,
        seed: int,
        splits: tuple[str, ...],
    ) -> StageGraph:
        """Build the stage graph of a trial.

        Args:
            config: Everything the trial depends on.
            seed: Of all that is trained or drawn for the trial alone; of models that trials share too where
                the config says is_per_seed.
            splits: Splits to score.

        Returns:
            The graph; its result holds the scores of every split.

        Raises:
            DataError: A corpus or a checkpoint is missing.
        """
        return StageGraph(cls(config, seed).scores(splits))

    @abstractmethod
    def scores(self, splits: tuple[str, ...]) -> Stage:
        """The last stage: all scores of the trial."""


# Kinds that several graphs share: text, trainings, language models, exchanges of a vocabulary.


# Corpora, tokenizers and encoded text.


class TextSettings(Settings):
    """All lines of a corpus, whatever their role, as ``source 0``. Its place is the location ``corpus``."""

    content: dict[str, Any]
    """Digest of the corpus."""


class CorpusSettings(TextSettings):
    """The text of a corpus with its roles."""

    joined_by: str | None = None
    """Separator with which the sources of an example are joined into one; null: they stay separate."""


class NoInputs(Inputs[T]):
    """Nothing is read but outside data."""


class TokenizerSettings(Settings):
    """A SentencePiece model and what it learns from."""

    tokenizer: LearnedTokenizerConfig
    """Its kind and size; ``is_shared`` is left at its default."""
    roles: tuple[str, ...] | None
    """Roles of the training text, e.g. ``source 0``; null: all text."""
    symbols: tuple[str, ...] = ()
    """Strings that are always one piece each in text, and that decoding keeps."""


class TokenizerInputs(Inputs[T]):
    """Corpora whose training text is learned from, in the order of their names."""

    corpora: Mapping[str, T]


class EncodeSettings(Settings):
    """Streams of ids made from a corpus."""

    streams: Mapping[str, str]
    """Role of the text of each stream: ``{"source 0": "source 0", "context bert": "source 0"}``."""
    max_tokens: int | None = None
    """Longest sequence, in tokens without begin and end; longer ones are cut and counted. Null: any."""
    splits: tuple[Split, ...] = ("train", "dev")
    """Splits to encode."""


class EncodeInputs(Inputs[T]):
    """A corpus, and the tokenizer of each stream."""

    corpus: T
    tokenizers: Mapping[str, T] = field(default_factory=dict)


class CorpusInputs(Inputs[T]):
    """A corpus."""

    corpus: T


class TokenizedInputs(CorpusInputs[T]):
    """A corpus and a tokenizer."""

    tokenizer: T


CORPUS = StageKind(
    "nlgraft.stages.run.text_stages:write_examples",
    CorpusSettings,
    NoInputs,
    check="nlgraft.stages.kind_checks:corpora",
)
TEXT = StageKind(
    "nlgraft.stages.run.text_stages:write_text",
    TextSettings,
    NoInputs,
    check="nlgraft.stages.kind_checks:corpora",
)
TOKENIZER = StageKind(
    "nlgraft.stages.run.text_stages:learn_tokenizer",
    TokenizerSettings,
    TokenizerInputs,
    check="nlgraft.stages.kind_checks:tokenizers",
)
ENCODED = StageKind("nlgraft.stages.run.text_stages:encode", EncodeSettings, EncodeInputs)


# What all trainings have.


TrainT = TypeVar("TrainT", bound=TrainConfig)


class TrainingSettings(Settings, Generic[TrainT]):
    """Settings of a training."""

    train: TrainT
    """Length, learning rate, and which weights are the result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the model's layers, and its width; None if an input provides the model."""
        return None

    def further_inputs(self) -> Mapping[str, Stage]:
        """Name the stage that measures the precision, if one is to be measured.

        As a stage, the choice is made once and recorded with host and rates: hosts that would choose
        differently cannot mix precisions under one fingerprint, and arms that are compared have the same.
        """
        if self.train.precision != "auto":
            return {}
        return {PRECISION_INPUT: PRECISION.stage("precision", NoSettings(), NoInputs())}

    def work(self, inputs: Mapping[str, Stage]) -> Work:
        """Estimate the work from the model's size; its output layer has the tokenizer's vocabulary."""
        size = None
        if self.layers is not None:
            # The output layer has a row for each token of the largest vocabulary.
            parameters, width = self.layers
            size = parameters + width * max(map(_vocab_size, inputs.values()), default=0)
        return Work(self.train.max_steps, self.train.tokens_per_step, size)


def _vocab_size(stage: Stage) -> int:
    """Size of the vocabulary that a stage learns; 0 if it learns none."""
    settings = stage.config.get("tokenizer")
    return settings.get("vocab_size", 0) if isinstance(settings, dict) else 0


# The measured choice of a precision: a stage without settings, so one choice for all that a store holds.


PRECISION = StageKind(
    "nlgraft.stages.run.context_stages:choose",
    NoSettings,
    NoInputs,
    workers="share",
)


# Our own language models.


class LanguageModelSettings(TrainingSettings[TrainConfig]):
    """One pretraining of a left-to-right or a two-tower language model."""

    model: LanguageModelConfig
    """The architecture; its vocabulary is that of the text."""
    stream: str
    """Stream of the encoded text."""
    role: str
    """Role of that stream's text in the corpus."""
    max_tokens: int | None
    """Longest encoded line; lines of this length may have been truncated and are left out per character."""
    metric_prefix: str
    """Prefix of all metrics, e.g. ``lm``; empty for a model that is the trial's result."""

    @property
    def layers(self) -> tuple[int, int]:
        """Weights of the layers of ``model``, and its width."""
        return self.model.num_layer_parameters, self.model.d_model


class UntrainedLanguageModelSettings(Settings):
    """A language model with random weights: the control of a pretrained one."""

    model: LanguageModelConfig
    """The architecture; its vocabulary is that of the text."""
    stream: str
    """Stream of the encoded text."""


class LanguageModelInputs(Inputs[T]):
    """Encoded text and the corpus from which it was made."""

    encoded: T
    corpus: T


class TrainLanguageModelInputs(LanguageModelInputs[T]):
    """The same with its tokenizer, and the model to start from, also one after an exchange."""

    tokenizer: T
    start: T | None = None


LANGUAGE_MODEL = StageKind(
    "nlgraft.stages.run.language_model_stages:train",
    LanguageModelSettings,
    LanguageModelInputs,
    workers="train",
)
UNTRAINED_LANGUAGE_MODEL = StageKind(
    "nlgraft.stages.run.language_model_stages:write_untrained",
    UntrainedLanguageModelSettings,
    LanguageModelInputs,
)


# Exchange of a model's vocabulary.
#
# A plan says where each new row comes from. It is made by a method of ``nlgraft.vocab.methods``, or by any
# other stage that writes ``plan-encoder`` and ``plan-decoder`` as ``TransferPlan.save`` does. A model with
# one table for all has the side `SIDE` alone.


SIDE = "encoder"
"""The side of a model with one table for all, such as a masked language model."""


class VectorSettings(Settings):
    """Vectors of the tokens of some vocabularies, learned from training text; as wide as the model."""

    kind: VectorKind
    """Predict the context of a token, or a token from its context."""
    vectors: VectorsConfig
    """Passes over the text and batch size."""
    streams: Mapping[str, str]
    """Stream of encoded text of each side."""


class VectorInputs(Inputs[T]):
    """Encoded text, the tokenizer of each side, and the model whose width counts."""

    encoded: T
    tokenizers: Mapping[str, T]
    model: T


class PlanSettings(Settings):
    """Rows of the new vocabularies of some sides."""

    method: str
    """Name of a method of ``nlgraft.vocab.methods``."""
    cap: int | None = None
    """Largest number of similar tokens of a token, for methods that use them; null: all."""
    # Constants: fingerprints of stored plans hold them.
    norm_match: Literal["none"] = "none"
    order: Literal["id"] = "id"
    streams: Mapping[str, str] = {}


class PlanInputs(Inputs[T]):
    """The model, its tokenizers and the new ones by side, and what some methods read.

    ``donor`` is a model with one table that has the new tokens, with its tokenizer.
    """

    model: T
    old: Mapping[str, T]
    new: Mapping[str, T]
    new_vectors: T | None = None
    old_vectors: T | None = None
    donor: T | None = None
    donor_tokenizer: T | None = None


class ExchangeInputs(Inputs[T]):
    """A model, ours or of transformers, and the plan of each side whose vocabulary is exchanged."""

    model: T
    plans: T


VECTORS = StageKind("nlgraft.stages.run.exchange_stages:learn_token_vectors", VectorSettings, VectorInputs)
PLAN = StageKind("nlgraft.stages.run.exchange_stages:plan", PlanSettings, PlanInputs, version=2)
EXCHANGE = StageKind("nlgraft.stages.run.exchange_stages:exchange", NoSettings, ExchangeInputs)


def transfer_plan(
    model: Stage,
    old: Mapping[str, Stage],
    new: Mapping[str, Stage],
    method: str,
    *,
    seed: int,
    cap: int | None = None,
    vectors: Callable[[VectorKind, str], Stage] | None = None,
    donor: Stage | None = None,
    donor_tokenizer: Stage | None = None,
) -> Stage:
    """Plan the rows of new vocabularies by a method that needs no training; inputs as in ``PlanInputs``.

    Args:
        model: The model.
        old: Its tokenizers, by side.
        new: The new ones, by side.
        method: Name of a method of ``nlgraft.vocab.methods``.
        seed: Seed of what it draws.
        cap: Largest number of similar tokens of a token; None: all.
        vectors: Learns vectors of a kind for the ``new`` or the ``old`` tokens, if the method needs them.
        donor: Model that has the new tokens, if the method needs one.
        donor_tokenizer: Its tokenizer.
    """
    kind, ages = VECTOR_METHODS.get(method, ("skipgram", ()))
    learned = {}
    if ages:
        assert vectors is not None, "the system says how they are learned"
        learned = {f"{age}_vectors": vectors(kind, age) for age in ages}
    inputs = PlanInputs(
        model=model, old=old, new=new, donor=donor, donor_tokenizer=donor_tokenizer, **learned
    )
    return PLAN.stage("transfer_plan", PlanSettings(method=method, cap=cap), inputs, seed=seed)


def exchanged(model: Stage, plans: Stage) -> Stage:
    """Exchange the vocabularies of a model as planned."""
    return EXCHANGE.stage("transfer", NoSettings(), ExchangeInputs(model=model, plans=plans))
