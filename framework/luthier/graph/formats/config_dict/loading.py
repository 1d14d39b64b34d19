"""Files with `get_config()`: loaded, with the line that sets each key."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import re
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from luthier.errors import BadInput, OverrideError, Problem
from luthier.graph.grammar.names import failure_line
from luthier.graph.grammar.types import members
from luthier.graph.origins import short_file
from luthier.graph.paths import nearest

# The line of a key. A ConfigDict does not record where its keys were set, so the lines are guessed
# from the syntax tree, for origins only: a wrong guess costs nothing but a misleading line.

Key = tuple[str, ...]

_DICTS = ("dict", "ConfigDict", "FrozenConfigDict", "create", "update")


def find_lines(text: str) -> Callable[[Key], int]:
    """Return the function from a key to the line that sets it.

    A key is found by its whole path, as `config.optimizer.lr = ...` names it; or else by its end,
    where only one line sets something of that name. 0 stands for keys that are not found.

    Args:
      text: Python that can be compiled.
    """
    found: dict[Key, list[int]] = {}
    for names, line in _settings(ast.parse(text)):
        found.setdefault(names, []).append(line)

    def line_of(key: Key) -> int:
        if key in found:
            return found[key][-1]
        for start in range(1, len(key)):
            lines = found.get(key[start:], ())
            if lines:
                return lines[0] if len(set(lines)) == 1 else 0
        return 0

    return line_of


def _settings(tree: ast.AST) -> Iterator[tuple[Key, int]]:
    """Yield (key, line) for everything that looks as if it set a key; without the variable."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            for target in targets:
                names = _names(target)
                if names:
                    yield names, node.lineno
                if names is not None and node.value is not None:
                    yield from _inside(node.value, names)
        elif isinstance(node, ast.Return) and node.value is not None:
            yield from _inside(node.value, ())
        elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            called = node.value.func  # config.optimizer.update(lr=...)
            names = _names(called.value) if isinstance(called, ast.Attribute) else None
            if names is not None:
                yield from _inside(node.value, names)


def _names(target: ast.expr) -> Key | None:
    """Return the names behind a variable (`config.optimizer['lr']`); None for anything else."""
    if isinstance(target, ast.Name):
        return ()
    if isinstance(target, ast.Attribute):
        above, name = _names(target.value), target.attr
    elif isinstance(target, ast.Subscript) and isinstance(target.slice, ast.Constant):
        above, name = _names(target.value), str(target.slice.value)
    else:
        return None
    return None if above is None else (*above, name)


def _inside(value: ast.expr, above: Key) -> Iterator[tuple[Key, int]]:
    """Yield the keys of a dict literal, or of a call such as `ConfigDict(...)`."""
    if isinstance(value, ast.Dict):
        for key, child in zip(value.keys, value.values, strict=True):
            if isinstance(key, ast.Constant):
                yield (*above, str(key.value)), key.lineno
                yield from _inside(child, (*above, str(key.value)))
    elif isinstance(value, ast.Call):
        name = getattr(value.func, "attr", getattr(value.func, "id", ""))
        if name not in _DICTS:
            return
        for argument in value.args:
            yield from _inside(argument, above)
        for keyword in value.keywords:
            if keyword.arg:
                yield (*above, keyword.arg), keyword.lineno
                yield from _inside(keyword.value, (*above, keyword.arg))


# The files: run as ml_collections' flags run them, `FILE.py` or `FILE.py:ARG`.

FUNCTION, TABLE = "get_config", "RENAMES"
SOURCE = "config_dict"
"""The name of a ConfigDict that was not read from a file."""
_WRITTEN = re.compile(r"(?P<file>.+?\.py)(?::(?P<argument>.*))?", re.DOTALL)


@dataclasses.dataclass(frozen=True)
class Loaded:
    """The contents of a file with `get_config()`.

    Args:
      config: The ConfigDict that it returned.
      source: The file, as errors and origins show it.
      lines: Returns the line of the file that sets a key; 0 where it is unknown.
      renames: Its `RENAMES`.
    """

    config: Any
    source: str
    lines: Callable[[tuple[str, ...]], int] = lambda key: 0
    renames: Mapping[str, Any] = dataclasses.field(default_factory=dict)


def is_config_dict(annotation: Any) -> bool:
    """Return whether an argument is annotated as a ConfigDict.

    Args:
      annotation: The annotation of the argument.
    """
    # By name, because most commands do not import ml_collections.
    return any(
        getattr(member, "__name__", "") == "ConfigDict"
        and member.__module__.startswith("ml_collections.")
        for member in members(annotation)
    )


