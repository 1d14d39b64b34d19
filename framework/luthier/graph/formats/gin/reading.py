"""Gin files read: over a graph, or to a graph of their own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from luthier.errors import BadInput, Problem
from luthier.graph.formats.gin.lookup import Lookup
from luthier.graph.formats.gin.overlay import Overlay
from luthier.graph.formats.gin.statements import Unit, read_file, read_text
from luthier.graph.grammar import calls
from luthier.graph.grammar.statements import GIN
from luthier.graph.grammar.unreadable import Unreadable

_FILE, _BINDINGS, _SEARCH_PATHS, _SKIP_UNKNOWN = GIN
_FALSE = ("", "false", "0", "no")


def from_gin(text: str, packages: Sequence[str] = (), source: str = "config.gin") -> Any:
    """Return the graph that a gin file describes.

    Args:
      text: What `to_gin` wrote; or any gin file with a line `# luthier: root @Name()`.
      packages: The user's own packages that it may name (`[tool.luthier] packages`).
      source: What the text was read from; with the line, it becomes the origin of every value.

    Returns:
      The graph. What `to_gin` wrote becomes an equal one, with its sharing and tags.

    Raises:
      BadInput: The text cannot be read, or names what may not be imported or does not exist; all
        of it is told at once.
    """
    unit = Unit()
    read_text(unit, text, source)
    overlay = Overlay(unit, packages)
    if overlay.said.root is None:
        remedy = "add a line `# luthier: root @Name()`, or name the root with --gin_root"
        problem = Problem(f"{source} does not say what it describes", remedy=remedy)
        raise BadInput([*overlay.problems, problem])
    root, where = overlay.said.root
    return overlay.make(root, where)


def make_root(name: str, overrides: Sequence[Any], packages: Sequence[str] = ()) -> fdl.Config:
    """Return a node of a class, for gin files to configure.

    Args:
      name: The class or function; the end of its dotted name is enough where a file imports it.
      overrides: The words of the command line: what their gin files import is imported.
      packages: The user's own packages.

    Raises:
      BadInput: There is nothing of this name.
    """
    words = [word for word in overrides if isinstance(word, str) and word.startswith(GIN)]
    unit = unit_of([(word, word) for word in words], search_paths(words))
    lookup = Lookup(packages)
    lookup.import_all(unit.imports, skip=True)  # what is wrong with them is told when they apply
    try:
        return calls.make_node(lookup.configurable(name), fdl.Config)
    except Unreadable as error:
        raise BadInput(dataclasses.replace(error.problem, origin="--gin_root")) from None


def apply_words(
    graph: Any,
    words: Sequence[tuple[str, str]],
    every: Sequence[str],
    packages: Sequence[str] = (),
) -> Any:
    """Apply the words of gin that stand together among the overrides, in place.

    Args:
      graph: A node.
      words: (`gin_file:a.gin` and the like, its origin).
      every: All words of gin among the overrides: search paths and `gin_skip_unknown:` are for all.
      packages: The user's own packages.

    Returns:
      The graph.

    Raises:
      BadInput: All that is wrong, with file and line.
    """
    skip = [word.partition(":")[2].strip() for word in every if word.startswith(_SKIP_UNKNOWN)]
    skip_unknown = any(value.lower() not in _FALSE for value in skip)
    unit = unit_of(words, search_paths(every))
    return Overlay(unit, packages, skip_unknown).apply(graph)


def files_of(words: Sequence[str]) -> dict[str, str]:
    """Return the files that words of gin read, included ones too, and their texts.

    Args:
      words: Overrides; those that are no words of gin count for nothing.
    """
    own = [word for word in words if word.startswith(GIN)]
    return unit_of([(word, word) for word in own], search_paths(own)).files


def search_paths(words: Sequence[str]) -> list[str]:
    """Return the folders that words of gin name, in their order."""
    given = [word.removeprefix(_SEARCH_PATHS) for word in words if word.startswith(_SEARCH_PATHS)]
    return [path.strip() for paths in given for path in paths.split(",") if path.strip()]


def unit_of(words: Sequence[tuple[str, str]], paths: Sequence[str]) -> Unit:
    """Return the statements of words of gin.

    Args:
      words: (word, origin).
      paths: The folders in which files are looked for.
    """
    unit = Unit()
    for word, where in words:
        kind, _, text = word.partition(":")
        if f"{kind}:" == _FILE:
            read_file(unit, text.strip(), paths, where)
        elif f"{kind}:" == _BINDINGS:
            read_text(unit, text.strip(), where, paths, is_word=True)
    return unit
