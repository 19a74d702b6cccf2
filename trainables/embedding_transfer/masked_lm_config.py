"""What a study says about a masked language model whose vocabulary is exchanged. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, model_validator

from nlgraft.errors import DataError
from nlgraft.nn.config import BertConfig
from nlgraft.nn.identity import checkpoint_identity
from nlgraft.text.config import WordTokenizerConfig
from nlgraft.text.files import InputPathOrName, expand
from nlgraft.training.config import MaskedScoringConfig, MaskingConfig

REPORT_STEPS = (0, 100, 500)
"""Steps of continued training after which the loss is reported, where it is evaluated then: 0 is right after
the exchange."""
EXCHANGING_METHODS = (
    "random_init",
    "mean",
    "hewitt",
    "fvt",
    "wvt",
    "word2vec",
    "reconstruction",
    "focus",
    "wechsel",
    "cbow",
    "avg_eg",
    "att_eg",
    "patt_eg",
)
"""Methods that give a masked language model another vocabulary."""
METHODS = ("pretrain_finetune", *EXCHANGING_METHODS)
"""Methods that a masked language model knows."""


class _Part(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)


class MaskedLMConfig(_Part):
    """A masked language model: what it is, and what is masked."""

    checkpoint: InputPathOrName | None = None
    """Hub name or local directory of a BERT, RoBERTa, DistilBERT or ELECTRA type checkpoint with its
    tokenizer. One without a prediction head gets a fresh one, which upstream training then teaches."""
    revision: str | None = None
    """Commit or tag of a checkpoint on the hub; null: its main branch."""
    model: BertConfig | None = None
    """The model that is trained from scratch instead of a checkpoint; null: the checkpoint."""
    is_body_trained: bool = True
    """Whether upstream training changes the whole model, or only the prediction head."""
    upstream_tokenizer: WordTokenizerConfig | None = None
    """Vocabulary of a model trained from scratch, learned from upstream text; a checkpoint has its own."""
    downstream_tokenizer: WordTokenizerConfig = WordTokenizerConfig()
    """The new vocabulary, learned from downstream text."""
    mask_rate: float = Field(default=0.15, gt=0, lt=1)
    """Share of the words of a sentence that are to be predicted, at least one. A word is what spaces
    separate, so all vocabularies are asked about the same characters."""
    masked: float = Field(default=0.8, ge=0, le=1)
    """Share of a chosen word's tokens that training hides behind the mask; evaluation hides all."""
    replaced: float = Field(default=0.1, ge=0, le=1)
    """Share of them that training replaces by a random token; the rest is left as it is."""
    new_mask_rate: float = Field(default=0.5, ge=0, le=1)
    """Generator training: share of the generated tokens that are hidden and to be predicted; the others are
    read (authors' code)."""
    num_scored_sentences: int | None = Field(default=None, ge=1)
    """Sentences of dev and of test that are scored, upstream and downstream; null: all."""
    num_scoring_rounds: int = Field(default=1, ge=1)
    """Times that each of them is read with other words hidden: 1/mask_rate rounds ask for every word once."""

    def masking(self) -> MaskingConfig:
        """Masks of the training."""
        return MaskingConfig(rate=self.mask_rate, masked=self.masked, replaced=self.replaced)

    def scoring(self) -> MaskedScoringConfig:
        """Masks of the scoring."""
        return MaskedScoringConfig(
            rate=self.mask_rate,
            num_rounds=self.num_scoring_rounds,
            num_lines=self.num_scored_sentences,
        )

    @model_validator(mode="after")
    def _agrees_with_itself(self) -> MaskedLMConfig:
        if (self.checkpoint is None) == (self.model is None):
            given = "both given" if self.model is not None else "both missing"
            raise ValueError(f"checkpoint and model are {given}: name a checkpoint, or say what to train")
        if self.checkpoint is not None and self.upstream_tokenizer is not None:
            raise ValueError(
                "upstream_tokenizer is given, but checkpoint brings its own: leave upstream_tokenizer out"
            )
        if self.model is not None and self.revision is not None:
            raise ValueError("revision is given with model, which has none: it belongs to a checkpoint")
        if self.model is not None and self.upstream_tokenizer is None:
            raise ValueError("model is trained from scratch: say its upstream_tokenizer")
        if self.model is not None and not self.is_body_trained:
            raise ValueError(
                "is_body_trained is false, but model starts from scratch: a body that never learned"
            )
        if self.masked + self.replaced > 1:
            raise ValueError(
                f"masked {self.masked} and replaced {self.replaced} are shares: at most 1 in all"
            )
        return self


def pinned_checkpoint(config: MaskedLMConfig) -> dict[str, Any]:
    """Say what decides the weights of a checkpoint, for fingerprints.

    Args:
        config: With a checkpoint.

    Returns:
        The SHA-256 of each file of a directory, wherever it lies; name and revision of one on the hub.

    Raises:
        DataError: A revision is given for a local directory.
    """
    assert config.checkpoint is not None
    said = checkpoint_identity(config.checkpoint)
    if not expand(config.checkpoint).is_dir():
        return said | {"revision": config.revision or "main"}
    if config.revision is not None:
        raise DataError(
            f"masked_lm.checkpoint {config.checkpoint} is a directory, and masked_lm.revision is "
            f"{config.revision!r}: a directory has no revisions; leave it out"
        )
    return said


def conflicts(config: BaseModel) -> Iterator[str]:
    """Find settings that mean nothing for a masked language model.

    Args:
        config: The system's whole config, with a ``masked_lm`` part.

    Yields:
        A problem for each, naming both settings.
    """
    values, fields = dict(config), type(config).model_fields
    for name in ("tokenizers", "model", "independent", "decode", "score"):
        if values[name] != fields[name].default:
            yield f"masked_lm and {name} are both given: {name} belongs to translation models; leave one out"
    transfer, generator = values["transfer"], values["generator"]
    if transfer.method not in METHODS:
        yield (
            f"transfer.method is {transfer.method} with masked_lm, which knows {', '.join(METHODS)}; "
            "choose one of these, or leave masked_lm out"
        )
    translation_only = [("transfer", transfer, "sides")]
    translation_only += [("generator", generator, name) for name in ("distillation_align", "decoder_rates")]
    translation_only += [("upstream", values["upstream"], "objective")]
    translation_only += [(name, values[name], "num_bleu_sentences") for name in ("upstream", "downstream")]
    for part, given, name in translation_only:
        if getattr(given, name) != type(given).model_fields[name].default:
            yield (
                f"{part}.{name} is {getattr(given, name)} with masked_lm, which has one table and decodes "
                f"nothing; leave {part}.{name} out"
            )
