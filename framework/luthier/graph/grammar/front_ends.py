"""What other languages of configuration add to overrides: their words, keys and arguments.

The grammar knows no gin and no ConfigDict. A front end registers what it adds where
`luthier.graph` is put together, and is called when an override is its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from luthier.graph.paths import Place
from luthier.graph.values import Graph


class ApplyWords(Protocol):
    """Applies words of a front end that stand together among the overrides."""

    def __call__(
        self,
        graph: Graph,
        words: Sequence[tuple[str, str]],
        every: Sequence[str],
        packages: Sequence[str] = (),
    ) -> Any:
        """Return the graph with the words applied; it may be changed in place.

        Args:
          graph: A node.
          words: The words (`gin_file:a.gin`, say), each with its origin.
          every: All words of this front end among the overrides: some count wherever they stand.
          packages: The user's own packages.

        Raises:
          BadInput: All that is wrong.
        """


FindPlaces = Callable[[Any, str, Sequence[Place]], list[Place]]
"""From a graph, a key and all places of the graph to the places that the key is about."""
ReadArgument = Callable[[str], Any]
"""From what is written for an argument of a function to the argument."""

_words: dict[str, ApplyWords] = {}
_keys: dict[str, FindPlaces] = {}
_arguments: list[tuple[Callable[[Any], bool], ReadArgument]] = []


def register_words(selector: str, apply: ApplyWords) -> None:
    """Have a front end apply the statements of a selector (`words of gin`)."""
    _words[selector] = apply


def register_keys(selector: str, find: FindPlaces) -> None:
    """Have a front end find the places of `SELECTOR:KEY`."""
    _keys[selector] = find


def register_argument(admits: Callable[[Any], bool], read: ReadArgument) -> None:
    """Have a front end read texts for arguments whose annotation `admits` accepts."""
    _arguments.append((admits, read))


def words_of(selector: str) -> ApplyWords | None:
    """Return what applies the statements of a selector; None where that is the grammar itself."""
    return _words.get(selector)


def keys_of(selector: str) -> FindPlaces | None:
    """Return what finds the places of a selector's keys; None where there is nothing."""
    return _keys.get(selector)


def reader_of(annotation: Any) -> ReadArgument | None:
    """Return what reads an argument of this annotation; None where that is the grammar itself."""
    return next((read for admits, read in _arguments if admits(annotation)), None)
