"""YAML as scalars, sequences and mappings with their lines; what is referred to stands there once.

Scalars are those of YAML 1.2: only `true` and `false` are booleans, and `4e-5` is a number.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

_CONSTANTS: Mapping[str, Any] = {
    **dict.fromkeys(("null", "Null", "NULL", "~", ""), None),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_NOT_FINITE = re.compile(r"([-+]?)\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_DEEPEST = 100


class Unreadable(Exception):
    """What stands in a line is not of a graph."""

    def __init__(self, what: str, line: int):
        super().__init__(what)
        self.line = line


@dataclasses.dataclass
class Scalar:
    """A scalar, and its line."""

    value: Any
    line: int


@dataclasses.dataclass
class Items:
    """A sequence; its number is above zero where something refers to it."""

    items: list[Any]
    line: int
    number: int = 0


@dataclasses.dataclass
class Entries:
    """A mapping; its number is above zero where something refers to it."""

    items: dict[Any, Any]
    line: int
    number: int = 0


@dataclasses.dataclass
class Reference:
    """An alias of a sequence or mapping."""

    target: Any
    line: int


def read(text: str) -> Any:
    """Return the root of a text of YAML.

    Args:
      text: One document, without tags of YAML's own (`!!python/...`).

    Raises:
      Unreadable: It is no YAML, or has what graphs do not need.
    """
    import yaml  # here, because it takes a while and most commands need none

    try:
        return _Reader().read(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        what = getattr(error, "problem", None) or str(error).partition("\n")[0]
        line = mark.line + 1 if mark else 1
        raise Unreadable(f"it is not readable as YAML: {what}", line) from None


class _Reader:
    """Reads one document, event by event: no depth and no alias makes it slow."""

    def __init__(self) -> None:
        self.open: list[tuple[Any, list[Any]]] = []
        self.anchors: dict[str, Any] = {}
        self.root: Any = None
        self.count = self.numbers = 0

    def read(self, text: str) -> Any:
        """Return the document's root."""
        import yaml

        for event in yaml.parse(text, Loader=_loader(text)):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.DocumentStartEvent):
                self.count += 1
                if self.count > 1:
                    raise Unreadable("there is a second document", line)
            elif isinstance(event, yaml.AliasEvent):
                self._add(self._refer(event.anchor, line))
            elif isinstance(event, yaml.ScalarEvent):
                self._note(event, Scalar(_scalar(event, line), line))
            elif isinstance(event, yaml.SequenceStartEvent):
                self._enter(event, Items([], line))
            elif isinstance(event, yaml.MappingStartEvent):
                self._enter(event, Entries({}, line))
            elif isinstance(event, yaml.SequenceEndEvent | yaml.MappingEndEvent):
                self._leave()
        return self.root

    def _enter(self, event: Any, made: Any) -> None:
        if event.tag is not None:
            raise Unreadable(f"tags such as {event.tag!r} are not read", made.line)
        if len(self.open) >= _DEEPEST:
            raise Unreadable("it is nested too deeply", made.line)
        self.open.append((made, []))
        if event.anchor:
            self.anchors[event.anchor] = made

    def _leave(self) -> None:
        made, inside = self.open.pop()
        if isinstance(made, Items):
            made.items = inside
        else:
            for key, value in zip(inside[::2], inside[1::2], strict=True):
                if not isinstance(key, Scalar):
                    raise Unreadable("a key is a list or mapping", made.line)
                if key.value in made.items:
                    raise Unreadable(f"{key.value!r} is given twice", key.line)
                if key.value == "<<":
                    raise Unreadable("merge keys (<<) are not read", key.line)
                made.items[key.value] = value
        self._add(made)

    def _note(self, event: Any, made: Scalar) -> None:
        if event.anchor:
            self.anchors[event.anchor] = made
        self._add(made)

    def _refer(self, name: str, line: int) -> Any:
        if name not in self.anchors:
            raise Unreadable(f"there is no anchor &{name} before this alias", line)
        target = self.anchors[name]
        if isinstance(target, Scalar):
            return target
        if any(made is target for made, _ in self.open):
            raise Unreadable(f"*{name} stands inside of what it refers to", line)
        if not target.number:
            self.numbers += 1
            target.number = self.numbers
        return Reference(target, line)

    def _add(self, made: Any) -> None:
        if self.open:
            self.open[-1][1].append(made)
        else:
            self.root = made


def _loader(text: str) -> Any:
    """Return the fast parser of PyYAML; the slow one where that does not know all escapes."""
    import yaml

    quick = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    return yaml.SafeLoader if re.search(r"\\u[dD][89a-fA-F]", text) else quick


def _scalar(event: Any, line: int) -> Any:
    if event.tag not in (None, "!"):
        raise Unreadable(f"tags such as {event.tag!r} are not read", line)
    text = event.value
    if not event.implicit[0]:  # it stands in quotes
        return text
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INTEGER.fullmatch(text):
        return int(text)
    if _FLOAT.fullmatch(text):
        return float(text)
    if match := _NOT_FINITE.fullmatch(text):
        return float(f"{match[1] or ''}{(match[2] or match[3]).lower()}")
    return text
