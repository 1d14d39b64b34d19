"""Imports whose classes and functions make nodes when they are called.

    with luthier.lazy.imports():
        from luthier import layers, models

    layers.RMSNorm(epsilon=1e-5)  # fdl.Partial(layers.RMSNorm, epsilon=1e-5)

The file of an experiment then reads like the code that it describes, and makes the graph that
`fdl.Config` and `fdl.Partial` would make.
"""

from __future__ import annotations

import contextlib
import dis
import enum
import inspect
import sys
import types
import weakref
from collections.abc import Mapping
from typing import Any

import fiddle as fdl
import typing_extensions
from fiddle import tagging

from luthier import folders
from luthier.errors import BadInput, Problem
from luthier.graph import copies, grammar, origins, signatures, templates
from luthier.graph.paths import Part, nearest

_MACHINERY = ("fiddle", "luthier.graph")
_MISSING = object()


def imports() -> contextlib.AbstractContextManager[None]:
    """Return a context in which imports bind names whose calls make nodes.

        with luthier.lazy.imports():
            import jax

            from luthier import layers, models
            from my_project.layers import MyBlock

        def experiment():
            mlp = layers.GatedMlp(hidden_dim=384, activation=jax.nn.gelu)
            return program.Experiment(model=models.Decoder(block=MyBlock(mlp=mlp), ...), ...)

    - Calling a class or function makes a config (`fdl.Config`) of it. It makes a template
      (`fdl.Partial`) where it is an argument that is annotated as one (`luthier.layers.Template`,
      or a callable that the object itself is not), and of an NNX module that lacks its `rngs`.
    - Without a call, a name means the object: `activation=jax.nn.gelu`. Constants, enums, dtypes
      and the attributes of classes are always the objects themselves.
    - Functions that are annotated to return a config (the recipes of `luthier.recipes`), or
      nothing, are called, and so is all of `luthier.graph` and Fiddle.

    Type checkers and editors see the imports as they are written.

    Returns:
      A context manager for a `with` statement at module level.

    Raises:
      BadInput: The `with` statement is inside of a function.

    Example:
      >>> from luthier import lazy
      >>> with lazy.imports():
      ...     from luthier import optim
      >>> optim.adamw(learning_rate=3e-4)
      <Config[adamw(learning_rate=0.0003)]>
    """
    return _Imports(sys._getframe(1))  # private by its name alone: the documentation describes it


class _Imports(contextlib.AbstractContextManager[None]):
    """Rebinds what a `with` block has imported, when the block ends."""

    # The block runs as it is written, and afterwards the names that it has bound are bound again,
    # to proxies. The lazy imports of Fiddle and Kauldron replace `builtins.__import__` meanwhile,
    # which every import of the process goes through: those of other threads, and those of the
    # modules that the block imports. Here nothing is replaced, so nothing has to be guarded or
    # restored. The price: before Python 3.13 the variables of a function cannot be rebound.

    def __init__(self, frame: types.FrameType):
        code = frame.f_code
        if code.co_flags & inspect.CO_OPTIMIZED:
            what = f"luthier.lazy.imports() is inside of the function {code.co_name}"
            at = f"{origins.short_file(code.co_filename)}:{frame.f_lineno}"
            raise BadInput(Problem(what, at, remedy="move it to the top level of the module"))
        self._frame = frame
        self._before: dict[str, Any] = {}
        self._start = 0

    def __enter__(self) -> None:
        self._before, self._start = dict(self._frame.f_locals), self._frame.f_lasti

    def __exit__(self, kind: object, *error: object) -> None:
        if kind is not None:
            return
        namespace, end = self._frame.f_locals, self._frame.f_lasti
        # By the instructions of the block, because a name may have been bound to the same module
        # before (by another cell of the notebook, say); and by comparison, because `import *` names
        # nothing, and newer Pythons put the code of `except ImportError:` behind all other code.
        stored = {
            step.argval
            for step in dis.get_instructions(self._frame.f_code)
            if step.opname in ("STORE_NAME", "STORE_GLOBAL") and self._start < step.offset < end
        }
        _Proxy.in_use = True
        for name, value in list(namespace.items()):
            if name in stored or self._before.get(name, _MISSING) is not value:
                namespace[name] = _proxy(value)


