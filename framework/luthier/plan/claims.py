"""Sizes that names claim: `1b`, `125m`, `1.3B`; against the parameters that are counted."""

from __future__ import annotations

import re

FACTOR = 2.0
"""How far a count may be from the size in a name: 1.9 billion may be called 1b, rounded down."""

TWINS = ("-debug", "-tiny")
"""How the names of small twins end: before it stands the name of the whole."""

_SIZE = re.compile(r"(?<![A-Za-z0-9.])(\d+(?:[.p]\d+)?)([mMbB])(?![A-Za-z0-9])")
_SEPARATED = re.compile(r"_(\d)_(\d+[mMbB])(?![A-Za-z0-9])")


def claimed(name: str) -> tuple[str, float] | None:
    """Return the size that a name claims, as it is written and as a number; None without one.

    `llama_7b`, `gpt2-125M` and `lm_1_3b` claim one; `mnist5k`, `7bit` and `100mb` do not, nor do
    names of twins, `llama_7b-tiny`.

    Args:
      name: The name of an experiment or of a recipe.
    """
    if name.endswith(TWINS):
        return None
    found = list(_SIZE.finditer(_SEPARATED.sub(r"_\1.\2", name).replace("_", " ")))
    if len(found) != 1:
        return None  # none, or names of several models, such as a teacher's
    number, unit = found[0].groups()
    return found[0].group(), float(number.replace("p", ".")) * (1e9 if unit in "bB" else 1e6)


def contradiction(name: str, parameters: int) -> str:
    """Return what is wrong with the size that a name claims; nothing where it fits.

    Args:
      name: The name.
      parameters: The scalars that were counted.
    """
    claim = claimed(name)
    if claim is None or claim[1] / FACTOR <= parameters <= claim[1] * FACTOR:
        return ""
    return f"{name!r} says {claim[0]}, but the model has {parameters:,} parameters"
