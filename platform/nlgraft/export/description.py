"""What an exported model directory holds, and which stages of a trial that is. Imports no torch."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from nlgraft.basics.errors import DataError, NlgraftError
from nlgraft.basics.strict_config import StrictConfig
from nlgraft.pipeline.integrity import first_problem
from nlgraft.pipeline.stage import Stage, StageGraph
from nlgraft.pipeline.store import ArtifactStore
from nlgraft.stages.masked_lm_graph import ENCODED_WORDS, TRAIN_CLASSIFIER
from nlgraft.stages.seq2seq_graph import LAST_SENTENCE, TRANSLATE
from nlgraft.stages.stage_kind import CORPUS
from nlgraft.text.corpus_config import CorpusConfig
from nlgraft.text.files import refuse_special

DESCRIPTION_FILE = "nlgraft.json"
NATIVE = "nlgraft"
"""Folder of an exported directory with the model and the tokenizers as nlgraft reads them."""
MODEL, BODY, CORPUS_READ = "model", "body", "corpus"
TRANSFORMERS_CONFIG = "config.json"

Task = Literal["translation", "classification", "checkpoint"]
USES = {"translation": "translate", "classification": "classify"}
"""Command that applies a model, by its task; a checkpoint has none."""


class Description(StrictConfig):
    """How a directory's model is used; it names no code, since a directory may come from anybody.

    Attributes:
        task: What it does; a ``checkpoint`` is for transformers alone.
        columns: Roles of the columns of its input.
        joined_by: Separator with which the columns become one source.
        max_source_words: Words of a source that are read, as in the study's corpus.
        settings: Settings of the search.
        tokenizers: Folder of each stream's tokenizer.
        kept_after: Symbol behind whose last occurrence a translation is kept; None: all of it.
        max_tokens: Longest line of a classifier.
        trial: Fingerprint of the trial.
    """

    task: Task
    columns: tuple[str, ...] = ("source 0",)
    joined_by: str | None = None
    max_source_words: int | None = None
    settings: Mapping[str, Any] = {}
    tokenizers: Mapping[str, str] = {}
    kept_after: str | None = None
    max_tokens: int | None = None
    trial: str

    def write(self, directory: Path) -> None:
        """Write it into an exported directory."""
        (directory / DESCRIPTION_FILE).write_text(self.model_dump_json(indent=1) + "\n", "utf-8")

    @classmethod
    def read(cls, directory: Path) -> Description:
        """Read it from an exported directory.

        Raises:
            DataError: There is none, or it is of another version.
        """
        try:
            refuse_special(directory / DESCRIPTION_FILE)
            return cls.model_validate_json((directory / DESCRIPTION_FILE).read_text("utf-8"))
        except (OSError, UnicodeDecodeError, ValidationError) as error:
            reason = first_problem(error) if isinstance(error, ValidationError) else error.args[-1]
            raise DataError(
                f"{directory}: no model that `nlgraft export` of this version wrote ({reason})"
            ) from error


@dataclass(frozen=True)
class ExportSource:
    """What of a trial is exported.

    Attributes:
        description: How it is used.
        stages: Stages whose artifacts are taken, by folder; ``corpus`` is only looked at.
    """

    description: Description
    stages: Mapping[str, Stage]


def export_source(graph: StageGraph, store: ArtifactStore) -> ExportSource:
    """Find the model of a trial, with all that its use needs.

    Raises:
        DataError: The trial has no model that can be used without it.
    """
    result = graph.result
    translation = result.inputs.get("translations/test", result.inputs.get("translations/dev"))
    if translation is not None:
        # One from encoded prompts is that of a causal language model, which transformers loads.
        if "encoded" not in translation.inputs:
            return _translation(translation, graph.fingerprint)
        result = translation
    classifier = result.inputs.get("classifier", result)
    if classifier.run == TRAIN_CLASSIFIER.run:
        return _classification(classifier, graph.fingerprint)
    for stage in (result, *result.inputs.values()):
        manifest = store.manifest(stage)
        if manifest is not None and TRANSFORMERS_CONFIG in manifest.files:
            read = [user.inputs["tokenizer"] for user in (result, stage) if "tokenizer" in user.inputs]
            folders = {"text": "tokenizers/0"} if read else {}
            stages = {MODEL: stage} | dict(zip(folders.values(), read, strict=False))
            return ExportSource(
                Description(task="checkpoint", tokenizers=folders, trial=graph.fingerprint), stages
            )
    raise DataError(
        f"trial {graph.fingerprint[:12]}: no model to take away; its result, {result.name}, has no "
        "translations, classifier or checkpoint of transformers behind it"
    )


def _translation(last: Stage, trial: str) -> ExportSource:
    kept_after = None
    if last.run == LAST_SENTENCE.run:
        kept_after = LAST_SENTENCE.settings_of(last).separator
        last = last.inputs["translation"]
    if last.run != TRANSLATE.run:
        raise DataError(
            f"stage {last.name}: {last.run} changes translations; of such stages an exported model repeats "
            f"{LAST_SENTENCE.run} alone"
        )
    settings = TRANSLATE.settings_of(last)
    stages = {MODEL: last.inputs["model"]}
    folders: dict[str, str] = {}
    for key, stage in last.inputs.items():
        if key.startswith("tokenizers/"):
            shared_folder = next((folder for folder, other in stages.items() if other == stage), None)
            folder = shared_folder if shared_folder not in (None, MODEL) else f"tokenizers/{len(stages) - 1}"
            folders[key.removeprefix("tokenizers/")], stages[folder] = folder, stage
    sides = (*settings.view.sources, *settings.view.contexts.values())
    roles = sorted({settings.streams[side.stream] for side in sides})
    description = Description(
        task="translation",
        settings=dict(last.config),
        tokenizers=folders,
        kept_after=kept_after,
        trial=trial,
        **_source_reading(last.inputs["corpus"], tuple(roles)),
    )
    return ExportSource(description, stages | {CORPUS_READ: last.inputs["corpus"]})


def _source_reading(corpus: Stage, roles: tuple[str, ...]) -> dict[str, Any]:
    """Describe what a study's corpus does to sources before a model reads them."""
    while corpus.run != CORPUS.run and "corpus" in corpus.inputs:
        corpus = corpus.inputs["corpus"]
    if corpus.run != CORPUS.run:
        return {"columns": roles}
    joined_by = CORPUS.settings_of(corpus).joined_by
    place = corpus.locations["corpus"]
    if joined_by is not None:
        read = TypeAdapter(CorpusConfig).validate_json(json.dumps(place)).roles
        roles = tuple(role for role in read if role.startswith("source "))
    return {
        "columns": roles,
        "joined_by": joined_by if len(roles) > 1 else None,
        "max_source_words": place.get("max_source_words"),
    }


def _classification(classifier: Stage, trial: str) -> ExportSource:
    encoded = classifier.inputs["encoded"]
    if encoded.run != ENCODED_WORDS.run:
        raise NlgraftError(f"stage {encoded.name}: encodes lines in an unknown way")
    description = Description(
        task="classification",
        tokenizers={"text": "tokenizers/0"},
        max_tokens=ENCODED_WORDS.settings_of(encoded).max_tokens,
        trial=trial,
    )
    stages = {MODEL: classifier, BODY: classifier.inputs["body"]}
    stages |= {"tokenizers/0": classifier.inputs["tokenizer"], CORPUS_READ: classifier.inputs["corpus"]}
    return ExportSource(description, stages)
