"""Settings of a script. Without torch, since reading a study imports this module."""

from __future__ import annotations

import re
import shlex
import warnings
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import lru_cache
from graphlib import CycleError, TopologicalSorter
from typing import Annotated, Any, Literal, TypeVar, cast

from annotated_types import Ge, Le
from pydantic import Field, TypeAdapter, ValidationError, create_model

from nlgraft.basics.errors import ContractError, nearest
from nlgraft.basics.strict_config import Condition, StrictConfig
from nlgraft.pipeline.fingerprint import canonical_json
from nlgraft.study.data.part import Duration
from nlgraft.study.data.system import Metric
from nlgraft.text.files import InputPath

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([^{}]*)\}")
"""A name in braces; doubled braces stand for themselves."""
ITEM = "item."
"""Begins the name of a metric, behind its split, that has a value for each item."""
_Part = TypeVar("_Part", bound=StrictConfig)
Value = int | float | str | bool
_TYPES: Mapping[str, type] = {
    "int": int,
    "float": float,
    "text": str,
    "bool": bool,
}
_RESERVED = ("seed", "settings", "checkpoint")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*")
_SettingName = Annotated[str, Field(pattern=f"^{_NAME.pattern}$")]
_StageName = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_-]*$")]
_MetricName = Annotated[str, Field(pattern=r"^((dev|test)/)?[A-Za-z][A-Za-z0-9_.-]*$")]
_ScoreFile = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_./-]*\.(json|jsonl|csv)$")]


class DataConfig(StrictConfig):
    """The script and what it reads."""

    directory: InputPath
    """Directory of the script. Its files are digested, and copied for each run of a command, which starts in
    the copy; without version control, caches, results of nlgraft and studies of this system."""
    files: dict[str, InputPath] = Field(default={})
    """Files and directories that are read where they are, by name: ``{data.NAME}`` in a command is the path.
    Their content is digested, too."""


class SettingConfig(StrictConfig):
    """A setting of the script."""

    type: Literal["int", "float", "text", "bool"]
    """Type of its values."""
    default: Value | None
    """Value where a study sets none; null: the script's own, the setting is left out of the command."""
    unit: str | None = None
    """Unit of the value."""
    description: str | None = None
    """What it does."""
    min: int | float | None = None
    """Lowest number allowed."""
    max: int | float | None = None
    """Highest number allowed."""
    choices: tuple[Value, ...] = ()
    """Values allowed; none: all of the type."""
    when: dict[str, tuple[Value, ...]] = Field(default={})
    """Other settings and the values they must have for this one to be read; it is left out otherwise."""

    def __hash__(self) -> int:
        return hash(self.model_dump_json())

    @property
    def annotation(self) -> Any:
        """The type of the setting's values, for pydantic."""
        kind: Any = Literal[self.choices] if self.choices else _TYPES[self.type]
        if self.min is not None:
            kind = Annotated[kind, Ge(self.min)]
        if self.max is not None:
            kind = Annotated[kind, Le(self.max)]
        return kind | None if self.default is None else kind

    def _problems(self) -> Iterator[str]:
        try:
            adapter = TypeAdapter[Any](self.annotation)
            adapter.validate_json(canonical_json(self.default), strict=True)
        except ValidationError as error:
            yield f"default: {self.default!r} is refused: {error.errors()[0]['msg'].lower()}"
        except TypeError:
            yield f"min and max are for numbers, not for type {self.type}"


class MetricConfig(StrictConfig):
    """A metric that the script writes."""

    direction: Literal["maximize", "minimize"]
    """Which way is better."""
    unit: str | None = None
    """Unit of the value; null: it is called as the metric is."""
    description: str | None = None
    """What is measured."""
    key: str | None = None
    """Its name in the script's file; null: the same."""


