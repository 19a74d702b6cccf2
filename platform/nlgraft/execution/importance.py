"""How much of a good objective each searched setting accounts for: Optuna's PED-ANOVA.

PED-ANOVA (Watanabe et al. 2023) measures how far the values of a setting among the best trials depart from
those among all trials; settings that are searched only under a condition are weighed by how often they
were searched (conditional PED-ANOVA, 2026).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import optuna
from optuna.exceptions import ExperimentalWarning
from optuna.importance import PedAnovaImportanceEvaluator, get_param_importances
from optuna.trial import create_trial

from nlgraft.execution.optuna_study import distribution_of, encoded
from nlgraft.study.data.space import Domain

_BEST = 0.1
_FEWEST_BEST = 5
_MOST = 0.5


def importances(
    space: Mapping[str, Domain],
    direction: Literal["maximize", "minimize"],
    trials: Sequence[tuple[Mapping[str, Any], float]],
) -> dict[str, float]:
    """Compute the importance of each setting for being among the best trials.

    The best are a tenth of the trials, at least five of them, at most half.

    Args:
        space: Domains by path.
        direction: ``maximize`` or ``minimize``.
        trials: Values by path, and the objective, of each finished trial.

    Returns:
        Importances by path, not normalised; empty where all objectives are equal or there are too few. Paths
        that no trial has are missing.
    """
    if len({value for _, value in trials}) < 2:
        return {}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction=direction)
    study.add_trials(
        [
            create_trial(
                value=value,
                params={path: encoded(chosen) for path, chosen in params.items()},
                distributions={path: distribution_of(space[path]) for path in params},
            )
            for params, value in trials
        ]
    )
    share = min(_MOST, max(_BEST, _FEWEST_BEST / len(trials)))
    evaluator = PedAnovaImportanceEvaluator(target_quantile=share)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ExperimentalWarning)  # of values that are not normalised
        return get_param_importances(study, evaluator=evaluator, normalize=False)
