"""The line of a file that sets a key of its ConfigDict, as far as the text tells."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

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
    """Yield (key, line) for everything that looks as if it set a key; the variable is left out."""
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
    """Return the names behind a variable (`config.optimizer['lr']`); None where it is no path."""
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
    """Yield the keys of a dict that is written out, or made by a call such as `ConfigDict(...)`."""
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
