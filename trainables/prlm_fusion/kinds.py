"""Settings and inputs of the stage that pretrains the study's own language models."""

from __future__ import annotations

from dataclasses import dataclass

from nlgraft.stages.kinds.training_settings import TrainingSettings
from nlgraft.stages.stage_kind import Inputs, StageKind, T
from nlgraft.training.train_config import MaskingConfig, TrainConfig
from trainables.prlm_fusion.config import DistilbertPrlm, ElectraPrlm, PretrainedPrlm


class PretrainSettings(TrainingSettings[TrainConfig]):
    """Pretraining of one language model."""

    prlm: PretrainedPrlm
    """Objective and sizes."""
    masking: MaskingConfig | None
    """Masking; null for left-to-right models, which predict every token."""
    max_tokens: int
    """Maximum length of a line in tokens, without begin and end, for which the model has positions."""

    @property
    def layers(self) -> tuple[int, int] | None:
        """Weights of the layers, and width of the tables; of a student None, for the teacher's count."""
        if isinstance(self.prlm, DistilbertPrlm):
            return None
        weights, width = self.prlm.model.num_layer_parameters, self.prlm.model.d_model
        if isinstance(self.prlm, ElectraPrlm):  # with its generator, of half the width
            return weights * 5 // 4, width * 3 // 2
        return weights, width


@dataclass(frozen=True, kw_only=True)
class PretrainInputs(Inputs[T]):
    """A corpus, its encoded text and tokenizer, and the teacher of a distilled model."""

    corpus: T
    encoded: T
    tokenizer: T
    teacher: T | None = None


PRETRAIN = StageKind(
    "trainables.prlm_fusion.stages.pretraining:pretrain",
    PretrainSettings,
    PretrainInputs,
    version=3,
    is_distributed=True,
)
