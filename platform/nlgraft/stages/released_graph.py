"""Pieces of stage graphs that read released checkpoints, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from nlgraft.basics.errors import DataError
from nlgraft.nn.checkpoint_files import HUB_NAME, LanguagePlace, Reader, checkpoint_identity, language_place
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.stage_kind import Inputs, NoInputs, Settings, StageKind, T
from nlgraft.stages.text_graph import TARGET
from nlgraft.text.corpus_config import EOS
from nlgraft.text.files import expand, read_json
from nlgraft.training.train_config import Side, View

_DEFAULT_POSITIONS = 512


def checkpoint_settings(checkpoint: str | None, revision: str | None) -> CheckpointSettings | None:
    """Identify a released model: the digests of a directory's files, name and revision of one on the hub.

    Raises:
        DataError: A local directory is given a revision.
    """
    if checkpoint is None:
        return None
    identity = checkpoint_identity(checkpoint)
    if not expand(checkpoint).is_dir():
        return CheckpointSettings(content=identity | {"revision": revision or "main"})
    if revision is not None:
        raise DataError(
            f"checkpoint {checkpoint} is a directory, and its revision is {revision!r}: a directory has no "
            "revisions; leave it out"
        )
    return CheckpointSettings(content=identity)


@dataclass(frozen=True)
class Released:
    """A released checkpoint, for the stages that read it.

    Attributes:
        settings: Its identity.
        locations: Where it lies and, for its checks, how it will be read.
    """

    settings: CheckpointSettings
    locations: dict[str, str]

    @property
    def language_place(self) -> LanguagePlace:
        """Where its lines have the token of their language."""
        return language_place(Path(self.locations["checkpoint"]))

    def start_id(self, language: int | str) -> int | str:
        """Choose the token with which a target begins: BOS where lines begin with a language, else that."""
        return MBART_BOS if self.language_place == "first" else language

    def tokenizer(
        self,
        name: str,
        languages: tuple[str, ...] = (),
        symbols: tuple[str, ...] = (),
    ) -> Stage:
        """Renumber its tokenizer as this project's own are, with languages and symbols after the mask."""
        content = self.settings.content
        settings = ReleasedTokenizerSettings(content=content, languages=languages, symbols=symbols)
        kind = BERT_TOKENIZER if self.locations["read_as"] == "bert" else MBART_TOKENIZER
        return kind.stage(name, settings, NoInputs(), locations=self.locations)

    def tokenizers(self, languages: tuple[str, ...] = ()) -> dict[str, Stage]:
        """Renumber the tokenizers of a source and a target: an OPUS-MT has two, the others share one."""
        streams = ("source 0", TARGET)
        if self.locations["read_as"] != "marian":
            return dict.fromkeys(streams, self.tokenizer("upstream_shared_tokenizer", languages))
        sides: tuple[MarianSide, ...] = ("source", "target")
        return {
            stream: MARIAN_TOKENIZER.stage(
                f"upstream_{side}_tokenizer",
                MarianTokenizerSettings(content=self.settings.content, side=side),
                NoInputs(),
                locations=self.locations,
            )
            for stream, side in zip(streams, sides, strict=True)
        }

    def masked_lm(self, name: str, tokenizer: Stage) -> Stage:
        """Convert a BERT into our masked language model."""
        inputs = ReleasedInputs(tokenizer=tokenizer)
        return BERT_MASKED_LM.stage(name, self.settings, inputs, locations=self.locations)

    def architecture(self) -> Stage:
        """Describe an encoder-decoder of a BERT's sizes, for a model without pretraining."""
        name = "checkpoint_architecture"
        return BERT_ARCHITECTURE.stage(name, self.settings, NoInputs(), locations=self.locations)

    def encoder_decoder(
        self,
        name: str,
        tokenizer: Stage,
        start_id: int | str | None,
        language_ids: tuple[int | str, ...],
    ) -> Stage:
        """Convert an encoder-decoder; ``start_id`` and ``language_ids`` as in ``MbartSettings``."""
        content = self.settings.content
        settings = MbartSettings(content=content, start_id=start_id, language_ids=language_ids)
        return MBART.stage(name, settings, ReleasedInputs(tokenizer=tokenizer), locations=self.locations)


def language_view(
    sources: Mapping[str, int],
    target_id: int,
    place: LanguagePlace,
) -> View:
    """Describe batches of lines that name their language.

    Args:
        sources: Id of the language of each source, by stream.
        target_id: Id of the target's language.
        place: Where the language token stands. last: it ends sources and begins the target; first: it begins
            sources, and follows the end of a sentence in targets.
    """
    if place == "first":
        sides = tuple(Side(stream=stream, prefix=(language_id,)) for stream, language_id in sources.items())
        return View(sources=sides, target=Side(stream=TARGET, prefix=(target_id,)), target_start=EOS)
    sides = tuple(Side(stream=stream, suffix=(EOS, language_id)) for stream, language_id in sources.items())
    return View(sources=sides, target_start=target_id)


