"""Builds the completion index of an experiment, in a background process."""

from __future__ import annotations

import enum
import importlib
import inspect
import os
import sys
import typing
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from luthier.cli.completion import candidates, index
from luthier.cli.completion.index import LIST, NODE, Entry
from luthier.graph import Graph, entry_points

DTYPES = ("bfloat16", "float16", "float32", "float64")
_WIDTH = 60


def build(reference: str) -> None:
    """Build the index of an experiment, and write it to the cache.

    An experiment that cannot be loaded gets an empty index, so that it is tried again only after
    its file has changed.

    Args:
      reference: The experiment.
    """
    from luthier import graph as graphs
    from luthier import project
    from luthier.cli import experiments

    entries: list[Entry] = []
    try:
        found = project.find()
        graph = experiments.load_reference(reference, found.packages)
        fiddlers = _fiddlers(found.shelves)
        entries = [*_paths(graphs, graph), *_tags_and_classes(graphs, graph), *fiddlers]
    except Exception:
        entries = []  # nobody sees this process; `luthier show` prints the reason
    # Fresh until one of these files changes: the experiment's own, and all modules of the project
    # that it imported. Installed packages are left out, since hashing them at every Tab would take
    # too long; a new version of luthier makes an index stale by its version.
    index.save(reference, dict.fromkeys([*candidates.sources(reference), *_own_files()]), entries)
    index.release(index.name_of(reference))


def _own_files() -> Iterator[str]:
    """Yield the imported files of the project."""
    here = Path.cwd()
    for module in list(sys.modules.values()):
        file = getattr(module, "__file__", None) or ""
        inside = file.endswith(".py") and here in Path(file).parents
        if inside and "site-packages" not in file:
            yield os.path.abspath(file)


def _paths(graphs: Any, graph: Graph) -> Iterator[Entry]:
    from luthier.graph.paths import is_container
    from luthier.graph.values import is_constant

    for place in graphs.walk(graph, unset=True):
        called = place.value.__arguments__.get("name") if is_constant(place.value) else ""
        if called:
            yield Entry("constant", called, _constant(graphs, place.value))
        if is_container(place.value):
            below = LIST if isinstance(place.value, list | tuple) else NODE
            yield Entry("path", place.path, below)
            continue
        text = "not set" if place.value is graphs.UNSET else _shown(graphs, place.value)
        yield Entry("path", place.path, text, tuple(_values(place)))


def _constant(graphs: Any, node: Any) -> str:
    """Return the current value of a constant as text."""
    from luthier.graph.render import text_of

    try:
        return text_of(graphs.evaluate(node))[:_WIDTH]
    except ValueError:
        return "not set"


def _shown(graphs: Any, value: Any) -> str:
    from luthier.graph.render import text_of

    if graphs.is_value_node(value):
        return graphs.expression(value)[:_WIDTH]
    return text_of(value)[:_WIDTH]


def _values(place: Any) -> Iterator[str]:
    """Yield the values that a place can be set to, if its annotation lists them."""
    # `X | Y` and `Union[X, Y]` are different types before Python 3.14; dtypes are annotated
    # loosely, and are recognized by name.
    from luthier.graph import signatures

    if isinstance(place.part, str) and place.part.endswith("dtype"):
        yield from DTYPES
        return
    target = getattr(place.owner, "__fn_or_cls__", type(place.owner))
    hint = signatures.type_hints(target).get(place.part)
    is_union = typing.get_origin(hint) is typing.Union or type(hint).__name__ == "UnionType"
    for member in typing.get_args(hint) if is_union else (hint,):
        if typing.get_origin(member) is typing.Literal:
            yield from map(str, typing.get_args(member))
        elif isinstance(member, type) and issubclass(member, enum.Enum):
            yield from member.__members__
        elif member is bool:
            yield from ("True", "False")
        elif member is type(None):
            yield "None"


def _tags_and_classes(graphs: Any, graph: Graph) -> Iterator[Entry]:
    from luthier.graph.paths import children, is_node

    for place in graphs.walk(graph, defaults=False):
        node = place.value
        if not is_node(node) or graphs.is_value_node(node):
            continue
        for tags in node.__argument_tags__.values():
            yield from (Entry("tag", tag.__name__, inspect.getdoc(tag) or "") for tag in tags)
        name = getattr(node.__fn_or_cls__, "__name__", "")
        yield Entry("class", name, NODE)
        for part, value, _ in children(node, unset=True):
            text = NODE if is_node(value) and not graphs.is_value_node(value) else ""
            if isinstance(part, str):
                yield Entry("class", f"{name}.{part}", text)


def _fiddlers(shelves: Sequence[str]) -> Iterator[Entry]:
    """Yield the fiddlers that can be named without their module."""
    # A fiddler is a function whose first argument is annotated as a graph; the annotation is text,
    # since these modules postpone the evaluation of annotations.
    for shelf in shelves:
        module = importlib.import_module(shelf)
        for name, function in inspect.getmembers(module, inspect.isfunction):
            first = next(iter(inspect.signature(function).parameters.values()), None)
            is_graph = first is not None and "Buildable" in str(first.annotation)
            if is_graph and not name.startswith("_"):
                text = (inspect.getdoc(function) or "").partition("\n")[0]
                yield Entry("fiddler", name, text)
    for extension in entry_points.extensions():
        if extension.group == entry_points.FIDDLERS:
            yield Entry("fiddler", extension.name, f"of {extension.distribution}")
