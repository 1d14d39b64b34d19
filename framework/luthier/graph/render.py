"""Renders a graph as text: set arguments first, then defaults; shared nodes only once.

luthier.program.Experiment
  seed = 0
  model: partial luthier.models.Decoder
    dim = 256 (shared as dim)
    mlp: partial luthier.layers.Mlp
      hidden = dim * 4 = 1024
"""

from __future__ import annotations

import enum
from collections.abc import Iterator
from typing import Any

import fiddle as fdl

from luthier.graph import signatures, values
from luthier.graph.paths import Part, children, is_dataclass_instance, join
from luthier.graph.public_names import display_name
from luthier.graph.record.encode import KINDS
from luthier.graph.record.structure import entries, shared
from luthier.graph.values import Graph

DEFAULT_MARK = "  (default)"
_INDENT = "  "


def render(graph: Graph, defaults: bool = False, width: int = 100) -> str:
    """Return a graph as text, one argument a line.

    Args:
      graph: A node or value.
      defaults: Whether to list arguments left at their default too, below the set ones and marked
        `(default)`.
      width: The longest line, in characters; longer ones are cut and end in `…`.

    Returns:
      Lines without colour and without a line break at the end. A shared node is written out at its
      first place. At the others it is `same as PATH`, or for a template `same settings as PATH`:
      weights are tied only where it says so. A value node shows its expression and value.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> print(graph.render(fdl.Config(optim.sgd, learning_rate=0.1, momentum=0.8)))
      luthier.optim.sgd
        learning_rate = 0.1
        momentum = 0.8
    """
    renderer = _Renderer(graph, defaults, width)
    lines = [head_text(graph), *renderer.below(graph, "", _INDENT)]
    if entries(graph) is None or values.is_value_node(graph):
        lines = [text_of(graph)]
    return "\n".join(_cut(line, width) for line in lines)


def text_of(value: Any) -> str:
    """Return a value on one line; a node by its class alone.

    Args:
      value: Any value, node or container.

    Returns:
      One line, the same in every process: sets are sorted, and addresses are left out.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> graph.text_of(fdl.Config(optim.sgd)), graph.text_of({3, 1}), graph.text_of((0.5,))
      ('luthier.optim.sgd', '{1, 3}', '(0.5,)')
    """
    # Deterministic, since goldens, diffs and the web pages show it: sets are sorted, and objects
    # whose text holds an address are shown by their class.
    if values.is_value_node(value):
        return _value_text(value, value.__arguments__.get("name", ""))
    if isinstance(value, fdl.Buildable):
        return head_text(value)
    # Before the plain values, since a member of an IntEnum is an int as well.
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value)
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(text_of(child) for child in value))}}}"
    inside = entries(value)
    if inside is None:
        return _object_text(value)
    if is_dataclass_instance(value) or hasattr(value, "_fields"):
        fields = ", ".join(f"{name}={text_of(child)}" for name, child in inside)
        return f"{display_name(type(value))}({fields})"
    if isinstance(value, dict):  # in its own order, which records keep
        items = [f"{text_of(key)}: {text_of(child)}" for key, child in inside]
        return f"{{{', '.join(items)}}}"
    texts = [text_of(child) for _, child in inside]
    if isinstance(value, tuple):
        return f"({texts[0]},)" if len(texts) == 1 else f"({', '.join(texts)})"
    return f"[{', '.join(texts)}]"


def head_text(value: Any) -> str:
    """Return the class of a node with its kind (`partial luthier.layers.Mlp`), or a type name.

    Args:
      value: A node, or a container.

    Returns:
      The public name of the class or function, after `partial` for a template; for a plain
      container the name of its type.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, layers
      >>> graph.head_text(fdl.Partial(layers.Mlp)), graph.head_text([])
      ('partial luthier.layers.Mlp', 'list')
    """
    if isinstance(value, fdl.Buildable):
        kind = KINDS.get(type(value), type(value).__name__)
        name = display_name(value.__fn_or_cls__)
        return name if kind == "config" else f"{kind} {name}"
    if is_dataclass_instance(value) or hasattr(value, "_fields"):
        return display_name(type(value))
    return type(value).__name__


def sharing_text(value: Any) -> str:
    """Return the relation between two places of one node: `same as` or `same settings as`.

    A template is called at each of its places, so they share its settings but no weights.
    """
    return "same settings as" if isinstance(value, fdl.Partial) else "same as"


