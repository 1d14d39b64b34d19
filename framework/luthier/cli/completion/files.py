"""Names in gin files and files with ConfigDicts, and the files themselves; nothing is run."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Sequence

from luthier.cli.completion.index import Candidate

_MACRO = re.compile(r"^([A-Za-z_][\w/]*)[ \t]*=", re.MULTILINE)
_INCLUDE = re.compile(r"^include[ \t]+['\"](.+)['\"]", re.MULTILINE)
_MOST = 50


def offered(typed: str, endings: Sequence[str]) -> Iterator[Candidate]:
    """Yield the files, and the folders on the way to them, that go on from what was typed.

    Args:
      typed: The beginning of a path.
      endings: How names of files end; none for folders only.
    """
    folder, name = os.path.split(typed)
    try:
        entries = sorted(os.scandir(folder or "."), key=lambda entry: entry.name)
    except OSError:
        return
    for entry in entries:
        is_hidden = entry.name.startswith(".") and not name.startswith(".")
        if is_hidden or entry.name == "__pycache__" or not entry.name.startswith(name):
            continue
        path = os.path.join(folder, entry.name)
        if entry.is_dir():
            yield Candidate(path + os.sep)
        elif endings and entry.name.endswith(tuple(endings)):
            yield Candidate(path)


def macros(paths: Sequence[str]) -> Iterator[str]:
    """Yield the macros that gin files define, and those that they include.

    Args:
      paths: The files; what cannot be read is left out.
    """
    pending: list[str] = list(paths)
    seen: set[str] = set()
    while pending and len(seen) < _MOST:
        path = pending.pop(0)
        if path in seen:
            continue
        seen.add(path)
        text = _read(path)
        yield from _MACRO.findall(text)
        for found in _INCLUDE.findall(text):
            pending += [found, os.path.join(os.path.dirname(path), found)]


def keys(written: str) -> Iterator[str]:
    """Yield the keys of a ConfigDict that a file seems to set.

    Args:
      written: `FILE.py`, or `FILE.py:ARGUMENT`.
    """
    path = written.partition(".py:")[0].removesuffix(".py") + ".py"
    try:
        tree = ast.parse(_read(path))
    except (SyntaxError, ValueError):
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            for target in node.targets:
                names = _names(target)
                if names:
                    yield ".".join(names)
                if names or isinstance(target, ast.Name):
                    yield from _inside(node.value, names)


def _names(target: ast.expr) -> list[str]:
    """Return the names behind a variable: `optimizer`, `lr` of `config.optimizer.lr`."""
    names: list[str] = []
    while isinstance(target, ast.Attribute):
        names.insert(0, target.attr)
        target = target.value
    return names if isinstance(target, ast.Name) else []


def _inside(value: ast.expr, above: Sequence[str]) -> Iterator[str]:
    """Yield the keys of a dict or ConfigDict that is written out."""
    if not isinstance(value, ast.Call):
        pairs = zip(value.keys, value.values, strict=True) if isinstance(value, ast.Dict) else ()
        named = [(k.value, v) for k, v in pairs if isinstance(k, ast.Constant)]
    elif getattr(value.func, "attr", getattr(value.func, "id", "")) in ("ConfigDict", "dict"):
        named = [(word.arg, word.value) for word in value.keywords if word.arg]
        for argument in value.args:
            yield from _inside(argument, above)
    else:
        return
    for name, inner in named:
        yield ".".join((*above, str(name)))
        yield from _inside(inner, (*above, str(name)))


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError):
        return ""
