"""Settings of the example. No torch here: a study is read with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nlgraft.basics.strict_config import StrictConfig
from nlgraft.nn.model_config import ArchitectureConfig, BeamSearchConfig
from nlgraft.stages.config_parts import DevLossTrainConfig, ScoreConfig
from nlgraft.text.corpus_config import CorpusConfig, requires
from nlgraft.text.tokenizer_config import SampledTokenizerConfig

SOURCES = {"first": ("source 0",), "second": ("source 1",), "both": ("source 0", "source 1")}
"""Streams of the corpus that each value of `read` selects."""


class Config(StrictConfig):
    """A trial: train a translation model on one or two source languages, and test it."""

    data: Annotated[CorpusConfig, requires("source 0", "source 1", "target")]
    """Examples with two sources and a target."""
    tokenizer: SampledTokenizerConfig = SampledTokenizerConfig()
    """One vocabulary for all three languages, or one for the sources and another for the target."""
    max_tokens: int = Field(default=256, ge=1)
    """Maximum length in tokens, without begin and end; longer sequences are truncated and counted."""
    read: Literal["first", "second", "both"] = "both"
    """Which sources the model reads; two are encoded jointly, as one sequence."""
    model: ArchitectureConfig = ArchitectureConfig()
    """Architecture of the encoder-decoder."""
    train: DevLossTrainConfig = DevLossTrainConfig()
    """Optimisation, batches and evaluation."""
    decode: BeamSearchConfig = BeamSearchConfig()
    """Beam search."""
    score: ScoreConfig = ScoreConfig()
    """Metrics of the output."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Streams of the corpus that the model reads."""
        return SOURCES[self.read]
