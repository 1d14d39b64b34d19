"""Exceptions of the user's code: where they were raised, and with which arguments.

The user's code is what belongs neither to luthier, nor to Python, nor to an installed package.
"""

from __future__ import annotations

import contextlib
import inspect
import linecache
import pathlib
import re
import site
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any

from luthier import faults

_PACKAGE = pathlib.Path(__file__).resolve().parent
_LONGEST = 180  # characters of a line, beside `luthier: ` in front of it
_NUM_FRAMES = 3
_PATH = "__luthier_path__"
# CPython's words for a call whose arguments do not fit: `Block.__call__() got an unexpected ...`.
_MISCALLED = re.compile(r"([\w.]+)\.(\w+)\(\) (?:got|missing|takes)\b")


def is_users(filename: str) -> bool:
    """Return whether a source file is the user's: not luthier's, Python's, or a package's.

    Args:
      filename: As code objects have it.
    """
    if filename.startswith("<"):
        return False
    path = pathlib.Path(filename)
    parts = path.parts
    if "site-packages" in parts or "dist-packages" in parts:
        return False
    return not any(path.is_relative_to(folder) for folder in _foreign_folders())


def is_users_component(component: Any) -> bool:
    """Return whether a class or function is defined in the user's code.

    Args:
      component: The class or function of a node.
    """
    module = sys.modules.get(getattr(component, "__module__", None) or "")
    return is_users(getattr(module, "__file__", None) or "<none>")


def frames(error: BaseException) -> list[tuple[FrameType, int]]:
    """Return the frames of an exception in the user's code, each with its line, innermost last.

    The innermost cause with such a frame counts: a wrapped error was raised there.

    Args:
      error: The exception, caught below the code that called luthier.
    """
    found: list[tuple[FrameType, int]] = []
    for link in faults.chain(error):
        own = [
            (frame, line)
            for frame, line in traceback.walk_tb(link.__traceback__)
            if is_users(frame.f_code.co_filename)
        ]
        found = own or found
        # Causes that were raised explicitly (`raise ... from`) are followed to the end; an implicit
        # context is often unrelated.
        if found and link.__cause__ is None:
            break
    return found


def place(error: BaseException) -> str:
    """Return the innermost of `frames` as `my_project/layers.py:12, in __call__`; or nothing."""
    found = frames(error)
    if not found:
        return ""
    frame, line = found[-1]
    return f"{_short(frame.f_code.co_filename)}:{line}, in {frame.f_code.co_name}"


def locate(error: BaseException, path: str) -> None:
    """Note the path of the node that was at work when an exception was raised.

    Args:
      error: The exception.
      path: The path, for where nothing else shows it: an iterator of data is no node.
    """
    with contextlib.suppress(Exception):  # an exception class with __slots__
        setattr(error, _PATH, path)


def located(error: BaseException) -> str:
    """Return the path that `locate` has noted for an exception; empty for none."""
    paths = (getattr(link, _PATH, "") for link in faults.chain(error))
    return next(filter(None, paths), "")


def miscalled(error: BaseException) -> tuple[str, str]:
    """Return class and attribute of a call that failed before a frame of the callee began.

    `Block.__call__() got an unexpected keyword argument 'segments'` is raised in the frame of the
    caller, and `'Block' object has no attribute 'init_cache'` too.

    Args:
      error: The exception.

    Returns:
      The qualified name of the class, and the name of the method or attribute; empty ones for
      other errors.
    """
    for link in reversed(list(faults.chain(error))):
        if isinstance(link, TypeError) and (match := _MISCALLED.match(str(link))):
            return match[1], match[2]
        if isinstance(link, AttributeError) and link.obj is not None and link.name:
            kind = link.obj if isinstance(link.obj, type) else type(link.obj)
            return kind.__qualname__, link.name
    return "", ""


def summary(error: BaseException, longest: int = _LONGEST) -> str:
    """Return the class and the first line of the message of an exception.

    Args:
      error: The exception.
      longest: The most characters.
    """
    message = " ".join(str(error).strip().partition("\n")[0].split())
    text = f"{type(error).__name__}: {message}" if message else type(error).__name__
    return _cut(text, longest)


def details(error: BaseException, component: Any = None) -> list[str]:
    """Return the lines that follow the message: innermost frames, and what was called.

        my_project/layers.py:31, in Block.__call__: return self.out(jnp.tanh(x))
        called with x=float32[8,256,64], keys=None

    Args:
      error: The exception.
      component: The user's class or function that is at fault, where no frame shows it.
    """
    found = frames(error)
    if not found and component is not None:
        given = ", ".join(_arrays_of_caller(error))
        lines = definition(component, miscalled(error)[1])
        return [*lines, _cut(f"  called where {given}")] if given else lines
    if not found:
        return []
    lines = []
    for frame, line in found[-_NUM_FRAMES:]:
        code = frame.f_code
        at = f"{_short(code.co_filename)}:{line}, in {code.co_qualname}"
        source = linecache.getline(code.co_filename, line).strip()
        lines.append(_cut(f"  {at}: {source}" if source else f"  {at}"))
    with contextlib.suppress(Exception):  # the repr of a value of the user's
        if given := ", ".join(_arguments(*found[-1])):
            lines.append(_cut(f"  called with {given}"))
    return lines


