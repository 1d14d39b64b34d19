"""Copies of graphs that keep sharing, tags, history and the identity of leaves."""

from __future__ import annotations

import collections
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import fiddle as fdl
from fiddle import history
from fiddle.signatures import get_signature

from luthier.graph import signatures
from luthier.graph.paths import Part, children, is_container, is_dataclass_instance, is_node
from luthier.graph.signatures import UNSET
from luthier.graph.values import Graph

_PLAIN = (int, float, str, bool, type(None))


def copy_graph(graph: Graph) -> Any:
    """Return a copy of `graph` that keeps sharing, tags and history, and the leaves by identity.

    `copy.deepcopy` would clone leaves such as `jax.nn.relu`, and the clones are unequal.

    Args:
      graph: A node, or a list, tuple or dict of nodes.

    Returns:
      The copy; its nodes and containers are new objects.

    Example:
      >>> import fiddle as fdl
      >>> from luthier import graph, optim
      >>> config = fdl.Config(optim.adamw, learning_rate=3e-4)
      >>> copy = graph.copy_graph(config)
      >>> copy.learning_rate = 1e-4
      >>> config.learning_rate
      0.0003
    """
    return _copy(graph, {})


def _copy(value: Any, copies: dict[int, Any]) -> Any:
    # `copies` maps the id of an original to its copy, like the memo of `copy.deepcopy`. Nodes and
    # dicts enter it before their children are copied, so that a cycle through one of them ends.
    kind = type(value)
    if kind in _PLAIN or not (is_container(value) or is_node(value)):
        return value
    if id(value) in copies:
        return copies[id(value)]
    if is_node(value):
        return _copy_node(value, copies)
    if isinstance(value, dict):
        copied = copies[id(value)] = value.copy()
        for key, child in value.items():
            copied[key] = _copy(child, copies)
        return copied
    if not isinstance(value, list | tuple):
        return _copy_instance(value, copies)
    # A list enters late: a cycle through lists alone is a RecursionError here.
    copied_children = [_copy(child, copies) for child in value]
    if isinstance(value, list):
        # A subclass may have attributes, and a constructor that takes something else.
        copied_list = copies[id(value)] = copied_children if kind is list else copy.copy(value)
        copied_list[:] = copied_children
        return copied_list
    if all(new is old for new, old in zip(copied_children, value, strict=True)):
        return value  # a tuple of leaves cannot change; keeping it keeps its identity
    copies[id(value)] = (
        kind(*copied_children) if hasattr(kind, "_fields") else kind(copied_children)
    )
    return copies[id(value)]


def _copy_instance(value: Any, copies: dict[int, Any]) -> Any:
    """Return a copy of a dataclass instance if it holds nodes or lists, else the instance."""
    if not is_dataclass_instance(value):
        return value
    fields = {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}
    changed = {}
    for name, child in fields.items():
        copied_child = _copy(child, copies)
        if copied_child is not child:
            changed[name] = copied_child
    if not changed:
        return value
    copied = copies[id(value)] = copy.copy(value)
    for name, child in changed.items():
        # Past `__setattr__`, which a frozen dataclass forbids. `dataclasses.replace` would run
        # `__init__` again, and refuses fields with `init=False`.
        object.__setattr__(copied, name, child)
    return copied


def _copy_node(node: fdl.Buildable, copies: dict[int, Any]) -> fdl.Buildable:
    # Fiddle's own copies do not serve: `copy.copy` shares the children, `copy.deepcopy` clones the
    # leaves. The constructor would record a new history and check every argument again. So the
    # fields are filled in the way that Fiddle's `__deepcopy__` does, through `__dict__`, because
    # assigning them would go through `Buildable.__setattr__`, which sets arguments.
    copied = copies[id(node)] = object.__new__(type(node))
    target = node.__fn_or_cls__
    arguments = {part: _copy(child, copies) for part, child in node.__arguments__.items()}
    past = {part: list(entries) for part, entries in node.__argument_history__.items()}
    tags = {part: set(of_part) for part, of_part in node.__argument_tags__.items()}
    copied.__dict__.update(
        __fn_or_cls__=target,
        __arguments__=arguments,
        __signature_info__=node.__signature_info__,
        __argument_history__=history.History(past),
        __argument_tags__=collections.defaultdict(set, tags),
    )
    _renew_node(copied)
    return copied


