"""Registry of the known model families, by name and by their config.json."""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Mapping
from typing import Any

from luthier.checkpoint.foreign.families.albert import ALBERT
from luthier.checkpoint.foreign.families.bert import BERT
from luthier.checkpoint.foreign.families.gemma import GEMMA, GEMMA2, GEMMA3
from luthier.checkpoint.foreign.families.gpt2 import GPT2
from luthier.checkpoint.foreign.families.llama import LLAMA, MISTRAL
from luthier.checkpoint.foreign.families.mixtral import MIXTRAL, QWEN3_MOE
from luthier.checkpoint.foreign.families.olmo import OLMO2
from luthier.checkpoint.foreign.families.qwen import QWEN2, QWEN3
from luthier.checkpoint.foreign.families.t5 import T5, T5_GATED
from luthier.checkpoint.foreign.families.vit import VIT
from luthier.checkpoint.foreign.family import Family
from luthier.errors import CheckpointError, Problem

_FAMILIES = (
    *(GPT2, LLAMA, MISTRAL, GEMMA, GEMMA2, GEMMA3, QWEN2, QWEN3, OLMO2),
    *(MIXTRAL, QWEN3_MOE),
    *(BERT, ALBERT, T5, T5_GATED, VIT),
)


@functools.cache
def _by_name() -> Mapping[str, Family]:
    return {family.name: family for family in _FAMILIES}


def names() -> list[str]:
    """Return the names of all families."""
    return sorted(_by_name())


def named(name: str) -> Family:
    """Return the map of a family.

    Args:
      name: Its name: `llama`, `gemma2`, ...

    Raises:
      CheckpointError: There is no family of that name.
    """
    if name not in _by_name():
        near = difflib.get_close_matches(name, names(), n=2)
        remedy = f"there are: {', '.join(names())}"
        problem = Problem(f"there is no family {name!r}", "", "", remedy, near)
        raise CheckpointError(problem)
    return _by_name()[name]


def of_config(config: Mapping[str, Any], where: str) -> Family:
    """Return the map for files with a config.json.

    Args:
      config: Its content; `model_type` decides, and the values that kindred families differ in.
      where: The folder, for the message.

    Raises:
      CheckpointError: No family has that type.
    """
    # The first that fits: `config_patterns` of families with one type exclude each other.
    model_type = config.get("model_type")
    for family in _FAMILIES:
        if model_type in family.model_types and all(
            re.match(pattern, str(config.get(key, "")))
            for key, pattern in family.config_patterns.items()
        ):
            return family
    known = ", ".join(sorted({kind for family in _FAMILIES for kind in family.model_types}))
    what = f"config.json of {where} has model_type {model_type!r}, which belongs to no known family"
    raise CheckpointError(Problem(what, remedy=f"known are {known}; or set restore.family"))
