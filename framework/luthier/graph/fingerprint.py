"""Hashes of graphs that are equal wherever they are taken.

`record` distinguishes all that a record or a changed default distinguishes. `program` distinguishes
what changes training: an argument that is set to its default is like one that is not set, and names
and recorders do not count. Both hash only public names and values, in a fixed order, so that they
are equal across processes, versions of Python and, where the values are, versions of jax.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import sys
from collections.abc import Sequence
from typing import Any, Literal

import fiddle as fdl
from fiddle import tagging

from luthier.errors import Problem, RecordError
from luthier.graph import signatures, values
from luthier.graph.paths import find, is_dataclass_instance, join
from luthier.graph.public_names import display_name, public_name
from luthier.graph.record.encode import KINDS
from luthier.graph.record.leaves import encode_leaf
from luthier.graph.record.structure import entries, is_shared_node, set_arguments
from luthier.graph.values import Graph

# Arguments of the root that do not change training: a run that is renamed, logged elsewhere or
# saved more often trains the same.
NOT_PROGRAM = ("name", "records", "checkpoints")
# Arguments of its `training` that only say when a run has failed.
NOT_TRAINING = ("divergence",)


def fingerprint(
    graph: Graph, kind: Literal["record", "program"] = "record", without: Sequence[str] = ()
) -> str:
    """Return a hash of a graph.

    Args:
      graph: A node.
      kind: `record`, where everything counts: set arguments, the values of defaults, names, tags
        and what is shared; or `program`, where only what changes training does: values and defaults
        alike, and sharing only where it makes one object of two (nodes of `fdl.Config`). The root's
        `name`, `records`, `checkpoints` and `training.divergence` do not count there.
      without: Paths to leave out, such as `seed` or `optimizer.b2`; the path of a user of a value
        node leaves out the node, for all its users.

    Returns:
      64 hexadecimal digits.

    Raises:
      RecordError: A value that is set cannot be recorded.
      UnknownReference: A path in `without` does not exist.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> same = graph.apply(config, ["b1=0.9"])  # the default, but set
      >>> graph.fingerprint(config) == graph.fingerprint(same)
      False
      >>> graph.fingerprint(config, "program") == graph.fingerprint(same, "program")
      True
    """
    writer = _Writer(graph, kind == "program", without)
    try:
        content = writer.value(graph, "")
    except RecursionError:
        raise RecordError(Problem("the graph is nested too deeply")) from None
    if writer.problems:
        raise RecordError(writer.problems)
    text = json.dumps([kind, content], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


class _Writer:
    """Writes a graph as nested lists in a canonical order."""

    # Why not hash the record (`to_json`)? A record does not hold defaults, and one that changes in
    # the code changes what the graph builds; and `program` must ignore what a record distinguishes.
    # The lists are JSON so that the hash is of text: `repr` and `hash` differ between versions and
    # processes. A shared node is written once and is `["again", number]` afterwards, numbered in
    # the order of the walk, which does not depend on ids.

    def __init__(self, graph: Graph, program: bool, without: Sequence[str]):
        self.program = program
        self.numbers: dict[int, int] = {}
        self.problems: list[Problem] = []
        self.left_out: set[tuple[int, Any]] = set()
        self.nodes_left_out: set[int] = set()
        for path in without:
            # By identity of the owner: a shared node is reached by several paths, and leaving out
            # its argument by one of them leaves it out of the node.
            place = find(graph, path)
            self.left_out.add((id(place.owner), place.part))
            if values.is_value_node(place.value):
                self.nodes_left_out.add(id(place.value))
        if program:
            self.left_out |= {(id(graph), name) for name in NOT_PROGRAM}
            training = (
                dict(set_arguments(graph)).get("training")
                if isinstance(graph, fdl.Buildable)
                else None
            )
            self.left_out |= {(id(training), name) for name in NOT_TRAINING if training is not None}

    def value(self, value: Any, path: str) -> Any:
        """Return the content of a value that is set at `path`."""
        # Every form begins with a tag or a class name, so that values of different types never have
        # the same content. Dicts and sets are sorted by their text: their order does not count.
        if is_shared_node(value) and self._sharing_counts(value):
            if id(value) in self.numbers:
                return ["again", self.numbers[id(value)]]
            self.numbers[id(value)] = len(self.numbers)
        if isinstance(value, fdl.Buildable):
            return self._node(value, path)
        if isinstance(value, set | frozenset):
            return [type(value).__name__, sorted(_dump(self.value(v, path)) for v in value)]
        inside = entries(value)
        if inside is None:
            return self._leaf(value, path)
        included = self._kept(value, inside)
        if type(value) is dict:
            # Sorted before the values are written, since these number shared nodes as they go; keys
            # are hashable, so they hold none.
            by_key = {_dump(self.value(key, path)): (join(path, key), v) for key, v in included}
            return ["dict", [[key, self.value(v, at)] for key, (at, v) in sorted(by_key.items())]]
        content = [[key, self.value(child, join(path, key))] for key, child in included]
        if type(value) in (list, tuple):
            return [type(value).__name__, content]
        # For a program, an instance is like the node that builds it: both give the same object.
        name = self._name(type(value), path)
        if self.program and is_dataclass_instance(value):
            return _instance(name, content)
        return [name, content]

    def _kept(self, owner: Any, inside: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
        return [
            (key, child)
            for key, child in inside
            if (id(owner), key) not in self.left_out and id(child) not in self.nodes_left_out
        ]

    def _sharing_counts(self, value: Any) -> bool:
        # What is built differs only where one `fdl.Config` is one object in two places. A shared
        # template is called at each place, and a shared constant is an equal number at each.
        if not self.program:
            return True
        return type(value) is fdl.Config and not values.is_value_node(value)

    def _node(self, node: fdl.Buildable, path: str) -> Any:
        """Return kind, name, arguments with defaults, and tags of a node."""
        target = node.__fn_or_cls__
        given = {
            part: self.value(child, join(path, part))
            for part, child in self._kept(node, set_arguments(node))
        }
        # A tagged value is a node of a private function of Fiddle, which has no public name.
        is_tagged = isinstance(node, tagging.TaggedValueCls)
        name = "" if is_tagged else self._name(target, path)
        content: list[Any] = [KINDS.get(type(node), type(node).__name__), name]
        # Defaults are not written by `value`: they belong to the class, so they share nothing with
        # this graph, and they may hold objects that no record can.
        # A positional-only argument is set by its index, so its default is written even then, and
        # `program` distinguishes one that is set to its default from one that is not set.
        left = [
            (name, default)
            for name, default in sorted(signatures.arguments(target).defaults.items())
            if name not in node.__arguments__ and (id(node), name) not in self.left_out
        ]
        defaults = {name: default_content(default) for name, default in left}
        if self.program:  # set or default, the callable gets the same value
            return [
                *content,
                sorted([str(part), data] for part, data in (given | defaults).items()),
            ]
        tags = {
            str(part): sorted(self._name(tag, path) for tag in found)
            for part, found in node.__argument_tags__.items()
            if found
        }
        set_here = sorted((str(part), data) for part, data in given.items())
        return [*content, set_here, sorted(defaults.items()), sorted(tags.items())]

    def _name(self, target: Any, path: str) -> str:
        try:
            return public_name(target)
        except RecordError as error:
            self.problems += [dataclasses.replace(p, path=path) for p in error.problems]
            return ""

    def _leaf(self, value: Any, path: str) -> Any:
        try:
            return encode_leaf(value)
        except RecordError as error:
            self.problems += [dataclasses.replace(p, path=path) for p in error.problems]
            return None


def _instance(name: str, content: list[Any]) -> Any:
    """Return the content of a dataclass instance, like that of the node that would make it."""
    return [KINDS[fdl.Config], name, sorted(content)]


def _dump(data: Any) -> str:
    return json.dumps(data, sort_keys=True)


def default_content(value: Any) -> Any:
    """Return the content of a default, which need not be something that a record can hold.

    An object without a public name is described by its type and by the plain values in it: a
    closure, such as an initializer of jax, by the values that it closes over.
    """
    return _default_content(value, 0)


def _default_content(value: Any, depth: int) -> Any:
    # Defaults come from libraries and may hold anything, cycles included: the depth is bounded, and
    # nothing here raises.
    if depth > 8:
        return ["deep", type(value).__qualname__]
    below = functools.partial(_default_content, depth=depth + 1)
    if isinstance(value, fdl.Buildable):
        arguments = sorted([str(part), below(child)] for part, child in set_arguments(value))
        return [KINDS.get(type(value), ""), display_name(value.__fn_or_cls__), arguments]
    if type(value) is dict:
        return ["dict", sorted([_dump(below(key)), below(child)] for key, child in value.items())]
    if isinstance(value, set | frozenset):
        return [type(value).__name__, sorted(_dump(below(child)) for child in value)]
    inside = entries(value)
    if inside is not None:
        content = [[key, below(child)] for key, child in inside]
        if type(value) in (list, tuple):
            return [type(value).__name__, content]
        name = display_name(type(value))
        return _instance(name, content) if is_dataclass_instance(value) else [name, content]
    try:
        return encode_leaf(value)
    except RecordError:
        return _described(value, below)


def _described(value: Any, below: Any) -> Any:
    if isinstance(value, functools.partial):
        keywords = sorted((name, below(child)) for name, child in value.keywords.items())
        return ["partial", below(value.func), [below(child) for child in value.args], keywords]
    # `jax.nn.initializers.normal(0.02)` is a closure: its qualified name is the same for every
    # standard deviation, which stands in a cell.
    code, cells = getattr(value, "__code__", None), getattr(value, "__closure__", None)
    if code is not None:
        names = code.co_freevars if cells else ()
        closed = sorted((n, _cell(cell, below)) for n, cell in zip(names, cells or (), strict=True))
        return ["function", value.__qualname__, closed]
    # Arrays by a digest of their bytes, since their text leaves out the middle of large ones.
    numpy = sys.modules.get("numpy")
    if numpy is not None and hasattr(value, "dtype") and hasattr(value, "shape"):
        try:
            array = numpy.asarray(value)
            digest = hashlib.sha256(array.tobytes()).hexdigest()
            return ["array", str(array.dtype), list(array.shape), digest]
        except Exception:  # a tracer, or a random key
            pass
    return ["object", type(value).__qualname__]


def _cell(cell: Any, below: Any) -> Any:
    try:
        return below(cell.cell_contents)
    except ValueError:  # still empty
        return None
