"""Masked language models: settings and inputs of the stages of their text, training and scoring."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.nn.model_config import BertConfig, TransformerConfig
from nlgraft.stages.kinds.language_model_kinds import TrainLanguageModelInputs
from nlgraft.stages.kinds.released_kinds import CHECKPOINTS, CheckpointSettings
from nlgraft.stages.kinds.text_kinds import CorpusInputs, NoInputs, TokenizedInputs
from nlgraft.stages.kinds.training_settings import TrainingSettings
from nlgraft.stages.stage_kind import Inputs, Settings, StageKind, T
from nlgraft.text.corpus_config import Split
from nlgraft.text.tokenizer_config import WordSampling, WordTokenizerConfig
from nlgraft.training.train_config import MaskedScoringConfig, MaskingConfig, SmoothingKind, TrainConfig


class WordTokenizerSettings(Settings):
    """A tokenizer that is learned from the training text of a corpus."""

    tokenizer: WordTokenizerConfig
    """Its kind and size."""


class EncodeWordsSettings(Settings):
    """Lines as ids, with the word of each token."""

    max_tokens: int
    """Longest line, in tokens without begin and end; longer ones are cut at a word and counted."""


class TrainMaskedSettings(TrainingSettings[TrainConfig]):
    """One training of a masked language model, from the input ``start`` or one of three kinds of model."""

    label_smoothing: float = 0.0
    """Probability mass taken from the true token."""
    smoothing_kind: SmoothingKind = "uniform_all"
    """Tokens that get that mass."""
    masking: MaskingConfig
    """Unit and rates of masking."""
    scoring: MaskedScoringConfig
    """Dev lines that are scored at every evaluation."""
    bert: BertConfig | None = None
    """A fresh BERT of transformers."""
    encoder: TransformerConfig | None = None
    """A fresh encoder of our Transformer."""
    checkpoint: CheckpointSettings | None = None
    """A released model; missing parameters, such as a prediction head, are initialised at random."""
    max_tokens: int | None = None
    """Longest line that a fresh BERT has positions for, in tokens without begin and end."""
    sampling: WordSampling | None = None
    """Segment the training text anew in every epoch; null: as it is encoded."""
    is_body_trained: bool = True
    """If false, only the prediction head of a released model learns."""
    new_rows_first_steps: int = 0
    """Number of first steps that train only the new rows of an exchanged vocabulary; needs ``start``."""
    report_steps: tuple[int, ...] = ()
    """Steps after which the dev losses are reported as separate metrics, if evaluated then; 0: before
    training."""
    metric_prefix: str = ""
    """Prefix of all metrics, e.g. ``upstream``, of a training whose model is not the trial's result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers, and width, of a fresh model."""
        if self.bert is not None:
            return self.bert.num_layer_parameters, self.bert.d_model
        return None if self.encoder is None else (self.encoder.num_encoder_parameters, self.encoder.d_model)


class BeginMaskedSettings(Settings):
    """A masked language model before any training: a released one, or one with fresh weights."""

    checkpoint: CheckpointSettings | None = None
    """A released model."""
    is_fresh: bool = False
    """If true, only the architecture of the released model is taken, for the vocabulary of ``tokenizer``."""
    bert: BertConfig | None = None
    """A fresh BERT of transformers."""
    max_tokens: int | None = None
    """Longest line that a fresh BERT has positions for, in tokens without begin and end."""


@dataclass(frozen=True, kw_only=True)
class BeginMaskedInputs(Inputs[T]):
    """The tokenizer of the model."""

    tokenizer: T


class ScoreMaskedSettings(Settings):
    """Losses of a masked language model on one split."""

    split: Split
    """Split to score."""
    scoring: MaskedScoringConfig
    """Lines and words that are scored."""


@dataclass(frozen=True, kw_only=True)
class ScoreMaskedInputs(Inputs[T]):
    """A masked language model, encoded text and its tokenizer."""

    model: T
    encoded: T
    tokenizer: T


class Bert2BertSettings(Settings):
    """An encoder-decoder that begins with a masked language model on both sides (Rothe et al. 2020)."""

    model: TransformerConfig | None = None
    """Its architecture; null: that of the masked language model."""


@dataclass(frozen=True, kw_only=True)
class Bert2BertInputs(Inputs[T]):
    """A masked language model on the encoder of our Transformer."""

    masked_lm: T


WORD_TOKENIZER = StageKind("nlgraft.stages.run.masked_text_stages:learn", WordTokenizerSettings, CorpusInputs)
CHECKPOINT_TOKENIZER = StageKind(
    "nlgraft.stages.run.masked_text_stages:copy_tokenizer", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
ENCODED_WORDS = StageKind(
    "nlgraft.stages.run.masked_text_stages:encode", EncodeWordsSettings, TokenizedInputs
)
TRAIN_MASKED = StageKind(
    "nlgraft.stages.run.masked_lm_stages:train",
    TrainMaskedSettings,
    TrainLanguageModelInputs,
    is_distributed=True,
    check=CHECKPOINTS,
)
BEGIN_MASKED = StageKind(
    "nlgraft.stages.run.masked_lm_stages:begin", BeginMaskedSettings, BeginMaskedInputs, check=CHECKPOINTS
)
SCORE_MASKED = StageKind("nlgraft.stages.run.masked_lm_stages:score", ScoreMaskedSettings, ScoreMaskedInputs)
BERT2BERT = StageKind(
    "nlgraft.stages.run.masked_lm_stages:begin_encoder_decoder", Bert2BertSettings, Bert2BertInputs
)
