"""Released checkpoints that become encoder-decoders of ours: settings and inputs of their stages."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import Field

from nlgraft.stages.kinds.masked_lm import CheckpointSettings
from nlgraft.stages.kinds.text import NoInputs
from nlgraft.stages.stage_kind import Inputs, StageKind, T, is_unset

MBART_EOS = 2
"""An mBART's id of the end of a sentence."""


class ReleasedTokenizerSettings(CheckpointSettings):
    """The tokenizer of a released model."""

    languages: tuple[str, ...] = Field(default=(), exclude_if=is_unset)
    """Special tokens of languages that follow the mask, e.g. ``<de>``."""
    symbols: tuple[str, ...] = ()
    """Strings that become one piece each behind the languages, and that decoding keeps; they begin as the
    checkpoint's end of a sentence."""


class MbartSettings(CheckpointSettings):
    """A released mBART."""

    start_id: int | None = None
    """Its own id of the token that starts a target, the language's; null: the one in its config.json."""
    language_ids: tuple[int, ...] = Field(default=(), exclude_if=is_unset)
    """Its own ids of the languages whose tokens follow the mask, and of symbols, in their order."""


@dataclass(frozen=True, kw_only=True)
class ReleasedInputs(Inputs[T]):
    """The checkpoint's tokenizer, renumbered."""

    tokenizer: T


MBART_TOKENIZER = StageKind(
    "nlgraft.stages.run.mbart:renumber_tokenizer", ReleasedTokenizerSettings, NoInputs
)
MBART = StageKind("nlgraft.stages.run.mbart:read_checkpoint", MbartSettings, ReleasedInputs)
BERT_TOKENIZER = StageKind("nlgraft.stages.run.bert:renumber_tokenizer", ReleasedTokenizerSettings, NoInputs)
BERT_MASKED_LM = StageKind("nlgraft.stages.run.bert:read_encoder", CheckpointSettings, ReleasedInputs)
BERT_ARCHITECTURE = StageKind("nlgraft.stages.run.bert:read_architecture", CheckpointSettings, NoInputs)