def described(value: Any) -> str:
    """Return a value in a few characters; arrays as JAX writes their types, `float32[8,256]`."""
    shape, dtype = getattr(value, "shape", None), getattr(value, "dtype", None)
    if isinstance(shape, tuple) and dtype is not None:
        return f"{dtype}[{','.join(map(str, shape))}]"
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 20 else f"{value[:17]}...")
    if isinstance(value, Mapping) and value:
        inside = ", ".join(f"{key}: {described(entry)}" for key, entry in value.items())
        return f"{{{inside}}}"
    if isinstance(value, list | tuple):
        inside = ", ".join(map(described, value[:4])) + (", ..." if len(value) > 4 else "")
        return f"[{inside}]" if isinstance(value, list) else f"({inside})"
    return value.__qualname__ if isinstance(value, type) else type(value).__qualname__


def _arguments(frame: FrameType, line: int) -> Iterator[str]:
    code = frame.f_code
    number = code.co_argcount + code.co_kwonlyargcount
    for name in code.co_varnames[:number]:
        if name not in ("self", "cls") and name in frame.f_locals:
            value = frame.f_locals[name]
            if isinstance(value, Mapping):
                value = _read_last_first(value, frame, line)
            yield f"{name}={described(value)}"


def _read_last_first(value: Mapping[Any, Any], frame: FrameType, line: int) -> dict[Any, Any]:
    """Return the entries of a batch, those that were read last before a line in front."""
    # A long line is cut, and a batch of many entries makes one: the entry whose shape does not fit
    # is most often one that the code has just read.
    code = frame.f_code
    lines = [linecache.getline(code.co_filename, i) for i in range(code.co_firstlineno, line + 1)]

    def last_read(key: Any) -> int:
        quoted = (f'"{key}"', f"'{key}'")
        return max((i for i, text in enumerate(lines) if any(q in text for q in quoted)), default=0)

    return {key: value[key] for key in sorted(value, key=last_read, reverse=True)}


def definition(component: Any, *names: str) -> list[str]:
    """Return the line where a method is defined, with its parameters; nothing if it is unknown.

    Args:
      component: A class, or a function.
      names: Methods or properties; the first one that the user's code defines, or else the
        component: the line of a method that it inherits would be one of luthier's.
    """
    found = [getattr(component, name, None) for name in names]
    functions: list[Any] = [one.fget if isinstance(one, property) else one for one in found]
    own = [one for one in functions if hasattr(one, "__code__") and is_users_component(one)]
    target = own[0] if own else component
    with contextlib.suppress(OSError, TypeError, ValueError):
        at = f"{_short(inspect.getsourcefile(target) or '')}:{inspect.getsourcelines(target)[1]}"
        if own:
            return [_cut(f"  {at}: def {target.__qualname__}{inspect.signature(target)}")]
        return [_cut(f"  {at}: {component.__qualname__}")]
    return []


def spec_definition(data: Any) -> list[str]:
    """Return the line of the user's code that says which arrays a batch has, as `definition` does.

    Args:
      data: The class of a data node; a `Table` has `entries`, other nodes a `batch_spec`.
    """
    return definition(data, "batch_spec", "entries")


def _arrays_of_caller(error: BaseException) -> Iterator[str]:
    """Yield the arrays in the frame that made a call which failed before its first line."""
    *_, (frame, _) = traceback.walk_tb(list(faults.chain(error))[-1].__traceback__)
    for name, value in frame.f_locals.items():
        if hasattr(value, "shape") and hasattr(value, "dtype"):
            yield f"{name}={described(value)}"


def _short(filename: str) -> str:
    path = pathlib.Path(filename)
    with contextlib.suppress(ValueError, OSError):
        path = path.relative_to(pathlib.Path.cwd())
    return str(path)


def _cut(text: str, longest: int = _LONGEST) -> str:
    return text if len(text) <= longest else f"{text[: longest - 3]}..."


def _foreign_folders() -> list[pathlib.Path]:
    paths = sysconfig.get_paths()
    folders = [paths["stdlib"], paths["platstdlib"], *site.getsitepackages(), str(_PACKAGE)]
    return [pathlib.Path(folder) for folder in folders]