class StageConfig(StrictConfig):
    """One command of a trial."""

    command: str = Field(pattern=r"\S")
    """Command line, split into words as a shell does, and run without one. In braces: a setting's name,
    ``seed``, ``data.NAME``, ``needs.STAGE`` (directory of what that stage kept), ``checkpoint`` (directory
    from which a killed command goes on); ``{settings}`` stands for all settings that no command names."""
    setting: str = "--{name}={value}"
    """How ``{settings}`` writes one of them; white space separates words."""
    needs: tuple[str, ...] = ()
    """Stages whose kept files it reads."""
    code: tuple[str, ...] = ("*",)
    """Patterns of the files of ``data.directory`` that it reads; ``*`` stands for any text, slashes too."""
    environment: dict[str, str] = Field(default={})
    """Variables added to the environment; placeholders as in the command."""
    metrics: tuple[_ScoreFile, ...] = ()
    """Files of metrics that it writes: ``.json`` with one object, ``.jsonl`` with one object a line, reported
    as they come if they have a ``step``, ``.csv`` with the columns item, metric and value."""
    keep: tuple[str, ...] = ()
    """Patterns of the files that it writes and that are kept, for later stages and for you."""
    limit: Duration | None = None
    """Longest time that it may run: seconds, or ``2h30m``; null: no limit."""

    @property
    def placeholders(self) -> set[str]:
        """Names in braces."""
        texts = [self.command, *self.environment.values()]
        return names_in("\n".join(texts))

    def _problems(self) -> Iterator[str]:
        try:
            words = shlex.split(self.command)
        except ValueError as error:
            yield f"command: {error}"
            return
        # They are several words, of which a part of a word cannot consist.
        for word in words:
            if word != "{settings}" and "settings" in names_in(word):
                advice = "write it as a word by itself, without quotes, or name each setting; in a shell: "
                shell = """sh -c 'python train.py "$@"' sh {settings}"""
                yield f"command: {{settings}} stands inside the word {word!r}; {advice}{shell}"
        for name, text in self.environment.items():
            if "settings" in names_in(text):
                yield f"environment.{name}: {{settings}} are words of a command; name each setting here"


class Settings(StrictConfig):
    """Values of the settings that a study declares."""


class Config(StrictConfig):
    """A trial: one or several commands, each run when what it reads has changed."""

    data: DataConfig
    """The script and what it reads."""
    declare: dict[_SettingName, SettingConfig] = Field(default={})
    """Settings of the script, by name."""
    settings: Settings = Settings()
    """Their values; a study varies ``settings.NAME``."""
    metrics: dict[_MetricName, MetricConfig] = Field(min_length=1)
    """Metrics by name. ``dev/`` or ``test/`` before it is the split; ``item.`` behind that means a value for
    each item, from a CSV file."""
    stages: dict[_StageName, StageConfig] = Field(min_length=1)
    """Commands by name, each behind those that it needs."""

    @classmethod
    def declared_by(cls, base: Any) -> tuple[type[Config], dict[str, Metric]]:
        """Return the config class and the metrics of a study; of those that are refused, the names."""
        values = base if isinstance(base, Mapping) else {}
        settings = read_entries(SettingConfig, values.get("declare"))
        metrics: dict[str, Metric] = {}
        for name, metric in read_entries(MetricConfig, values.get("metrics")).items():
            # A guess for one that is refused, so that it makes no other problem.
            direction = "maximize" if "max" in str(values["metrics"][name]) else "minimize"
            metric = metric or MetricConfig(direction=direction)
            split, _, rest = name.rpartition("/")
            metrics[name] = Metric(
                direction=metric.direction,
                unit=metric.unit or rest.removeprefix(ITEM),
                split=cast(Any, split or None),
                description=metric.description or "",
            )
        return _with_settings(tuple(settings.items())), metrics

    def read_by(self, stage: StageConfig) -> dict[str, Value]:
        """Return the values of the settings that a command reads, without those that have no value."""
        values = self.settings.model_dump(mode="json")
        names = {*stage.placeholders}
        if "settings" in names:
            names |= values.keys() - self.named
        return {
            name: values[name]
            for name, setting in self.declare.items()
            if name in names
            and values.get(name) is not None
            and all(values.get(other) in allowed for other, allowed in setting.when.items())
        }

    @property
    def named(self) -> set[str]:
        """Names in braces of all commands."""
        return set().union(*(stage.placeholders for stage in self.stages.values()))

    @property
    def ordered_stages(self) -> list[str]:
        """Names of the stages, each behind those that it needs, in whatever order the study has them.

        Raises:
            CycleError: Stages need each other.
        """
        sorter = TopologicalSorter({name: stage.needs for name, stage in self.stages.items()})
        return [name for name in sorter.static_order() if name in self.stages]

    def _problems(self) -> Iterator[str]:
        declared, misspelt = list(self.declare), list[str]()
        for name in self.declare.keys() & {*_RESERVED}:
            yield f"declare.{name}: the name is taken; give another"
        for name, setting in self.declare.items():
            for other in setting.when.keys() - {*declared}:
                misspelt.append(other)
                yield f"declare.{name}.when: there is no setting {other!r}. {nearest(other, declared)}"
        for name, stage in self.stages.items():
            others = [other for other in self.stages if other != name]
            for other in {*stage.needs} - {*others}:
                yield f"stages.{name}.needs: no stage {other!r} beside it. {nearest(other, others)}"
            allowed = [*declared, *_RESERVED, *(f"data.{file}" for file in self.data.files)]
            allowed += [f"needs.{other}" for other in stage.needs]
            hints = {f"needs.{other}": f"Add {other} to stages.{name}.needs" for other in others}
            for placeholder in sorted(stage.placeholders - {*allowed}):
                misspelt.append(placeholder)
                braces = (
                    f"{nearest(placeholder, allowed)}; braces of the command itself are doubled: {{{{ }}}}"
                )
                hint = hints.get(placeholder, braces)
                yield f"stages.{name}: {{{placeholder}}} stands for nothing. {hint}"
            is_needed = any(name in other.needs for other in self.stages.values())
            if not stage.metrics and not is_needed:
                yield f"stages.{name} writes no metrics (stages.{name}.metrics), and no stage needs it"
        try:
            _ = self.ordered_stages
        except CycleError as error:
            yield f"stages need each other: {' needs '.join(reversed(error.args[1]))}"
        used = self.named
        # A misspelt name may have meant it, or settings.
        if "seed" not in used and not get_close_matches("seed", misspelt):
            yield "no command of stages has {seed}, so all replicates would be one run: give it to the script"
        if misspelt:
            return
        if "settings" not in used and (unread := sorted({*declared} - used)):
            yield f"no command of stages reads {', '.join(unread)}: write {{NAME}} or {{settings}} there"
        for name, stage in self.stages.items():
            values = {*self.read_by(stage), "seed"}
            unset = self.declare.keys() - values
            read: set[str] = set()
            # A word or a variable is left out if a setting in it has no value.
            for text in (*shlex.split(stage.command), *stage.environment.values()):
                if not names_in(text) & unset:
                    read |= names_in(text)
            missing = ", ".join(sorted(stage.placeholders & unset))
            for placeholder in sorted(stage.placeholders & values - read):
                advice = f"{missing}, which has no value; write each as a word by itself"
                yield f"stages.{name}: {{{placeholder}}} is left out with {advice}"