def _proxy(value: Any) -> Any:
    """Return the proxy of a module, class or function; any other value as it is."""
    if isinstance(value, types.ModuleType):
        return value if _is_machinery(value.__name__) else _Module(value)
    if inspect.isroutine(value):
        is_component = True
    else:
        # The call of an enum looks a member up, that of a dtype converts a number, and tags and
        # exceptions are no parts of an experiment.
        plain = (enum.Enum, BaseException)
        is_component = isinstance(value, type) and not (
            issubclass(value, plain)
            or grammar.is_dtype(value)
            or isinstance(value, tagging.TagType)
        )
    is_component = is_component and not _is_machinery(getattr(value, "__module__", None))
    return _Component(value) if is_component else value


def _is_machinery(module: str | None) -> bool:
    """Return whether what a module defines works on graphs: it is called, and describes nothing."""
    # No node may point into the folders of experiments, so their functions are called as well.
    names = tuple(f"{one}." for one in _MACHINERY)
    return module is not None and (f"{module}.".startswith(names) or folders.is_experiment(module))


def real(value: Any) -> Any:
    """Return the module, class or function that a lazily imported name stands for.

    Args:
      value: Any value; one that is no proxy is returned as it is.
    """
    return value._target if isinstance(value, _Proxy) else value


class _Proxy:
    """Stands for a module, class or function."""

    __slots__ = ("_target",)
    # Whether anything was imported lazily: else no graph has to be searched for what it left there.
    in_use = False

    def __init__(self, target: Any):
        self._target = target

    def __getattr__(self, name: str) -> Any:
        try:
            return getattr(self._target, name)
        except AttributeError:
            if name.startswith("__"):  # Python asks for these
                raise
            what = f"{self._target.__name__} has no {name!r}"
            near = nearest(name, [one for one in dir(self._target) if not one.startswith("_")])
            meant = f"; did you mean {' or '.join(near)}?" if near else ""
            raise AttributeError(f"{what}{meant}") from None

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return self  # as for modules, classes and functions; the copy has no target to ask at first

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self._target,)

    def __dir__(self) -> list[str]:
        return dir(self._target)

    def __repr__(self) -> str:
        return f"<lazily imported {self._target!r}>"


class _Module(_Proxy):
    """Stands for a module: what it has is lazy as well."""

    __slots__ = ()

    def __getattr__(self, name: str) -> Any:
        return _proxy(super().__getattr__(name))


class _Component(_Proxy):
    """Stands for a class or function: its call makes a node."""

    __slots__ = ()

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        return _call(self._target, args, kwargs)

    # Fiddle, notebooks and `help` look here.
    @property
    def __signature__(self) -> inspect.Signature:
        signatures.install()
        return inspect.signature(self._target)

    @property
    def __doc__(self) -> str | None:  # type: ignore[override]
        return inspect.getdoc(self._target)


# The nodes whose calls did not say whether a config or a template is meant, by id. The first place
# with an annotation decides; nodes of `fdl.Config` are left as their author wrote them.
_UNDECIDED: weakref.WeakValueDictionary[int, fdl.Config] = weakref.WeakValueDictionary()


