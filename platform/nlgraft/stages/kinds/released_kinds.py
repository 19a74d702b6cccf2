"""Released checkpoints: their identity as settings, and the kinds of stages that make them models of ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from nlgraft.stages.kinds.text_kinds import NoInputs
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T


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


@dataclass(frozen=True, kw_only=True)
class ReleasedInputs(Inputs[T]):
    """The checkpoint's tokenizer, renumbered."""

    tokenizer: T


CHECKPOINTS = "nlgraft.stages.kind_checks:checkpoints"
"""The check of all kinds of stages that read a released checkpoint."""

MBART_TOKENIZER = StageKind(
    "nlgraft.stages.run.mbart_stages:renumber_tokenizer",
    ReleasedTokenizerSettings,
    NoInputs,
    check=CHECKPOINTS,
)
MARIAN_TOKENIZER = StageKind(
    "nlgraft.stages.run.marian_stages:renumber_tokenizer",
    MarianTokenizerSettings,
    NoInputs,
    version=2,
    check=CHECKPOINTS,
)
MBART = StageKind(
    "nlgraft.stages.run.mbart_stages:read_checkpoint", MbartSettings, ReleasedInputs, check=CHECKPOINTS
)
BERT_TOKENIZER = StageKind(
    "nlgraft.stages.run.bert_stages:renumber_tokenizer",
    ReleasedTokenizerSettings,
    NoInputs,
    check=CHECKPOINTS,
)
BERT_MASKED_LM = StageKind(
    "nlgraft.stages.run.bert_stages:read_encoder", CheckpointSettings, ReleasedInputs, check=CHECKPOINTS
)
BERT_ARCHITECTURE = StageKind(
    "nlgraft.stages.run.bert_stages:read_architecture", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
