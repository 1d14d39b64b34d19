"""Partial freezing as fiddlers: which parameters are trained, by patterns over their names."""

from __future__ import annotations

import re
from typing import Any

import fiddle as fdl

from luthier import graph, optim
from luthier.errors import BadInput, Problem


def freeze(experiment: fdl.Buildable, pattern: str) -> Any:
    r"""Return an experiment in which some parameters stay as they are; what was frozen stays so.

        luthier show configs.lm.quickstart 'fiddler:freeze("^embedding")' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      pattern: A regular expression, as `re.search` takes it, over names of parameters:
        `^embedding\.`, `^blocks\.`, `norm\.scale$`.

    Raises:
      BadInput: The pattern is no regular expression, or `training.trainable` is a mask of one's
        own, which cannot be narrowed.
    """
    _check(pattern)
    changed = graph.copy_graph(experiment)
    mask = changed.training.trainable
    if mask is None:
        new = fdl.Config(optim.NotMatching, pattern=pattern)
    elif getattr(mask, "__fn_or_cls__", type(mask)) is optim.NotMatching:
        new = fdl.Config(optim.NotMatching, pattern=f"(?:{mask.pattern})|(?:{pattern})")
    elif getattr(mask, "__fn_or_cls__", type(mask)) is optim.Matching:
        kept = f"^(?!.*(?:{pattern})).*(?:{mask.pattern})"
        new = fdl.Config(optim.Matching, pattern=kept)
    else:
        remedy = "give a mask of your own to training.trainable"
        raise BadInput(Problem("cannot be narrowed", "training.trainable", remedy=remedy))
    changed.training.trainable = new
    return changed


def train_only(experiment: fdl.Buildable, pattern: str) -> Any:
    """Return an experiment in which only some parameters are trained.

        luthier show configs.lm.quickstart 'fiddler:train_only("norm")' --changes

    Args:
      experiment: A graph of an experiment; it is not changed.
      pattern: A regular expression, as `re.search` takes it, over names of parameters.

    Raises:
      BadInput: The pattern is no regular expression.
    """
    _check(pattern)
    changed = graph.copy_graph(experiment)
    changed.training.trainable = fdl.Config(optim.Matching, pattern=pattern)
    return changed


def _check(pattern: str) -> None:
    try:
        re.compile(pattern)
    except re.error as error:
        raise BadInput(Problem(f"{pattern!r} is no regular expression: {error}")) from error