def _call(target: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # As `resolve` does before it calls an experiment: without the signatures of NNX modules Fiddle
    # would take any name, and without our locations this file would be the origin of every value.
    signatures.install()
    origins.install()
    if _is_called(target):
        return target(*map(real, args), **{part: real(value) for part, value in kwargs.items()})
    known, slots = signatures.arguments(target), grammar.slots(target)
    unknown = [name for name in kwargs if name not in known.names]
    if unknown and not known.has_kwargs:
        near = nearest(unknown[0], known.names)
        hint = (
            f"did you mean {' or '.join(near)}?" if near else f"it takes {', '.join(known.names)}"
        )
        raise TypeError(f"{target.__name__} has no argument {unknown[0]!r}; {hint}")
    if len(args) > len(slots) and not known.has_args:
        takes = ", ".join(map(known.name_of, slots)) or "no arguments"
        what = f"{target.__name__} takes {takes}, and is given {len(args)} arguments without a name"
        raise TypeError(what)
    hints, named = signatures.type_hints(target), dict[Part, Any]()
    for part, value in (*zip(slots, args, strict=False), *kwargs.items()):
        if part in named:
            raise TypeError(f"{target.__name__} is given {part!r} twice")
        named[part] = settle(value, _hint(hints, part))
    first = [named[part] for part in slots[: len(args)]]
    rest = [real(value) for value in args[len(slots) :]]
    kind = grammar.kind_of(target, named)
    node = kind(target, *first, *rest, **{part: named[part] for part in kwargs})
    if kind is fdl.Config:
        _UNDECIDED[id(node)] = node
    return node


def _is_called(target: Any) -> bool:
    """Return whether a function works on graphs itself: it returns a node, or nothing.

    A function that was itself written with lazy imports is annotated with their names.
    """
    if isinstance(target, type):
        return False
    returned = signatures.type_hints(target).get("return", Any)
    origin = typing_extensions.get_origin(returned) or returned
    is_node = isinstance(origin, type) and issubclass(origin, fdl.Buildable)
    return is_node or origin is type(None) or isinstance(returned, _Proxy)


def _hint(hints: Mapping[str, Any], part: Part) -> Any:
    return hints.get(part, Any) if isinstance(part, str) else Any


def settle(value: Any, annotation: Any) -> Any:
    """Return a value as a place with this annotation wants it: real objects, and templates.

    Args:
      value: A value, node, or container of them. Lists, dicts and undecided nodes are changed in
        place, so that what they are shared with changes along.
      annotation: The resolved annotation of the place.
    """
    value = real(value)
    if isinstance(value, fdl.Buildable):
        if id(value) in _UNDECIDED and not grammar.admits_anything(annotation):
            del _UNDECIDED[id(value)]
            if grammar.is_template_at(value.__fn_or_cls__, annotation):
                templates.make_template(value)
    elif type(value) in (list, dict):
        for part, child in list(value.items() if type(value) is dict else enumerate(value)):
            value[part] = settle(child, grammar.element(annotation, type(value), part))
    elif type(value) is tuple:
        inside = grammar.element
        children = [settle(one, inside(annotation, tuple, i)) for i, one in enumerate(value)]
        if any(new is not old for new, old in zip(children, value, strict=True)):
            return tuple(children)
    return value


def settle_graph(graph: Any) -> None:
    """Replace, in place, what assignments of lazily imported names have left in a graph.

    `graph.model.block.mlp.activation = jax.nn.gelu` puts the proxy in the graph: no call that could
    resolve it sees the value.

    Args:
      graph: A node.
    """
    for node in list(copies.nodes_of(graph)) if _Proxy.in_use else ():
        if isinstance(node.__fn_or_cls__, _Proxy):  # `fdl.Config(layers.Mlp)`
            made = type(node)(real(node.__fn_or_cls__))
            for name in ("__fn_or_cls__", "__signature_info__"):
                object.__setattr__(node, name, made.__dict__[name])
            for part, tags in made.__argument_tags__.items():
                node.__argument_tags__[part].update(tags)
        hints = signatures.type_hints(node.__fn_or_cls__)
        for part, value in list(node.__arguments__.items()):
            settled = settle(value, _hint(hints, part))
            if settled is not value:  # past Fiddle: who set it stays known
                node.__arguments__[part] = settled
