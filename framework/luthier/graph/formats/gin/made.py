"""Values of gin as values of a graph: references become nodes, macros constants."""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import fiddle as fdl
from fiddle import history

from luthier.errors import Problem
from luthier.graph import signatures
from luthier.graph.edits import origins
from luthier.graph.formats.gin.constants import Constants
from luthier.graph.formats.gin.directives import Directives
from luthier.graph.formats.gin.lookup import Lookup, key
from luthier.graph.formats.gin.statements import Binding, MacroUse, Reference
from luthier.graph.grammar import calls, types
from luthier.graph.grammar.unreadable import Unreadable

_MOST_NODES = 100_000
_SINGLETON = ("singleton", "gin.singleton")


@dataclasses.dataclass(frozen=True)
class Target:
    """An argument of a class or function."""

    function: Any
    argument: str

    @property
    def annotation(self) -> Any:
        """What the argument's values must be; `Any` where nothing says so."""
        return signatures.type_hints(self.function).get(self.argument, Any)


class Binder(Protocol):
    """What knows the bindings."""

    def bound_to(self, target: Any, scope: str) -> list[Any]:
        """Return what is bound to a class or function in a scope."""

    def bind_new(self, node: Any, scope: str) -> None:
        """Set what is bound to the class of a new node."""


class Maker:
    """Makes the values of bindings.

    Args:
      constants: The macros.
      lookup: Finds classes and functions.
      said: What the directives say.
      binder: Knows the bindings.
    """

    def __init__(self, constants: Constants, lookup: Lookup, said: Directives, binder: Binder):
        self._constants = constants
        self._lookup = lookup
        self._said = said
        self._binder = binder
        self._chain: list[Any] = []
        self._count = 0
        self._once: dict[str, Any] = {}

    def value(self, value: Any, scope: str, where: str) -> Any:
        """Return the value of a binding, made anew.

        Args:
          value: What was read.
          scope: The scopes of the node that it is for: its references inherit them.
          where: Where it stands.

        Raises:
          Unreadable: It means nothing.
        """
        if isinstance(value, Reference):
            return self._refer(value, scope, where)
        if isinstance(value, MacroUse):
            return self._macro(value.name, scope, where)
        if isinstance(value, list | tuple):
            return type(value)([self.value(item, scope, where) for item in value])
        if isinstance(value, dict):
            return {
                self._key(item, scope, where): self.value(value[item], scope, where)
                for item in value
            }
        return value

    def _key(self, item: Any, scope: str, where: str) -> Any:
        made = self.value(item, scope, where)
        if isinstance(made, fdl.Buildable):
            made = self._constants.plain(made)
        if isinstance(made, fdl.Buildable):
            raise Unreadable(f"{item} cannot be a key")
        return made

    def _macro(self, name: str, scope: str, where: str) -> Any:
        if name in self._said.shared and self._constants.has(name):
            if name not in self._once:
                self._once[name] = self._inside(name, "", where)
            return self._once[name]
        if self._constants.is_live(name):
            return self._constants.node(name)
        if self._constants.has(name):
            return self._inside(name, scope, where)
        return self._constants.other(name)

    def _inside(self, name: str, scope: str, where: str) -> Any:
        """Return a macro's value, as if it stood where the macro is used."""
        with self._entered(("%", name), f"%{name}"):
            macro: Binding = self._constants.macros[name]
            return self.value(macro.value, scope, macro.where)

    def _entered(self, item: Any, said: str) -> _Entered:
        if item in self._chain:
            raise Unreadable(f"{said} contains itself")
        return _Entered(self._chain, item)

    def _refer(self, reference: Reference, outer: str, where: str) -> Any:
        own, _, name = reference.name.rpartition("/")
        scope = own or outer
        if name in _SINGLETON:
            return self._singleton(scope, where)
        target = self._lookup.configurable(name)
        wished = self._said.kinds.get(reference.name)
        kind: type[fdl.Buildable] = fdl.Config
        if not reference.is_called:
            kind = fdl.ArgFactory if wished == "factory" else fdl.Partial
            # A dtype is a class as well (`@jnp.bfloat16`), and never a template of scalars.
            is_template = isinstance(target, type) and not types.is_dtype(target)
            is_plain = not is_template and wished is None
            if is_plain and not self._binder.bound_to(target, scope):
                return target
        with self._entered((key(target), scope, kind), str(reference)):
            node = self._node(target, kind, where)
            self._binder.bind_new(node, scope)
        return self._instance(node) if wished == "instance" else node

    def _node(self, target: Any, kind: type[fdl.Buildable], where: str) -> fdl.Buildable:
        self._count += 1
        if self._count > _MOST_NODES:
            raise Unreadable(f"this makes more than {_MOST_NODES:,} nodes")
        with history.suspend_tracking():
            node = kind(target) if self._said.is_export else calls.make_node(target, kind)
        origins.stamp(node, "__fn_or_cls__", target, where)
        return node

    def _singleton(self, scope: str, where: str) -> Any:
        """Return what `@scope/gin.singleton()` means: one node for all places."""
        binding = self._constants.singletons.get(scope)
        if binding is None or not isinstance(binding.value, Reference):
            what = f"{scope}/gin.singleton has no constructor"
            remedy = f"write {scope}/gin.singleton.constructor = @Name"
            raise Unreadable(Problem(what, remedy=remedy))
        once = f"{scope}/gin.singleton"
        if once not in self._once:
            made = Reference(binding.value.name, is_called=True)
            with self._entered(("%", once), once):
                self._once[once] = self.value(made, "", binding.where)
        return self._once[once]

    def _instance(self, node: fdl.Buildable) -> Any:
        try:
            return node.__fn_or_cls__(**node.__arguments__)
        except Exception as error:  # whatever the class's own code raises
            name = getattr(node.__fn_or_cls__, "__name__", "it")
            said = " ".join(f"{type(error).__name__}: {error}".split())
            raise Unreadable(f"{name} refuses its fields: {said}") from error


class _Entered:
    """Notes what is being made, while it is."""

    def __init__(self, chain: list[Any], item: Any):
        self._chain, self._item = chain, item

    def __enter__(self) -> None:
        self._chain.append(self._item)

    def __exit__(self, *_: object) -> None:
        self._chain.pop()
