"""A graph as a read-only document, with what set its values, and its defaults where known."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from typing import Any

import fiddle as fdl

from luthier.errors import Problem, RecordError, UnknownReference
from luthier.graph.compare.changes import Side
from luthier.graph.compare.documents.live import Builder
from luthier.graph.compare.documents.recorded import Reader, of_plain
from luthier.graph.compare.documents.things import Thing
from luthier.graph.edits.origins import origin_of
from luthier.graph.paths import Path, join, parse_path
from luthier.graph.record.reading import read_record
from luthier.graph.record.trail import FORMAT, VERSION


class Document:
    """A graph that can be compared; `document` and `read` make one.

    Args:
      root: The thing at the root.
      title: What it is called.
      detail: More about it on one line.
      graph: The live graph that it was made of; None for a record.
      builder: What made the things of the live graph.
      sets: What set each path, as `record.history` tells it.
    """

    def __init__(
        self,
        root: Thing,
        title: str = "",
        detail: str = "",
        graph: Any = None,
        builder: Builder | None = None,
        sets: Mapping[str, Any] | None = None,
    ):
        self.root, self.title, self.detail, self.graph = root, title, detail, graph
        self._builder = builder
        self._sets = sets or {}

    @property
    def is_live(self) -> bool:
        """Whether it is of a live graph, and not of a record."""
        return self._builder is not None

    @property
    def side(self) -> Side:
        """What it is called, with its fingerprint."""
        return Side(self.title, self.detail, self.fingerprint)

    @functools.cached_property
    def fingerprint(self) -> str:
        """A hash of the content: classes, values, tags and sharing; 16 hexadecimal digits."""
        numbers: dict[int, int] = {}
        digest = hashlib.sha256()

        def write(*content: Any) -> None:
            digest.update(json.dumps(content, default=repr).encode())

        def visit(thing: Thing) -> None:
            if thing.is_shared:
                if id(thing) in numbers:
                    write("again", numbers[id(thing)])
                    return
                numbers[id(thing)] = len(numbers)
            write(thing.content, thing.tags, len(thing.parts))
            parts = thing.parts
            if thing.kind == "dict" or thing.is_node:
                parts = tuple(sorted(parts, key=lambda part: repr(part[0])))
            for part, child in parts:
                write(repr(part))
                visit(child)

        visit(self.root)
        return digest.hexdigest()[:16]

    def defaults(self, thing: Thing) -> Mapping[str, Thing] | None:
        """Return the defaults of a node's class or function; None where they are not known.

        Args:
          thing: A node of this document. Of a record, only the defaults of arguments that are not
            set are known, and those as plain values.
        """
        if self._builder is not None:
            return self._builder.defaults(thing)
        if thing.known is None:
            return None
        return {part: of_plain(plain) for part, plain in thing.known.items()}

    def origin(self, path: str) -> str:
        """Return what set the value at a path; empty where that is not known, and for a default."""
        if self._builder is not None:
            try:
                return origin_of(self.graph, path) if path else ""
            except (UnknownReference, KeyError):
                return ""
        if not self._sets:
            return ""
        try:
            return self._recorded_origin(parse_path(path))
        except (UnknownReference, KeyError):
            return ""

    def _recorded_origin(self, parts: Path) -> str:
        thing, at = self.root, ""
        candidates: list[str] = []
        for part in parts:
            if thing.is_node:
                candidates = []
            if thing.is_shared:
                at = self.first_paths.get(id(thing), at)
            at = join(at, part)
            candidates.append(at)
            thing = thing.by_part[part]
        told = [self._sets.get(path) for path in candidates]
        found = [sets[-1] for sets in told if isinstance(sets, list) and sets and _is_set(sets[-1])]
        return max(found, key=lambda entry: entry["order"])["origin"] if found else ""

    @functools.cached_property
    def first_paths(self) -> dict[int, str]:
        """The first path of everything that can be shared, by the id of its thing."""
        found: dict[int, str] = {}

        def visit(thing: Thing, path: str) -> None:
            if thing.is_shared:
                if id(thing) in found:
                    return
                found[id(thing)] = path
            for part, child in thing.parts:
                visit(child, join(path, part))  # type: ignore[arg-type]

        visit(self.root, "")
        return found


def document(graph: Any, title: str = "", detail: str = "") -> Document:
    """Return a live graph as a document, with its history and its defaults.

    Args:
      graph: A node or value.
      title: What it is called.
      detail: More about it on one line.

    Raises:
      RecordError: The graph goes round in a circle, or is nested too deeply.
    """
    builder = Builder()
    try:
        root = builder.thing(graph)
    except RecursionError:
        raise RecordError(Problem("the graph is nested too deeply")) from None
    live = graph if isinstance(graph, fdl.Buildable) else None
    return Document(root, title, detail, live, builder)


def read(
    text: str, source: str = "config.json", detail: str = "", history: str = "", values: str = ""
) -> Document:
    """Return a record as a document; nothing that it names is imported.

    Args:
      text: What `to_json` wrote: the config.json of a run.
      source: What it was read from; it becomes the title.
      detail: More about it on one line.
      history: The config.history.json beside it, which tells what set each value.
      values: The config.values.json beside it, which holds the defaults that the run had.

    Raises:
      RecordError: One of them cannot be read.
    """
    try:
        root = Reader(source).read(read_record(text, source))
        if values:
            add_known(root, _parsed(values, f"the config.values.json beside {source}"))
    except RecursionError:
        raise RecordError(Problem(f"{source} is nested too deeply")) from None
    return Document(root, source, detail, sets=_sets(history, source) if history else None)


def add_known(root: Thing, values: Any) -> None:
    """Note at every node the defaults that a run had, from the plain values of its graph.

    Args:
      root: The root of a record.
      values: What `record.to_dict` made of the same graph. What does not match is left out.
    """
    noted: set[int] = set()

    def visit(thing: Thing, plain: Any) -> None:
        if id(thing) in noted or thing.is_value_node:
            return
        noted.add(id(thing))
        if isinstance(plain, list) and thing.kind in ("list", "tuple"):
            for (_, child), below in zip(thing.parts, plain, strict=False):
                visit(child, below)
        elif isinstance(plain, dict):
            if thing.is_node:
                left = {key for key in plain if key != "class" and key not in thing.by_part}
                thing.known = {key: plain[key] for key in sorted(left)}
            for part, child in thing.parts:
                if str(part) in plain:
                    visit(child, plain[str(part)])

    visit(root, values)


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise RecordError(Problem(f"{what} is not readable as JSON")) from None


def _sets(text: str, source: str) -> Mapping[str, Any]:
    """Return what set each path; nothing where it cannot be read."""
    data = _parsed(text, f"the config.history.json beside {source}")
    if not isinstance(data, dict) or data.get("format") != FORMAT or data.get("version") != VERSION:
        return {}
    sets = data.get("sets")
    if not isinstance(sets, dict):
        return {}
    return sets


def _is_set(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("origin"), str)
        and type(entry.get("order")) is int
    )