def renew(graph: Graph) -> None:
    """Read the arguments of NNX classes again, in place, in nodes from before the signature shim.

    Such a node took any keyword, and stored positional arguments by index (`0=3, 1=4`).
    """
    signatures.install()
    for node in nodes_of(graph):
        _renew_node(node)


def _renew_node(node: fdl.Buildable) -> None:
    # Recognized by the signature object: Fiddle caches one per class, and installing the shim
    # clears that cache, so a node from before holds another object than the cache does now.
    target = node.__fn_or_cls__
    if not signatures.is_module_class(target):
        return
    if node.__signature_info__.signature is get_signature(target):
        return
    known = signatures.arguments(target)
    slots: list[Part] = [*range(len(known.positional_only)), *known.names]

    def named(part: Part) -> Part:
        # What the signature has no place for keeps its index, which `validate` reports.
        return slots[part] if isinstance(part, int) and part < len(slots) else part

    arguments = {named(part): value for part, value in node.__arguments__.items()}
    node.__init_callable__(target)  # this also empties the arguments
    node.__dict__["__arguments__"] = arguments
    # Tags and history move along. There may be some under the name already: the tags of its
    # annotation have always been there.
    tags, past = node.__argument_tags__, node.__argument_history__
    for part in [part for part in tags if named(part) != part]:
        tags[named(part)] = tags.get(named(part), set()) | tags.pop(part)
    for part in [part for part in past if named(part) != part]:
        entries = [*past.get(named(part), []), *past.pop(part)]
        past[named(part)] = sorted(entries, key=lambda entry: entry.sequence_id)


def as_node(value: Any) -> Any:
    """Return an instance of a dataclass as a node that builds it; any other `value` as it is.

    Lists and dicts in it are copied: changing the node leaves the instance as it was.

    Args:
      value: Any value.

    Returns:
      For an instance of a dataclass, a new `fdl.Config` of its class in which the fields that
      differ from their defaults are set; otherwise `value` itself.

    Example:
      >>> from luthier import graph, optim
      >>> graph.as_node(optim.Constant(0.5))
      <Config[Constant(value=0.5)]>
      >>> graph.as_node(3)
      3
    """
    # Needed to set a field of a default: the instance belongs to the class and is shared by all
    # its users, so an override turns it into a node of this graph first. Fields that equal their
    # default stay unset, so that the record holds only what differs.
    if not is_dataclass_instance(value):
        return value
    with history.suspend_tracking():
        node = fdl.Config(type(value))
        fixed = signatures.arguments(type(value)).defaults
        for name, child, _ in children(value):
            default = fixed.get(name, UNSET)
            if child is not default and not _equal(child, default):
                setattr(node, str(name), copy_graph(as_node(child)))
    return node


def _equal(a: Any, b: Any) -> bool:
    try:
        return type(a) is type(b) and bool(a == b)
    except Exception:  # arrays do not compare to one truth value
        return False


def nodes_of(value: Any) -> Iterator[fdl.Buildable]:
    """Yield every node in `value`, itself included, once."""
    # `seen` also ends the walk of a graph with a cycle.
    pending, seen = [value], set()
    while pending:
        item = pending.pop()
        if id(item) in seen:
            continue
        seen.add(id(item))
        if isinstance(item, fdl.Buildable):
            yield item
            pending += item.__arguments__.values()
        elif isinstance(item, dict):
            pending += item.values()
        elif isinstance(item, list | tuple):
            pending += item
