"""Extension points of the override grammar for gin and ConfigDict: statements, keys, arguments.

The grammar itself does not know gin or ConfigDict. A front end registers its additions when
`luthier.graph` is imported, and is called for its own overrides.
"""
# Registration instead of an import keeps the layers acyclic: `formats` builds on overrides, which
# build on this grammar.

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from luthier.graph.paths import Place
from luthier.graph.values import Graph

OnNote = Callable[[str], None]
"""Takes a line for the user about something that was done, but perhaps not as meant."""


def drop_note(note: str) -> None:
    """Drop a note: the default of `OnNote`."""


class ApplyWords(Protocol):
    """Applies neighbouring overrides of one front end."""

    def __call__(
        self,
        graph: Graph,
        words: Sequence[tuple[str, str]],
        every: Sequence[str],
        packages: Sequence[str] = (),
        on_note: OnNote = drop_note,
    ) -> Any:
        """Return the graph with the overrides applied; it may be changed in place.

        Args:
          graph: A node.
          words: The overrides (`gin_file:a.gin`, say), each with its origin.
          every: All overrides of this front end: some count regardless of their position.
          packages: The user's own packages.
          on_note: Takes notes, such as what was skipped.

        Raises:
          BadInput: All problems.
        """


FindPlaces = Callable[[Graph, str, Sequence[Place]], list[Place]]
"""From a graph, a key and all places of the graph to the places that the key stands for."""
ReadArgument = Callable[[str], Any]
"""From the text of an argument of a function to the argument."""

_words: dict[str, ApplyWords] = {}
_keys: dict[str, FindPlaces] = {}
_arguments: list[tuple[Callable[[Any], bool], ReadArgument]] = []


def register_words(selector: str, apply: ApplyWords) -> None:
    """Let a front end apply the statements of a selector (`words of gin`)."""
    _words[selector] = apply


def register_keys(selector: str, find: FindPlaces) -> None:
    """Let a front end find the places of `SELECTOR:KEY`."""
    _keys[selector] = find


def register_argument(admits: Callable[[Any], bool], read: ReadArgument) -> None:
    """Let a front end read texts for arguments whose annotation `admits` accepts."""
    _arguments.append((admits, read))


def words_of(selector: str) -> ApplyWords | None:
    """Return the function that applies a selector's statements; None for the grammar's own."""
    return _words.get(selector)


def keys_of(selector: str) -> FindPlaces | None:
    """Return the function that finds the places of a selector's keys; None if there is none."""
    return _keys.get(selector)


def reader_of(annotation: Any) -> ReadArgument | None:
    """Return the reader of arguments with this annotation; None for the grammar's own."""
    return next((read for admits, read in _arguments if admits(annotation)), None)
