"""Token ids of batches, looked at on the host: a table has no rows beyond its vocabulary.

On a device such an id is no error: it reads a NaN or, below zero, a row from the table's end.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from luthier.errors import BadInput, Problem


def vocabulary(experiment: Any) -> int | None:
    """Return how many tokens the model of an experiment knows; None where it knows none.

    Args:
      experiment: A built experiment.
    """
    size = getattr(experiment.model, "keywords", {}).get("vocab_size")
    return size if isinstance(size, int) else None


def check_token_ids(
    rows: Mapping[str, np.ndarray], vocab_size: int | None, path: str = "data"
) -> None:
    """Refuse a batch with a token that is outside the vocabulary.

    Looked at are the entries of integers that are called `inputs` and `targets`, or end so; targets
    count where `weights` of their shape are not 0.

    Args:
      rows: The entries of a batch, [rows, ...] each.
      vocab_size: Tokens that the model knows; None looks at nothing.
      path: Where the data stands in the graph.

    Raises:
      BadInput: There is one; the first of each entry is named by its row and position.
    """
    if vocab_size is None:
        return
    problems = []
    for name, array in rows.items():
        array = np.asarray(array)
        if not name.endswith(("inputs", "targets")) or array.dtype.kind not in "iu":
            continue
        if not array.size or (array.min() >= 0 and array.max() < vocab_size):
            continue
        wrong = (array < 0) | (array >= vocab_size)
        if name.endswith("targets"):
            weights = rows.get(name.replace("targets", "weights"))
            if weights is None or np.shape(weights) != array.shape:
                continue
            wrong &= np.asarray(weights) != 0
        if wrong.any():
            row, *place = map(int, np.argwhere(wrong)[0])
            at = f", position {', '.join(map(str, place))}," if place else ""
            what = f"row {row} of a batch{at} holds the token {array[(row, *place)]} in {name}"
            remedy = f"the model's vocabulary has the ids 0 to {vocab_size - 1}"
            problems.append(Problem(what, path, remedy=f"{remedy}: set model.vocab_size"))
    if problems:
        raise BadInput(problems)