def names_in(text: str) -> set[str]:
    """Return the names in braces of a text."""
    return {match[1] for match in PLACEHOLDER.finditer(text)} - {None}


def read_entries(kind: type[_Part], entries: Any) -> dict[str, _Part | None]:
    """Read parts by name; None for one that is refused, which is reported with the config."""
    parts: dict[str, _Part | None] = {}
    if not isinstance(entries, Mapping):
        return parts
    for name, entry in entries.items():
        try:
            parts[name] = kind.model_validate_json(canonical_json(entry), strict=True)
        except (ValidationError, ContractError):
            parts[name] = None
    return parts


@lru_cache(maxsize=64)
def _with_settings(declared: tuple[tuple[str, SettingConfig | None], ...]) -> type[Config]:
    """Make the config class of a study that declares these settings; the same ones give the same class."""
    fields: dict[str, Any] = {}
    read_when: dict[str, tuple[Condition, ...]] = {}
    for name, setting in declared:
        if setting is not None:
            sentences = [setting.description, setting.unit and f"Unit: {setting.unit}."]
            text = " ".join(filter(None, sentences))
            fields[name] = (setting.annotation, Field(default=setting.default, description=text))
            if setting.when:
                read_when[name] = (setting.when,)
        elif _NAME.fullmatch(name):
            # Of a setting that is refused any value is one; its name may be none.
            fields[name] = (Any, None)
    with warnings.catch_warnings():
        # A setting called copy or json hides a method of pydantic that nothing calls here.
        warnings.simplefilter("ignore", UserWarning)
        part = create_model("Settings", __base__=StrictConfig, **fields)
    part.READ_WHEN = read_when
    return create_model("Config", __base__=Config, settings=(part, part()))
