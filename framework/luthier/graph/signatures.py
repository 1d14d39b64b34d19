"""Signatures of the callables of a graph: argument names, defaults and annotations, cached.

`inspect.signature` of an NNX class is `(*args, **kwargs)`, because flax's metaclass defines
`__call__`; Fiddle could then neither check names nor show defaults. `install` gives the metaclass a
`__signature__` that answers with the signature of `__init__`, when flax is imported (or at once
where flax is already there), without importing flax. The functions of `luthier.graph` call it when
they need it, and `luthier.install` does; no import does. A node of an NNX class that was made
before takes any name; `copies.renew` reads its names again, and `validate` reports wrong ones.

The shim relies on two private names, `flax.nnx.pytreelib.PytreeMeta` and Fiddle's
`_signature_cache`; tests/graph/test_signatures.py fails when either moves.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib.machinery
import inspect
import sys
import types
from collections.abc import Callable, Mapping
from typing import Any

import fiddle as fdl
import typing_extensions
from fiddle._src import signatures as fiddle_signatures  # private: only it has the cache

_FLAX_MODULE = "flax.nnx.pytreelib"
_FLAX_METACLASS = "PytreeMeta"

UNSET = fdl.NO_VALUE
"""The value of an argument that is not set and has no default."""

_forget: list[Callable[[], None]] = []  # what clears each cache of `cached`


def _module_signature(cls: type) -> inspect.Signature:
    """Return the signature of `cls.__init__` without `self`."""
    # Spelled with getattr, because mypy rejects reading `__init__` from a class whose subclass may
    # define it otherwise. A class without an `__init__` has that of object: `(*args, **kwargs)`.
    maker: Any = getattr(cls, "__init__")  # noqa: B009
    if maker is object.__init__:
        return inspect.Signature()
    signature = inspect.signature(maker)
    return signature.replace(parameters=list(signature.parameters.values())[1:])


def _patch(module: types.ModuleType) -> None:
    metaclass = getattr(module, _FLAX_METACLASS, None)
    if metaclass is None:
        raise ImportError(
            f"{_FLAX_MODULE} has no {_FLAX_METACLASS}: luthier cannot read the arguments of NNX "
            "modules with this flax; install a version that pyproject.toml allows"
        )
    # A property on the metaclass, so that it is an attribute of every class but of no instance;
    # `inspect.signature` looks there before it looks at the metaclass' `__call__`.
    metaclass.__signature__ = property(_module_signature)
    # Fiddle offers no way to forget signatures, and may have cached `(*args, **kwargs)` already.
    fiddle_signatures._signature_cache.clear()


class _PatchAfterImport:
    """A finder that patches flax's module right after its own loader has run it."""

    # Importing flax here would make every command wait for jax, and patching later, at some call of
    # ours, would miss nodes that the user's module makes when it is imported. So the import itself
    # is hooked: the finder stands first in `sys.meta_path`, lets the others find the module, and
    # wraps its loader. It removes itself once the module was loaded.

    @staticmethod
    def find_spec(
        name: str, path: Any = None, target: Any = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Find `name` with the other finders, and wrap its loader where it is flax's module."""
        # Called for every import of the process until flax is imported, so all others leave here.
        if name != _FLAX_MODULE:
            return None
        for finder in sys.meta_path:
            if finder is _PatchAfterImport or not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                # After `exec_module`, when the metaclass exists, and before the import returns, so
                # that no class of a user can be described without its names.
                run_then_patch = functools.partial(_run_then_patch, spec.loader.exec_module)
                spec.loader.exec_module = run_then_patch  # type: ignore[method-assign]
                return spec
        return None


def _run_then_patch(run: Callable[[types.ModuleType], None], module: types.ModuleType) -> None:
    run(module)
    _patch(module)
    if _PatchAfterImport in sys.meta_path:
        sys.meta_path.remove(_PatchAfterImport)  # type: ignore[arg-type]


def install() -> None:
    """Install the shim: now if flax is imported, else as soon as it is."""
    # A module is in `sys.modules` before it has run: without the metaclass it is being imported.
    module = sys.modules.get(_FLAX_MODULE)
    if module is not None and hasattr(module, _FLAX_METACLASS):
        if not isinstance(getattr(module, _FLAX_METACLASS).__dict__.get("__signature__"), property):
            _patch(module)
    elif _PatchAfterImport not in sys.meta_path:
        sys.meta_path.insert(0, _PatchAfterImport)  # type: ignore[arg-type]


def uninstall() -> None:
    """Remove the shim, and forget the signatures that were read through it."""
    if _PatchAfterImport in sys.meta_path:
        sys.meta_path.remove(_PatchAfterImport)  # type: ignore[arg-type]
    module = sys.modules.get(_FLAX_MODULE)
    metaclass = getattr(module, _FLAX_METACLASS, None)
    if metaclass is not None and "__signature__" in metaclass.__dict__:
        del metaclass.__signature__
        fiddle_signatures._signature_cache.clear()
        for forget in _forget:
            forget()


def is_module_class(target: object) -> bool:
    """Return whether `target` is an NNX module class (without importing flax)."""
    module = sys.modules.get(_FLAX_MODULE)
    return module is not None and isinstance(target, getattr(module, _FLAX_METACLASS))


def inherited(target: object) -> tuple[str | int, ...]:
    """Return the arguments that callers of a template of `target` pass: `INHERITED` and `rngs`.

    Returns:
      Their keys in a node: names, and indices too of those that are positional-only.
    """
    declared: tuple[str | int, ...] = tuple(getattr(target, "INHERITED", ()))
    if declared and callable(target):
        names = arguments(target).positional_only
        declared += tuple(index for index, name in enumerate(names) if name in declared)
    return (*declared, "rngs") if is_module_class(target) else declared


@dataclasses.dataclass(frozen=True)
class Arguments:
    """The arguments of one callable.

    Args:
      names: Arguments that can be set by name, in the order of the signature.
      defaults: Default by name; results of dataclass default factories are in it, and are never
        to be changed in place.
      positional_only: Names of arguments that can only be given by position.
      has_args: Whether there is an `*args`, which a graph does not support.
      has_kwargs: Whether any further name is accepted.
    """

    names: tuple[str, ...]
    defaults: Mapping[str, Any]
    positional_only: tuple[str, ...]
    has_args: bool
    has_kwargs: bool

    @functools.cached_property
    def required(self) -> tuple[str | int, ...]:
        """The arguments that have no default, by the keys of Fiddle.

        These are indices for positional-only ones, and names for the others.
        """
        positional = enumerate(self.positional_only)
        return (
            *(index for index, name in positional if name not in self.defaults),
            *(name for name in self.names if name not in self.defaults),
        )

    def name_of(self, key: str | int) -> str:
        """Return the name of an argument.

        Args:
          key: Its key: an index if it is positional-only.
        """
        return self.positional_only[key] if isinstance(key, int) else key


def cached(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Cache results by the callable; without a cache for callables that cannot be hashed."""
    # `uninstall` has to clear these caches too: they hold signatures that were read through the
    # shim.
    remembered = functools.lru_cache(maxsize=8192)(function)

    @functools.wraps(function)
    def call(target: Any) -> Any:
        try:
            return remembered(target)
        except TypeError:
            return function(target)

    _forget.append(remembered.cache_clear)
    return call


@cached
def arguments(target: Callable[..., Any]) -> Arguments:
    """Return the arguments of `target`.

    Args:
      target: A class or function.

    Returns:
      Its arguments; a callable without a readable signature takes any keyword.
    """
    # The signature of a dataclass has a sentinel as the default of a field with a factory; `show`,
    # `validate` and fingerprints need the value, so the factory is called.
    install()
    try:
        signature = fiddle_signatures.get_signature(target)
    except (ValueError, TypeError):  # of C, without a text signature; or not callable
        return Arguments((), {}, (), has_args=True, has_kwargs=True)
    factories = _factories(target)
    names: list[str] = []
    positional: list[str] = []
    defaults: dict[str, Any] = {}
    has_args = has_kwargs = False
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            has_args = True
            continue
        if parameter.kind is parameter.VAR_KEYWORD:
            has_kwargs = True
            continue
        (positional if parameter.kind is parameter.POSITIONAL_ONLY else names).append(name)
        if name in factories:
            defaults[name] = factories[name]()
        elif parameter.default is not parameter.empty:
            defaults[name] = parameter.default
    return Arguments(tuple(names), defaults, tuple(positional), has_args, has_kwargs)


def _factories(target: object) -> dict[str, Callable[[], Any]]:
    if not (isinstance(target, type) and dataclasses.is_dataclass(target)):
        return {}
    return {
        field.name: field.default_factory
        for field in dataclasses.fields(target)
        if field.default_factory is not dataclasses.MISSING
    }


@cached
def type_hints(target: Callable[..., Any]) -> Mapping[str, Any]:
    """Return the resolved annotations of `target`'s arguments, and `return` where there is one.

    Args:
      target: A class or function.

    Returns:
      Annotation by argument name. One that cannot be resolved (a name that is imported for type
      checkers only, say) is left out, alone.
    """
    # Annotations may use names that exist only for type checkers, and `get_type_hints` fails as a
    # whole for one of them. Then each annotation is resolved alone, so that the other arguments of
    # the function (optax has such) are still checked.
    hints: dict[str, Any] = {}
    for source, scope in _annotated(target):
        try:
            hints.update(typing_extensions.get_type_hints(source, scope, include_extras=True))
            continue
        except Exception:  # an annotation may raise anything when it is evaluated
            pass
        for name, annotation in getattr(source, "__annotations__", {}).items():
            alone = types.SimpleNamespace(__annotations__={name: annotation})
            try:
                hints.update(typing_extensions.get_type_hints(alone, scope, include_extras=True))
            except Exception:  # left out: the type of the current value decides instead
                hints.pop(name, None)
    return {
        name: hint.type if isinstance(hint, dataclasses.InitVar) else hint
        for name, hint in hints.items()
    }


def _annotated(target: Any) -> list[tuple[Any, dict[str, Any] | None]]:
    """Return the objects that carry the annotations of `target`; later ones win."""
    # Which ones do follows how the arguments of a call are taken: those of the wrapped function of
    # a partial or decorator; of the first `__init__` or `__new__` of a class; but of all bases of a
    # dataclass, whose generated `__init__` has the fields of each. The scope is that of the module
    # that wrote the annotation, since a base class may be from another one.
    target = typing_extensions.get_origin(target) or target
    if isinstance(target, functools.partial):
        return _annotated(target.func)
    if not isinstance(target, type):
        target = inspect.unwrap(target)
        if not hasattr(target, "__annotations__"):
            target = type(target).__call__
        return [(target, getattr(target, "__globals__", None))]
    for cls in target.__mro__:
        if "__init__" in cls.__dict__ or "__new__" in cls.__dict__:
            settings = cls.__dict__.get("__dataclass_params__")
            if settings is not None and settings.init:
                # `types` stands in for a module that is not in `sys.modules`, as `vars` needs one.
                # Like an empty scope, it lacks the names of that module, so that annotations which
                # use them are left out; its own names are hardly ever written without `types.`.
                return [
                    (_own_annotations(part), vars(sys.modules.get(part.__module__, types)))
                    for part in reversed(cls.__mro__)
                ]
            maker = cls.__dict__.get("__init__") or cls.__dict__["__new__"]
            maker = getattr(maker, "__func__", maker)  # `__new__` is a staticmethod in its class
            return [(maker, getattr(maker, "__globals__", None))]
    return []


def _own_annotations(cls: type) -> types.SimpleNamespace:
    # A class variable is no field. As text, since under `from __future__ import annotations` it
    # is one and need not be resolvable.
    own = {
        name: annotation
        for name, annotation in inspect.get_annotations(cls).items()
        if not str(annotation).startswith(("ClassVar", "typing.ClassVar"))
    }
    return types.SimpleNamespace(__annotations__=own)
