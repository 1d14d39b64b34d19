"""Which settings mattered, by Optuna's PED-ANOVA: it takes no forest, and well under a second.

Source: Watanabe, Bansal, Hutter, "PED-ANOVA: Efficiently Quantifying Hyperparameter Importance in
Arbitrary Subspaces", IJCAI 2023, arXiv:2304.10255.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.sweep.driver.past import as_direction

FEWEST, MOST = 10, 500
"""Settings that are needed to say anything, and that are looked at."""


def importance(
    told: Sequence[tuple[Mapping[str, Any], Sequence[float]]],
    distributions: Mapping[str, str],
    directions: Sequence[str],
) -> tuple[dict[str, float], int]:
    """Return the share of each dimension in what made settings good, and of how many that is said.

    Args:
      told: What was chosen in each setting that is complete, and its objectives' values.
      distributions: Of the dimensions, as Optuna writes them.
      directions: Of the objectives: `lower` or `higher`.

    Returns:
      Shares by the name of the dimension, the largest first, which sum up to one; none where there
      are fewer than `FEWEST` settings. And the number of settings that were looked at: of more than
      `MOST`, that many at even distances.
    """
    import optuna
    from optuna.distributions import json_to_distribution

    usable = [
        (assignment, values)
        for assignment, values in told
        if assignment and all(map(math.isfinite, values))
    ]
    if len(usable) < FEWEST:
        return {}, len(usable)
    if len(usable) > MOST:
        usable = [usable[i * len(usable) // MOST] for i in range(MOST)]
    known = {name: json_to_distribution(text) for name, text in distributions.items()}
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(directions=[as_direction(found) for found in directions])
    for assignment, values in usable:
        trial = optuna.trial.create_trial(
            params=dict(assignment),
            distributions={name: known[name] for name in assignment},
            values=list(values),
        )
        study.add_trial(trial)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that little is known, which the page says itself
        shares = optuna.importance.get_param_importances(study)
    return {name: float(share) for name, share in shares.items()}, len(usable)
