"""Settings and inputs of the stages that only this system has. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from nlgraft.nn.model_config import LlamaConfig
from nlgraft.stages.kinds.language_model_kinds import TrainLanguageModelInputs
from nlgraft.stages.kinds.released_kinds import CHECKPOINTS, CheckpointSettings
from nlgraft.stages.kinds.text_kinds import CorpusInputs, NoInputs, TokenizedInputs
from nlgraft.stages.kinds.training_settings import TrainingSettings
from nlgraft.stages.stage_kind import Inputs, NoSettings, Settings, StageKind, T
from nlgraft.text.corpus_config import SplitName
from nlgraft.text.tokenizer_config import ByteTokenizerConfig
from trainables.llm_vocabulary.config import LoraConfig, PackedTrainConfig

TEXT = "source 0"
"""Stream of an encoded split, and role of its text."""


class ByteTokenizerSettings(Settings):
    """A byte-level BPE vocabulary that is learned from the training text of a corpus."""

    tokenizer: ByteTokenizerConfig
    """Its size."""


class TrainCausalSettings(TrainingSettings[PackedTrainConfig]):
    """One training of a causal language model: of a fresh Llama, or of the input ``start``."""

    max_tokens: int
    """Predicted tokens of a sequence of packed lines; longest context in scoring."""
    llama: LlamaConfig | None = None
    """A fresh Llama of transformers."""
    new_rows_first_steps: int = 0
    """Number of first steps that train only the new rows of an exchanged vocabulary; needs ``start``."""
    table_lr_multiplier: float = 1.0
    """Factor on the learning rate of tables and output biases."""
    lora: LoraConfig | None = None
    """Adapters, which learn with the new rows alone."""
    metric_prefix: str = ""
    """Prefix of all metrics, e.g. ``upstream``, of a training whose model is not the trial's result."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers, and width, of a fresh model."""
        return None if self.llama is None else (self.llama.num_layer_parameters, self.llama.d_model)


class ScoreCausalSettings(Settings):
    """Losses of a causal language model on one split."""

    split: SplitName
    """Split to score."""
    max_tokens: int
    """Longest context."""
    metric_prefix: str = ""
    """Prefix of all metrics, of text that is not the trial's own."""


@dataclass(frozen=True, kw_only=True)
class ScoreCausalInputs(Inputs[T]):
    """A causal language model, and encoded text with corpus and tokenizer.

    ``further`` are stages whose metrics belong to the trial although nothing reads them.
    """

    model: T
    encoded: T
    corpus: T
    tokenizer: T
    further: Mapping[str, T] = field(default_factory=dict)


class ChangeSettings(Settings):
    """Another size of a vocabulary, with the old ids (extended) or rows (pruned) of what stays."""

    size: int | None
    """Number of tokens that pruning leaves; null: none is dropped."""
    num_added: int | None
    """Number of tokens to add; null: none."""
    min_count: int | None
    """Occurrences that an added token needs."""


@dataclass(frozen=True, kw_only=True)
class MeasureInputs(Inputs[T]):
    """Text in the trial's vocabulary, how it came about, and the trial's model.

    ``plans`` is missing where the vocabulary is the old one.
    """

    corpus: T
    encoded: T
    tokenizer: T
    model: T
    plans: T | None = None


@dataclass(frozen=True, kw_only=True)
class CatchUpInputs(Inputs[T]):
    """The training with the new vocabulary, and that with the old one."""

    trained: T
    reference: T


BYTE_TOKENIZER = StageKind(
    "trainables.llm_vocabulary.stages.text:learn_tokenizer", ByteTokenizerSettings, CorpusInputs
)
ENCODED_LINES = StageKind("trainables.llm_vocabulary.stages.text:encode", NoSettings, TokenizedInputs)
RELEASED_CAUSAL = StageKind(
    "trainables.llm_vocabulary.stages.training:read_released", CheckpointSettings, NoInputs, check=CHECKPOINTS
)
TRAIN_CAUSAL = StageKind(
    "trainables.llm_vocabulary.stages.training:train",
    TrainCausalSettings,
    TrainLanguageModelInputs,
    is_distributed=True,
)
SCORE_CAUSAL = StageKind(
    "trainables.llm_vocabulary.stages.training:score", ScoreCausalSettings, ScoreCausalInputs
)
CHANGE = StageKind("trainables.llm_vocabulary.stages.text:change", ChangeSettings, TokenizedInputs)
MEASURES = StageKind("trainables.llm_vocabulary.stages.measures:measure_text", NoSettings, MeasureInputs)
GENERATION = StageKind("trainables.llm_vocabulary.stages.measures:generate", NoSettings, MeasureInputs)
CATCH_UP = StageKind("trainables.llm_vocabulary.stages.measures:catch_up", NoSettings, CatchUpInputs)