def tie_text(value: Any) -> str:
    """Return ` (weights tied to NAME)` for a node or class without weights of its own, else ``."""
    # Sharing a node of the graph ties weights; but a template that is shared does not, and a class
    # like a tied unembedding uses the weights of another without sharing a node with it. So such a
    # class declares the other one in its attribute `TIES`, and `show` and `diff` tell ties from
    # shared settings by it.
    tied = getattr(getattr(value, "__fn_or_cls__", value), "TIES", "")
    return f" (weights tied to {tied})" if isinstance(tied, str) and tied else ""


def _object_text(value: Any) -> str:
    if isinstance(value, type) or callable(value):
        return display_name(value)
    text = " ".join(str(value).split())
    return text if " at 0x" not in text else display_name(value)


def _value_text(node: fdl.Config, name: str) -> str:
    try:
        value = values.evaluate(node)
        known = values.expression(value) if values.is_deferred(value) else text_of(value)
    except values.Deferred:
        return f"{values.expression(node)} (of the data)"
    except Exception:  # an operand is missing or wrong, which `validate` reports
        known = "?"
    if values.is_constant(node):
        return f"{known} (shared as {name})" if name else known
    return f"{values.expression(node)} = {known}"


class _Renderer:
    """Renders one graph; keeps the path at which each shared node was first written out."""

    def __init__(self, graph: Graph, defaults: bool, width: int):
        self.defaults, self.width = defaults, width
        self.shared = shared(graph)
        self.first: dict[int, str] = {}

    def below(self, value: Any, path: str, indent: str) -> Iterator[str]:
        """Yield the lines of the parts of a node or container."""
        if isinstance(value, fdl.Buildable):
            yield from self._node(value, path, indent)
            return
        for key, child in entries(value) or ():
            yield from self._entry(join("", key), child, join(path, key), indent)

    def _node(self, node: fdl.Buildable, path: str, indent: str) -> Iterator[str]:
        arguments = children(node, unset=True)
        for part, child, is_default in arguments:
            if not is_default and child is not signatures.UNSET:
                label = join("", part) + self._tags(node, part)
                yield from self._entry(label, child, join(path, part), indent)
        # Missing arguments are listed for a Config only: a template gets the rest from its caller,
        # as every class gets `rngs` and its `INHERITED` arguments.
        passed = signatures.inherited(node.__fn_or_cls__)
        for part, child, is_default in arguments:
            if child is signatures.UNSET and type(node) is fdl.Config and part not in passed:
                yield f"{indent}{join('', part)}{self._tags(node, part)} is not set"
            elif is_default and self.defaults:
                yield f"{indent}{join('', part)} = {text_of(child)}{tie_text(child)}{DEFAULT_MARK}"

    def _entry(self, label: str, child: Any, path: str, indent: str) -> Iterator[str]:
        # Four forms, in this order: a value node as its expression and value; a leaf or short
        # container on one line; a node that was written out before as a reference to that path;
        # and a new node as a head line with its parts below.
        if values.is_value_node(child):
            name = child.__arguments__.get("name", "")
            if not name and id(child) in self.shared:
                name = self.first.setdefault(id(child), path)
            yield f"{indent}{label} = {_value_text(child, name)}"
        elif not _holds_nodes(child) and self._fits(child, indent, label):
            yield f"{indent}{label} = {text_of(child)}{tie_text(child)}"
        elif id(child) in self.first:
            yield f"{indent}{label}: {sharing_text(child)} {self.first[id(child)]}"
        else:
            if id(child) in self.shared:
                self.first[id(child)] = path
            yield f"{indent}{label}: {head_text(child)}{tie_text(child)}"
            yield from self.below(child, path, indent + _INDENT)

    def _fits(self, child: Any, indent: str, label: str) -> bool:
        """Return whether a container of leaves is on one line; long lists and tuples are cut."""
        if not (isinstance(child, dict) or is_dataclass_instance(child)):
            return True
        return len(indent) + len(label) + len(" = ") + len(text_of(child)) <= self.width

    def _tags(self, node: fdl.Buildable, part: Part) -> str:
        tags = node.__argument_tags__.get(part)  # type: ignore[call-overload]
        return "".join(f" #{tag.__name__}" for tag in sorted(tags, key=str)) if tags else ""


def _holds_nodes(value: Any) -> bool:
    """Return whether `value` is a node or a container that holds one."""
    if isinstance(value, fdl.Buildable):
        return True
    inside = entries(value)
    return inside is not None and any(_holds_nodes(child) for _, child in inside)


def _cut(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    # The mark is kept: a default that is cut must not look like a set value.
    mark = DEFAULT_MARK if line.endswith(DEFAULT_MARK) else ""
    return line[: max(width - len(mark) - 1, 1)] + "…" + mark
