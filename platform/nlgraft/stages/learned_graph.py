"""The piece of a stage graph that scores translations by the learned metrics of a study, without torch."""

from __future__ import annotations

from collections.abc import Mapping

from nlgraft.basics.errors import DataError
from nlgraft.nn.identity import checkpoint_identity
from nlgraft.pipeline.stage import Stage
from nlgraft.stages.config_parts import ScoreConfig
from nlgraft.stages.kinds.learned_kinds import LEARNED_SCORE, LearnedScoreInputs, LearnedScoreSettings
from nlgraft.text.files import expand


def learned_scores(score: ScoreConfig, corpus: Stage, translations: Mapping[str, Stage]) -> dict[str, Stage]:
    """Score translations by each learned metric, in a stage of its own: ``further`` stages of the scores.

    Raises:
        DataError: A checkpoint is no directory.
    """
    score_stages = {}
    for name, config in score.learned.items():
        if config.checkpoint is not None and not expand(config.checkpoint).is_dir():
            raise DataError(
                f"score.learned.{name}.checkpoint: {config.checkpoint} is no directory; download the "
                "metric's checkpoint and give its folder"
            )
        settings = LearnedScoreSettings(
            name=name,
            metric=config.metric,
            version=config.version,
            options=config.options,
            content=None if config.checkpoint is None else checkpoint_identity(config.checkpoint),
        )
        score_stages[f"learned_{name}"] = LEARNED_SCORE.stage(
            f"learned_{name}",
            settings,
            LearnedScoreInputs(corpus=corpus, translations=translations),
            locations={} if config.checkpoint is None else {"checkpoint": config.checkpoint},
        )
    return score_stages