def load_config_dict(written: str) -> Any:
    """Return the ConfigDict that the `get_config` of a file returns.

    Args:
      written: `FILE.py`, or `FILE.py:ARGUMENT` where `get_config` takes one string.

    Returns:
      The `ml_collections.ConfigDict`, as the function returned it.

    Raises:
      OverrideError: The file cannot be read, raises (reported with file and line), or returns
        something else.

    Example:
      >>> from luthier import graph
      >>> with open("config.py", "w") as file:
      ...     print("import ml_collections", file=file)
      ...     print("def get_config(): return ml_collections.ConfigDict({'lr': 0.1})", file=file)
      >>> graph.load_config_dict("config.py").lr
      0.1
    """
    return load(written).config


def load(written: str) -> Loaded:
    """Return the contents of a file with `get_config()`; see `load_config_dict`."""
    match = _WRITTEN.fullmatch(written)
    if match is None:
        remedy = "write it like FILE.py or FILE.py:ARGUMENT"
        raise OverrideError(Problem(f"{written!r} is not a file with a ConfigDict", remedy=remedy))
    file, argument = match["file"], match["argument"]
    text = _read(file)
    source = short_file(file)
    # A module of its own, outside of `sys.path` and gone afterwards: two files of one name do not
    # meet, and the file is run again each time, with its own argument.
    module = types.ModuleType(f"config_dict_of_{re.sub(r'[^a-zA-Z0-9]', '_', file)}")
    module.__file__ = file
    sys.modules[module.__name__] = module  # dataclasses look for the module that they are in
    try:
        _guarded(lambda: exec(compile(text, file, "exec"), vars(module)), source)
        function = _function(module, source)
        given = () if argument is None else (argument,)
        # Before the call, whose own TypeErrors are reported with the line of the file.
        _check_call(function, given, source)
        made = _guarded(lambda: function(*given), source)
    finally:
        sys.modules.pop(module.__name__, None)
    renames = getattr(module, TABLE, {})
    if not isinstance(renames, Mapping):
        remedy = 'write it like {"optimizer.lr": "optimizer.learning_rate"}'
        raise OverrideError(Problem(f"{TABLE} of {source} is not a dict", remedy=remedy))
    return Loaded(
        as_config_dict(made, f"the value that {FUNCTION} of {source} returned"),
        source,
        find_lines(text),
        renames,
    )


def as_config_dict(made: Any, source: str) -> Any:
    """Return a ConfigDict, or a dict as one.

    Args:
      made: A ConfigDict or dict.
      source: Its name in the error.

    Raises:
      OverrideError: It is neither.
    """
    import ml_collections

    if isinstance(made, ml_collections.ConfigDict):
        is_frozen = isinstance(made, ml_collections.FrozenConfigDict)
        return ml_collections.ConfigDict(made) if is_frozen else made
    if isinstance(made, Mapping):
        return ml_collections.ConfigDict(dict(made), allow_dotted_keys=True)
    remedy = "return a ConfigDict" if made is not None else "its return may be missing"
    what = f"{source} is of type {type(made).__name__}, not a ConfigDict"
    raise OverrideError(Problem(what, remedy=remedy))


def _read(file: str) -> str:
    try:
        with open(file, encoding="utf-8-sig") as opened:
            return opened.read()
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "not a valid file name"
        if isinstance(error, UnicodeDecodeError):
            reason = "it is not text in UTF-8"
        raise OverrideError(Problem(f"cannot read the file {file!r}: {reason}")) from error


def _guarded(run: Callable[[], Any], source: str) -> Any:
    try:
        return run()
    except BadInput:
        raise
    except Exception as error:  # whatever somebody else's code raises
        raise OverrideError(Problem(f"{source} failed: {failure_line(error)}")) from error


def _function(module: types.ModuleType, source: str) -> Callable[..., Any]:
    function = getattr(module, FUNCTION, None)
    if callable(function):
        return function
    own = [name for name, found in vars(module).items() if inspect.isfunction(found)]
    what = f"there is no function {FUNCTION!r} in {source}"
    raise OverrideError(Problem(what, nearest=nearest(FUNCTION, own)))


def _check_call(function: Callable[..., Any], given: tuple[str, ...], source: str) -> None:
    try:
        inspect.signature(function).bind(*given)
    except TypeError:
        what = f"{FUNCTION} of {source} takes no argument"
        remedy = f"write {source} alone"
        if not given:
            what, remedy = f"{FUNCTION} of {source} needs an argument", f"write {source}:ARGUMENT"
        raise OverrideError(Problem(what, remedy=remedy)) from None
