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
    found = {}
    for name, one in score.learned.items():
        if one.checkpoint is not None and not expand(one.checkpoint).is_dir():
            raise DataError(
                f"score.learned.{name}.checkpoint: {one.checkpoint} is no directory; download the metric's "
                "checkpoint and give its folder"
            )
        settings = LearnedScoreSettings(
            name=name,
            metric=one.metric,
            version=one.version,
            options=one.options,
            content=None if one.checkpoint is None else checkpoint_identity(one.checkpoint),
        )
        found[f"learned_{name}"] = LEARNED_SCORE.stage(
            f"learned_{name}",
            settings,
            LearnedScoreInputs(corpus=corpus, translations=translations),
            locations={} if one.checkpoint is None else {"checkpoint": one.checkpoint},
        )
    return found
