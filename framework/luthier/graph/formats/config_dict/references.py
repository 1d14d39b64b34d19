"""FieldReferences as live value nodes: one constant for all places of a reference.

Operations without a live form in luthier (`to_int`, `to_str`, `abs`, `&`, `|`) are computed once.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import fiddle as fdl

from luthier.graph import origins, values

_MAKERS: Mapping[Any, Callable[[Any, Any], fdl.Config]] = {
    operator.add: values.add,
    operator.sub: values.subtract,
    operator.mul: values.multiply,
    operator.truediv: values.true_divide,
    operator.floordiv: values.floor_divide,
    operator.mod: values.modulo,
    operator.pow: values.power,
}


def is_reference(value: Any) -> bool:
    """Return whether `value` is a FieldReference."""
    from ml_collections import config_dict

    return isinstance(value, config_dict.FieldReference)


def target_of(reference: Any) -> Any:
    """Return the innermost reference that one without arithmetic stands for.

    Args:
      reference: A FieldReference.
    """
    # `_value`, `_ops` and `_required` are private names of ml_collections, read in this module and
    # in `overlay._inside` only. `get()` is all that is public: it returns the computed value, which
    # says neither which reference it comes from nor by which operations.
    while not reference._ops and is_reference(reference._value):
        reference = reference._value
    return reference


def is_missing(reference: Any) -> bool:
    """Return whether a reference is a required placeholder that is not set.

    Args:
      reference: A FieldReference.
    """
    reference = target_of(reference)
    return bool(reference._required) and reference._value is None


class References:
    """The value nodes of the references of one ConfigDict.

    Args:
      found: (key, reference) for each place that holds one.
      origin: Returns the origin of a key, for the history.
    """

    def __init__(self, found: Iterable[tuple[str, Any]], origin: Callable[[str], str]):
        # A value node is made only where something else follows it: a reference with one place and
        # no arithmetic is its plain value. An operand counts twice, so that it always becomes one:
        # the result of the arithmetic has to follow it.
        self.frozen: set[int] = set()
        self._origin = origin
        self._names: dict[int, str] = {}
        self._counts: dict[int, int] = {}
        self._nodes: dict[int, tuple[Any, Any]] = {}
        for key, reference in found:
            target = target_of(reference)
            self._names.setdefault(id(target), key)
            self._counts[id(target)] = self._counts.get(id(target), 0) + 1
            for operand in _operands(target):
                self._counts[id(operand)] = self._counts.get(id(operand), 0) + 2

    def convert(self, reference: Any) -> Any:
        """Return the value node of a reference, or its value where nothing else follows it.

        Raises:
          Exception: Its arithmetic fails, with whatever that raises.
        """
        target = target_of(reference)
        is_alone = self._counts.get(id(target), 0) < 2
        if is_alone and not target._ops and not is_missing(target):
            return target.get()
        return self._node(target)

    def is_frozen(self, reference: Any) -> bool:
        """Return whether a reference was computed once, because there is no live form of it."""
        return id(target_of(reference)) in self.frozen

    def is_shared(self, node: Any) -> bool:
        """Return whether more than one key, or some arithmetic, refers to a constant."""
        held = [target for target, made in self._nodes.values() if made is node]
        return any(self._counts.get(id(target), 0) > 1 for target in held)

    def _node(self, reference: Any) -> Any:
        target = target_of(reference)
        if id(target) not in self._nodes:
            start = origins.now()
            node = self._computed(target) if target._ops else self._constant(target)
            name = self._names.get(id(target), "")
            if values.is_constant(node):
                origins.stamp_since(start, node, self._origin(name))
            self._nodes[id(target)] = target, node  # kept, so that its id stays its own
        return self._nodes[id(target)][1]

    def _constant(self, target: Any) -> fdl.Config:
        name = self._names.get(id(target), "")
        if is_missing(target):
            return fdl.Config(values.constant, name=name)
        return values.value(target.get(), name)

    def _computed(self, target: Any) -> Any:
        # The operations of a reference are a list, applied in order to its value. Each is a
        # function of `operator` with the other operand in `args`, or, for reflected operations
        # (`2 * reference`), a partial that holds the left operand. Any other operation ends the
        # loop, and the result as it is now becomes a constant.
        left = self._operand(target._value)
        is_none = target.get() is None
        for step in target._ops:
            wrapped = step.fn if isinstance(step.fn, functools.partial) else None
            given = [self._operand(item) for item in step.args]
            if is_none:
                break
            if step.fn in _MAKERS and len(given) == 1:
                left = _MAKERS[step.fn](left, given[0])
            elif wrapped is not None and wrapped.func in _MAKERS and len(wrapped.args) == 1:
                left = _MAKERS[wrapped.func](self._operand(wrapped.args[0]), left)
            elif step.fn is operator.neg:
                left = values.multiply(left, -1)
            else:
                break
        else:
            return left
        self.frozen.add(id(target))
        return values.value(target.get(), self._names.get(id(target), ""))

    def _operand(self, item: Any) -> Any:
        return self._node(item) if is_reference(item) else item


def _operands(reference: Any) -> Iterator[Any]:
    """Yield the references that the arithmetic of a reference is made of, at any depth."""
    for step in reference._ops:
        further = step.fn.args if isinstance(step.fn, functools.partial) else ()
        for item in (*step.args, *further):
            if is_reference(item):
                yield target_of(item)
                yield from _operands(target_of(item))
    if reference._ops and is_reference(reference._value):
        yield target_of(reference._value)
        yield from _operands(target_of(reference._value))
