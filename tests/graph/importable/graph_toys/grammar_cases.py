"""The table of the override grammar: its cases, and what really happens in each."""

from __future__ import annotations

import contextlib
import os
import pathlib
import tomllib
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from graph_toys import edited
from luthier.errors import BadInput
from luthier.graph import (
    UNSET,
    apply,
    children,
    display_name,
    is_node,
    is_value_node,
    join,
    text_of,
)

HERE = pathlib.Path(__file__).parent
TABLE = HERE.parents[1] / "grammar" / "cases.toml"
SHELF = "graph_toys.fiddlers"


def cases() -> list[dict[str, Any]]:
    """Return the cases of the table."""
    return tomllib.loads(TABLE.read_text(encoding="utf-8"))["case"]


def words_of(case: dict[str, Any]) -> list[str]:
    """Return the words of a case, one after the other."""
    return [case["word"]] if "word" in case else case["words"]


def graph_of(case: dict[str, Any]) -> fdl.Config:
    """Return the graph that a case is about."""
    return getattr(edited, case.get("graph", "experiment"))()


def apply_words(graph: Any, words: list[str]) -> Any:
    """Apply words with everything that words may need."""
    with _inside(HERE):
        return apply(
            graph, words, shelves=[SHELF], packages=["graph_toys"], recorded=edited.recorded
        )


@contextlib.contextmanager
def _inside(folder: pathlib.Path) -> Iterator[None]:
    before = os.getcwd()
    os.chdir(folder)
    try:
        yield
    finally:
        os.chdir(before)


def outcome(case: dict[str, Any]) -> dict[str, str] | str:
    """Return what the words of a case change, or what they are told, without their origins."""
    graph = graph_of(case)
    try:
        return changes(graph, apply_words(graph, words_of(case)))
    except BadInput as error:
        return "\n".join(line_without_origin(problem) for problem in error.problems)


def line_without_origin(problem: Any) -> str:
    """Return a problem as one line, without where it was set."""
    return str(problem).replace(f" [set by {problem.origin}]", "")


def changes(before: Any, after: Any) -> dict[str, str]:
    """Return every place with another value, highest first: its path, and its value in words."""
    found: dict[str, str] = {}
    _compare(before, after, "", found, _first_places(after))
    return found


def _compare(a: Any, b: Any, path: str, found: dict[str, str], first: dict[int, str]) -> None:
    if b is UNSET or a is UNSET or not _are_alike(a, b):
        if _text(a, "", {}) != _text(b, "", {}) or first.get(id(b), path) != path:
            found[path] = _text(b, path, first)
        return
    left = {part: child for part, child, _ in children(a, unset=True)}
    right = {part: child for part, child, _ in children(b, unset=True)}
    for part in [*right, *(part for part in left if part not in right)]:
        left_child, right_child = left.get(part, UNSET), right.get(part, UNSET)
        _compare(left_child, right_child, join(path, part), found, first)


def _are_alike(a: Any, b: Any) -> bool:
    if type(a) is not type(b) or is_value_node(a) or is_value_node(b):
        return False
    if is_node(a):
        return a.__fn_or_cls__ is b.__fn_or_cls__
    if isinstance(a, list | tuple):
        return len(a) == len(b) and len(a) > 0
    return isinstance(a, dict)


def _first_places(graph: Any, path: str = "") -> dict[int, str]:
    found: dict[int, str] = {}
    if is_node(graph) and not is_value_node(graph):
        found[id(graph)] = path
    for part, child, is_default in children(graph):
        if not is_default and not is_value_node(child):
            for identity, place in _first_places(child, join(path, part)).items():
                found.setdefault(identity, place)
    return found


def _text(value: Any, path: str, first: dict[int, str]) -> str:
    if value is UNSET:
        return "not set"
    if is_node(value) and not is_value_node(value):
        if first.get(id(value), path) != path:
            return f"the node of {first[id(value)]}"
        kind = "template of " if isinstance(value, fdl.Partial) else ""
        name = display_name(value.__fn_or_cls__).split(".")[-1]
        inside = [
            f"{part}={_text(child, join(path, part), first)}"
            for part, child, is_default in children(value)
            if not is_default
        ]
        return f"{kind}{name}({', '.join(inside)})"
    if isinstance(value, list):
        items = [_text(child, join(path, i), first) for i, child in enumerate(value)]
        return f"[{', '.join(items)}]"
    if isinstance(value, dict):
        items = [f"{key}: {_text(child, join(path, key), first)}" for key, child in value.items()]
        return f"{{{', '.join(items)}}}"
    return text_of(value)


def make_configs(folder: pathlib.Path) -> None:
    """Write the experiments that the cases of flags name, below `folder`/configs."""
    functions = {
        "lm/quickstart.py": "def experiment():\n    return 1\n",
        "lm/pax_c4.py": "def C4Spmd1BAdam4Replicas() -> 'Experiment':\n    return 1\n",
        "vision/digits.py": "def experiment():\n    return 1\n",
    }
    for name, text in functions.items():
        place = folder / "configs" / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
