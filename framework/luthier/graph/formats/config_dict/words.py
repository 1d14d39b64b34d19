"""Words of the override grammar: `config_dict:FILE.py[:ARG]` and `config_dict_rename:FILE.toml`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luthier.errors import OverrideError, Problem
from luthier.graph.formats.config_dict.overlay import apply_config_dict
from luthier.graph.formats.config_dict.renames import read_renames

CONFIG, RENAME = "config_dict:", "config_dict_rename:"


def apply_word(graph: Any, word: str, every: Sequence[str], packages: Sequence[str] = ()) -> Any:
    """Return a graph with the ConfigDict that a word names laid over it.

    Args:
      graph: A node; it is not changed.
      word: One of `every`; the tables of renames change nothing by themselves.
      every: All such words, for the renames: they count wherever they stand.
      packages: Modules that texts may name.

    Raises:
      OverrideError: A file cannot be read, or does not fit; all of it is told at once.
    """
    tables = [other.removeprefix(RENAME).strip() for other in every if other.startswith(RENAME)]
    if len(tables) > 1:
        remedy = "write one file with all of them"
        raise OverrideError(Problem("--config_dict_rename is given twice", remedy=remedy))
    if not word.startswith(RENAME):
        file = word.removeprefix(CONFIG).strip()
        return apply_config_dict(graph, file, tables[0] if tables else None, packages)
    if not any(other.startswith(CONFIG) for other in every):
        read_renames(tables[0])
        what = "--config_dict_rename says nothing without --config_dict"
        raise OverrideError(Problem(what, remedy="add --config_dict FILE.py"))
    return graph
