"""Settings of the example. No torch here: a study is read with it."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from nlgraft.nn.model_config import ArchitectureConfig, BeamSearchConfig
from nlgraft.stages.config_parts import ScoreConfig
from nlgraft.strict_config import StrictConfig
from nlgraft.text.corpus_config import CorpusConfig
from nlgraft.text.roles import requires
from nlgraft.text.tokenizer_config import SampledTokenizerConfig
from nlgraft.training.train_config import SmoothedTrainConfig

SOURCES = {"first": ("source 0",), "second": ("source 1",), "both": ("source 0", "source 1")}
"""Roles of the text that is read."""


class Config(StrictConfig):
    """A trial: train a translation model on one or two source languages, and test it."""

    data: Annotated[CorpusConfig, requires("source 0", "source 1", "target")]
    """Examples with two sources and a target."""
    tokenizer: SampledTokenizerConfig = SampledTokenizerConfig()
    """Vocabulary of all three languages, or one for the sources and one for the target."""
    max_tokens: int = Field(default=256, ge=1)
    """Longest sequence in tokens, without begin and end; longer ones are truncated and counted."""
    read: Literal["first", "second", "both"] = "both"
    """Sources that the model reads; both are encoded as one sequence."""
    model: ArchitectureConfig = ArchitectureConfig()
    """The encoder-decoder."""
    train: SmoothedTrainConfig = SmoothedTrainConfig()
    """Its training."""
    decode: BeamSearchConfig = BeamSearchConfig()
    """Beam search."""
    score: ScoreConfig = ScoreConfig()
    """Measures of the output."""

    @property
    def sources(self) -> tuple[str, ...]:
        """Roles of the text that the model reads."""
        return SOURCES[self.read]