def released(
    checkpoint: str,
    revision: str | None,
    *,
    read_as: Reader,
    max_tokens: int,
) -> Released:
    """Identify a checkpoint by the bytes of its files, or by its name on the hub.

    Args:
        checkpoint: A directory, or the hub name of a BERT.
        revision: Commit, tag or branch of a hub name; None: main.
        read_as: What it becomes.
        max_tokens: Longest text of the study without begin and end.

    Raises:
        DataError: There is no such directory, it is given a revision, or its positions are too few.
    """
    directory = expand(checkpoint)
    # Only a BERT is read from the hub itself; the others are converted from their files.
    is_bert = read_as == "bert"
    is_hub_name = not directory.is_dir() and is_bert and HUB_NAME.fullmatch(checkpoint)
    if not directory.is_dir() and not is_hub_name:
        also = " and no name on the Hugging Face hub" if is_bert else ""
        raise DataError(
            f"upstream.checkpoint is {checkpoint!r}, which is no directory{also}; download the checkpoint"
        )
    settings = checkpoint_settings(checkpoint, revision)
    assert settings is not None
    if is_bert and not is_hub_name:
        _check_positions(directory, max_tokens)
    # Absolute, since a stage may run in another working directory.
    where = {"checkpoint": checkpoint if is_hub_name else str(directory)}
    return Released(settings, where | {"read_as": read_as})


def _check_positions(directory: Path, max_tokens: int) -> None:
    try:
        settings = read_json(directory / "config.json")
        # Begin and end take two positions.
        room = settings.get("max_position_embeddings", _DEFAULT_POSITIONS) - 2
    except (ValueError, TypeError) as error:
        raise DataError(
            f"upstream.checkpoint {directory}: config.json cannot be read ({error}); it stands beside the "
            "weights of every checkpoint"
        ) from error
    if max_tokens > room:
        raise DataError(
            f"data.max_tokens is {max_tokens}, but upstream.checkpoint {directory} has room for {room} "
            f"tokens beside begin and end; set data.max_tokens to at most {room}"
        )


# Released checkpoints: their identity as settings, and the kinds of stages that make them models of ours.


class CheckpointSettings(Settings):
    """A released model. Where it lies is among the stage's locations, as ``checkpoint``."""

    content: dict[str, Any]
    """Digests of its files, or its name and ``revision`` on the hub."""

    @property
    def revision(self) -> str | None:
        """Revision of a hub name; None for a directory."""
        return self.content.get("revision")


MBART_BOS, MBART_EOS = 0, 2
"""An mBART's ids of the begin and the end of a sentence; those of its relatives with languages, too."""


class ReleasedTokenizerSettings(CheckpointSettings):
    """The tokenizer of a released model."""

    languages: tuple[str, ...] = ()
    """Special tokens of languages that follow the mask, e.g. ``<de>``."""
    symbols: tuple[str, ...] = ()
    """Strings that become one piece each, after the languages, and that decoding keeps; their rows are copies
    of the checkpoint's end of a sentence."""


MarianSide = Literal["source", "target"]


class MarianTokenizerSettings(CheckpointSettings):
    """The tokenizer of one side of an OPUS-MT; both number their tokens alike."""

    side: MarianSide
    """Whose pieces text is cut into."""


class MbartSettings(CheckpointSettings):
    """A released encoder-decoder."""

    start_id: int | str | None = None
    """Its own id of the token, or the language, that becomes the begin of a target; null: as in its
    config.json."""
    language_ids: tuple[int | str, ...] = ()
    """The languages whose tokens follow the mask, and symbols, in their order, by its own id or its name."""


class ReleasedInputs(Inputs[T]):
    """The checkpoint's tokenizer, renumbered."""

    tokenizer: T


CHECKPOINTS = "nlgraft.stages.kind_checks:checkpoints"
"""The check of all kinds of stages that read a released checkpoint."""

MBART_TOKENIZER = StageKind(
    "nlgraft.stages.run.released_stages:renumber_tokenizer",
    ReleasedTokenizerSettings,
    NoInputs,
    check=CHECKPOINTS,
)
MARIAN_TOKENIZER = StageKind(
    "nlgraft.stages.run.released_stages:renumber_marian_tokenizer",
    MarianTokenizerSettings,
    NoInputs,
    version=2,
    check=CHECKPOINTS,
)
MBART = StageKind(
    "nlgraft.stages.run.released_stages:read_checkpoint",
    MbartSettings,
    ReleasedInputs,
    keeps="weights",
    check=CHECKPOINTS,
)
BERT_TOKENIZER = StageKind(
    "nlgraft.stages.run.released_stages:renumber_bert_tokenizer",
    ReleasedTokenizerSettings,
    NoInputs,
    check=CHECKPOINTS,
)
BERT_MASKED_LM = StageKind(
    "nlgraft.stages.run.released_stages:read_encoder",
    CheckpointSettings,
    ReleasedInputs,
    keeps="weights",
    check=CHECKPOINTS,
)
BERT_ARCHITECTURE = StageKind(
    "nlgraft.stages.run.released_stages:read_architecture", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
