"""Kinds of stages: typed settings and inputs, shared by a graph and the function that a stage runs.

A kind is declared once::

    class TrainSettings(TrainingSettings):
        model: TransformerConfig | None = None

    class TrainInputs(Inputs[T]):
        encoded: T
        start: T | None = None

    TRAIN = StageKind(
        "nlgraft.stages.run.seq2seq_stages:train", TrainSettings, TrainInputs, is_distributed=True
    )

A graph builds a stage with ``TRAIN.stage("finetuned", TrainSettings(...), TrainInputs(encoded=encoded))``,
whose inputs are stages. The function begins with ``settings, inputs = TRAIN.read(context)``, whose inputs are
the directories of the artifacts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Generic, Literal, TypeVar, dataclass_transform

from nlgraft.basics.errors import ContractError
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.pipeline.stage import Stage, StageContext, Work

T = TypeVar("T")
SettingsT = TypeVar("SettingsT", bound="Settings")
InputsT = TypeVar("InputsT", bound="Inputs[Any]")


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
        is_distributed: Runs on the worker group of a trial with several workers.
        keeps: See ``Stage``.
        check: ``package.module:function`` that looks at the data of its stages before anything runs; None if
            there is nothing to look at.
    """

    run: str
    settings: type[SettingsT]
    inputs: type[InputsT]
    version: int = 1
    is_distributed: bool = False
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
            is_distributed=self.is_distributed,
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
