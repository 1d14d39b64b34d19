"""The components that a graph can name, with every setting and its description."""

from __future__ import annotations

import contextlib
import dataclasses
import enum
import functools
import importlib
import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import BadInput

PACKAGES = (
    *("program", "models", "layers", "tasks", "losses", "metrics", "optim", "data"),
    *("checkpoint", "records", "parallel", "durations", "study"),
)
# Functions that graphs name, beside the recipes of optimizers.
FUNCTIONS: Mapping[str, tuple[str, ...]] = {
    "layers": ("as_scored", "query_and_others", "renormalized")
}
_UNITS = ("steps", "tokens", "epochs", "bytes", "seconds")
_ENTRY = re.compile(r"(?P<names>\*{0,2}\w+(?:, \w+)*): (?P<text>.*)")


@dataclasses.dataclass(frozen=True)
class ComponentSetting:
    """One argument of a component.

    Args:
      name: Its name.
      type: Its annotation, as it is written; empty without one.
      default: Its default; None if it has none.
      range: The allowed values, as `0 <= x < 1`; empty if no range is declared.
      unit: Its unit, if that is the suffix of its name.
      inherited: Whether the component above it in a model passes it down.
      text: Its description in the docstring.
    """

    name: str
    type: str
    default: str | None
    range: str
    unit: str
    inherited: bool
    text: str


@dataclasses.dataclass(frozen=True)
class Component:
    """A class or function that a graph may name.

    Args:
      name: Its public name.
      summary: The first paragraph of its docstring.
      settings: Its arguments, in their order.
      relations: The relations that must hold between them.
    """

    name: str
    summary: str
    settings: tuple[ComponentSetting, ...]
    relations: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package that it belongs to."""
        return self.name.split(".")[1]


@functools.cache
def components() -> tuple[Component, ...]:
    """Return the shipped components: packages in their order, names sorted; contrib is last."""
    core = (
        describe(target, f"luthier.{package}.{name}")
        for package in PACKAGES
        for name, target in _in_package(package)
    )
    return (*core, *(one for one in added_components() if one.name.startswith("luthier.")))


@functools.cache
def added_components() -> tuple[Component, ...]:
    """Return the components of entry points, by name: those of contrib and of other distributions.

    A component that cannot be imported is left out, so that it does not hide the others.
    """
    from luthier.graph import entry_points
    from luthier.graph.public_names import load_object

    found = []
    for name in sorted(entry_points.targets()):
        with contextlib.suppress(BadInput):
            found.append(describe(load_object(name), name))
    return tuple(found)


def _in_package(package: str) -> Iterator[tuple[str, Any]]:
    """Yield the components that a package exports, by name."""
    from luthier.graph import public_names

    module = importlib.import_module(f"luthier.{package}")
    names = getattr(module, "__all__", None)
    if names is None:  # `durations` is a module without `__all__`: its own classes are public
        own = [name for name, x in vars(module).items() if inspect.isclass(x)]
        names = [name for name in own if vars(module)[name].__module__ == module.__name__]
    for name in sorted(names):
        # The list of what records may name says which public classes are states, results or
        # machinery, which no graph names.
        if public_names.role_of(f"luthier.{package}.{name}") in ("", "none"):
            continue
        if name in FUNCTIONS.get(package, ()) or _is_component(getattr(module, name)):
            yield name, getattr(module, name)


def _is_component(target: Any) -> bool:
    # Functions in a graph are recipes of optimizers, known by their annotation; all other functions
    # are called by programs. `_is_protocol` is the attribute that `typing` sets on Protocol
    # classes; before Python 3.13, which has `typing.is_protocol`, there is no public way to ask.
    if inspect.isfunction(target):
        return inspect.signature(target).return_annotation == "Optimizer"
    is_open = inspect.isabstract(target) or getattr(target, "_is_protocol", False)
    return isinstance(target, type) and not is_open and not issubclass(target, enum.Enum)


def describe(target: Any, name: str) -> Component:
    """Return the description of a class or function.

    Args:
      target: The class or function.
      name: Its public name.
    """
    from luthier.graph import signatures
    from luthier.graph.render import text_of

    # Names and defaults come from luthier's own reading of signatures, which knows those of Flax
    # modules (a plain `inspect.signature` sees `*args, **kwargs`); texts from docstrings; ranges
    # and relations from what the component declares for validation.
    known = signatures.arguments(target)
    inherited = signatures.inherited(target)
    ranges, types, texts = getattr(target, "RANGES", {}), _types(target), _descriptions(target)
    settings = tuple(
        ComponentSetting(
            name=part,
            type=types.get(part, ""),
            default=text_of(known.defaults[part]) if part in known.defaults else None,
            range=ranges.get(part, ""),
            unit=next((unit for unit in _UNITS if part.endswith(f"_{unit}")), ""),
            inherited=part in inherited,
            text=texts.get(part, ""),
        )
        for part in known.names
    )
    return Component(name, _summary(target), settings, tuple(getattr(target, "RELATIONS", ())))


def _types(target: Any) -> dict[str, str]:
    """Return the annotations as they are written in the source."""
    # The text of the source is the same in all versions of Python; evaluated annotations, above all
    # unions, are not. Annotations that are no text are those of libraries.
    found: dict[str, str] = {}
    for name, parameter in inspect.signature(target).parameters.items():
        annotation = parameter.annotation
        if annotation is not parameter.empty:
            is_text = isinstance(annotation, str)
            found[name] = annotation if is_text else inspect.formatannotation(annotation)
    return found


def _docstrings(target: Any) -> Iterator[str]:
    """Yield the docstrings that may describe arguments: its own, then those of its bases."""
    for owner in inspect.getmro(target) if isinstance(target, type) else (target,):
        for text in (owner.__doc__, getattr(owner.__dict__.get("__init__"), "__doc__", None)):
            if text and owner is not object:
                yield inspect.cleandoc(text)


def _summary(target: Any) -> str:
    own = inspect.cleandoc(target.__doc__ or "")
    return " ".join(own.split("\n\n")[0].split())


def _descriptions(target: Any) -> dict[str, str]:
    """Return the descriptions of arguments in the docstrings; a class comes before its bases."""
    found: dict[str, str] = {}
    for docstring in _docstrings(target):
        for name, text in _arguments(docstring):
            found.setdefault(name, text)
    return found


def _arguments(docstring: str) -> Iterator[tuple[str, str]]:
    """Yield (argument, text) of the section `Args:`."""
    # The format is Google's, with two spaces: `name: text`, or `a, b: text` for arguments that
    # share a text; deeper lines continue it, and the next line without an indent ends the section.
    # "end" makes the last entry come out, too.
    _, _, section = docstring.partition("\nArgs:\n")
    names: list[str] = []
    lines: list[str] = []
    for line in [*section.splitlines(), "end"]:
        indent = len(line) - len(line.lstrip())
        match = _ENTRY.match(line.strip())
        if line.strip() and (indent == 0 or (indent == 2 and match)):
            yield from ((name.lstrip("*"), " ".join(lines)) for name in names)
            names, lines = [], []
            if indent == 0:
                return
            names, lines = match["names"].split(", ") if match else [], [match["text"]]  # type: ignore[index]
        elif line.strip():
            lines.append(line.strip())


def snapshot(found: Sequence[Component]) -> str:
    """Return one line for each setting, `component.argument = default`.

    Args:
      found: The components.
    """
    lines = []
    for component in found:
        for setting in component.settings:
            default = f" = {setting.default}" if setting.default is not None else ""
            lines.append(f"{component.name}.{setting.name}{default}")
    return "\n".join(lines) + "\n"
