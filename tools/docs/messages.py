"""Reads the messages of errors out of the source: what luthier refuses, as patterns.

A message is an argument of `Problem(...)`, of an exception of `luthier.errors` or of
`problems.add`. It is seldom a literal there: it has values in it, is put together in a variable, or
is an argument of a function that raises. `messages` follows these within a module, and writes each
value that only a run knows as an upper-case name, such as `{name!r}` as `'NAME'`.
"""

from __future__ import annotations

import ast
import dataclasses
import functools
import inspect
import itertools
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypeVar

from luthier import errors

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "framework" / "luthier"
ANY = "..."
# Exceptions and functions with a message as their first argument. `Unreadable` is caught where the
# path and the origin are known, and raised as an `OverrideError`.
EXCEPTIONS = {
    name: value
    for name, value in vars(errors).items()
    if inspect.isclass(value) and issubclass(value, errors.LuthierError)
}
CALLS = {"Problem", "Unreadable", *EXCEPTIONS}
_MOST = 12  # alternatives of one message; more are written as `...`
T = TypeVar("T", bound=ast.AST)
_DEPTH = 6  # variables, calls and functions that one message leads through


@dataclasses.dataclass(frozen=True)
class Message:
    """A message that luthier can print.

    Args:
      pattern: The message, with upper-case names and `...` for what a run fills in.
      remedy: The part about how to fix it; empty if there is none.
      module: The module that makes it, as `data.text`.
    """

    pattern: str
    remedy: str
    module: str

    @property
    def package(self) -> str:
        """The package of the module, or the module itself where it is in none."""
        return self.module.split(".")[0]

    @property
    def expression(self) -> re.Pattern[str]:
        """A regular expression for the message with its values."""
        return expression(self.pattern)


PLACEHOLDER = re.compile(r"\.\.\.|\b[A-Z][A-Z_]*[A-Z]\b|\bN\b")


def expression(pattern: str) -> re.Pattern[str]:
    """Return a regular expression for the messages of a pattern.

    Args:
      pattern: A message, with upper-case names and `...` for what a run fills in.
    """
    # Quotes of a value are those of its `repr`.
    pattern = re.sub(rf"'({PLACEHOLDER.pattern})'", r"\1", pattern)
    fixed = [re.escape(text) for text in PLACEHOLDER.split(pattern)]
    return re.compile(".*?".join(fixed), re.DOTALL)


@functools.cache
def messages() -> tuple[Message, ...]:
    """Return every message in the source, each once, by module and line."""
    found: dict[tuple[str, str], Message] = {}
    for path in sorted(SOURCE.rglob("*.py")):
        # Files of a project that `luthier init` writes are not luthier's own.
        if "template" not in path.parts:
            for message in of_module(path):
                found.setdefault((message.package, message.pattern), message)
    return tuple(found.values())


def of_module(path: Path, root: Path = SOURCE) -> list[Message]:
    """Return the messages of one module, in the order of their lines.

    Args:
      path: Its file.
      root: The folder of the package, from which the module is named.
    """
    return list(_Module(path, root).messages())


class _Module:
    """The source of one module, with what resolves the variables in its messages."""

    def __init__(self, path: Path, root: Path):
        self._name = ".".join(path.relative_to(root).with_suffix("").parts)
        self._name = self._name.removesuffix(".__init__")
        self._tree = ast.parse(path.read_text(encoding="utf-8"))
        self._parents = {
            child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)
        }
        self._functions = {
            node.name: node for node in ast.walk(self._tree) if isinstance(node, ast.FunctionDef)
        }
        self._calls: dict[str, list[ast.Call]] = {}
        self._attributes: dict[str, list[ast.expr]] = {}  # what `self.x` is set to
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Call):
                self._calls.setdefault(_called(node), []).append(node)
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Attribute):
                name = ast.unparse(node.targets[0])
                if name.startswith("self."):
                    self._attributes.setdefault(name, []).append(node.value)

    def messages(self) -> Iterator[Message]:
        """Yield the messages, in the order of their lines."""
        nodes = [call for calls in self._calls.values() for call in calls if _is_message(call)]
        for call in sorted(nodes, key=lambda node: (node.lineno, node.col_offset)):
            whats = self._texts(_argument(call, "what", 0))
            remedy_position = 1 if _called(call) == "add" else 3
            remedies = self._texts(_argument(call, "remedy", remedy_position))
            remedies = [text for text in remedies if _has_words(text)]
            # Which of many goes with which message is decided when it is made.
            remedy = "; or: ".join(remedies) if len(remedies) <= 2 else ""
            for what in whats:
                if _has_words(what) and " " in what:  # not `file`, a part of another message
                    yield Message(what, remedy, self._name)

    def _texts(self, node: ast.expr | None, depth: int = 0) -> list[str]:
        """Return the texts that an expression may have; `...` for what is not known."""
        if node is None:
            return []
        if isinstance(node, ast.Constant):
            return [node.value] if isinstance(node.value, str) else [str(node.value)]
        if depth > _DEPTH:
            return [ANY]
        found = [ANY]
        if isinstance(node, ast.JoinedStr):
            parts = [self._part(value, depth) for value in node.values]
            found = ["".join(texts) for texts in _limited(parts)]
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            sides = [self._texts(side, depth + 1) for side in (node.left, node.right)]
            found = ["".join(texts) for texts in _limited(sides)]
        elif isinstance(node, ast.IfExp):
            found = [*self._texts(node.body, depth + 1), *self._texts(node.orelse, depth + 1)]
        elif isinstance(node, ast.BoolOp):
            found = [text for value in node.values for text in self._texts(value, depth + 1)]
        elif isinstance(node, ast.Name):
            found = self._of_variable(node, depth + 1)
        elif isinstance(node, ast.Attribute):
            values = self._attributes.get(ast.unparse(node), ())
            found = [text for value in values for text in self._texts(value, depth + 1)]
        elif isinstance(node, ast.Call) and _called(node) in self._functions:
            returns = _own(self._functions[_called(node)], ast.Return)
            found = [text for one in returns for text in self._texts(one.value, depth + 1)]
        found = list(dict.fromkeys(found)) or [ANY]
        return found if len(found) <= _MOST else [ANY]

    def _part(self, value: ast.expr, depth: int) -> list[str]:
        """Return the texts of one part of an f-string."""
        if not isinstance(value, ast.FormattedValue):
            return self._texts(value, depth)
        texts = [ANY]
        if isinstance(value.value, ast.Name | ast.IfExp | ast.Call):
            texts = self._texts(value.value, depth + 1)
        if texts == [ANY] or not all(map(_has_words, filter(None, texts))):
            texts = [_placeholder(value.value)]
        return [f"'{text}'" for text in texts] if value.conversion == ord("r") else texts

    def _of_variable(self, name: ast.Name, depth: int) -> list[str]:
        """Return the texts of a variable: where it is assigned, or what callers pass."""
        scope = self._scope(name)
        while scope is not None:
            found = [
                text
                for value in _assigned(scope, name.id, name.lineno)
                for text in self._texts(value, depth)
            ]
            if found:
                return found
            if isinstance(scope, ast.FunctionDef):
                names = [a.arg for a in [*scope.args.posonlyargs, *scope.args.args]]
                if name.id in names or name.id in [a.arg for a in scope.args.kwonlyargs]:
                    return self._passed(scope, name.id, names, depth)
            scope = self._scope(scope)
        return [ANY]

    def _passed(
        self, function: ast.FunctionDef, name: str, names: Sequence[str], depth: int
    ) -> list[str]:
        """Return the texts that the calls of a function in the module pass for a parameter."""
        found: list[str] = []
        if name in names:
            position = names.index(name) - (names[0] in ("self", "cls"))
        else:
            position = len(names) + 1
        owner = self._parents.get(function)
        is_constructor = function.name == "__init__" and isinstance(owner, ast.ClassDef)
        called = owner.name if is_constructor and isinstance(owner, ast.ClassDef) else function.name
        for call in self._calls.get(called, ()):
            found += self._texts(_argument(call, name, position), depth)
        return found

    def _scope(self, node: ast.AST) -> ast.FunctionDef | ast.Module | None:
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, ast.FunctionDef | ast.Module):
            parent = self._parents.get(parent)
        return parent


def _is_message(call: ast.Call) -> bool:
    if _called(call) == "add":
        owner = call.func.value if isinstance(call.func, ast.Attribute) else None
        return isinstance(owner, ast.Name) and owner.id == "problems"
    return _called(call) in CALLS


def _called(call: ast.Call) -> str:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr
    return function.id if isinstance(function, ast.Name) else ""


def _argument(call: ast.Call, name: str, position: int) -> ast.expr | None:
    for keyword in call.keywords:
        if keyword.arg == name:
            return keyword.value
    found = call.args[position] if position < len(call.args) else None
    return None if isinstance(found, ast.Starred) else found


def _own(scope: ast.FunctionDef | ast.Module, kind: type[T]) -> list[T]:
    """Return the nodes of a kind in a function or module, without those of functions in it."""
    found, pending = [], list(ast.iter_child_nodes(scope))
    while pending:
        node = pending.pop(0)
        if isinstance(node, kind):
            found.append(node)
        if not isinstance(node, ast.FunctionDef | ast.Lambda | ast.ClassDef):
            pending += ast.iter_child_nodes(node)
    return found


def _assigned(scope: ast.FunctionDef | ast.Module, name: str, line: int) -> list[ast.expr]:
    """Return what is assigned to a variable before a line; the last one if that is certain."""
    found = []
    for node in _own(scope, ast.Assign):
        if isinstance(scope, ast.Module) or node.lineno <= line:
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id == name:
                    found.append((node.lineno, node.value))
                elif isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                    pairs = zip(target.elts, node.value.elts, strict=False)
                    found += [
                        (node.lineno, value)
                        for part, value in pairs
                        if isinstance(part, ast.Name) and part.id == name
                    ]
    return [value for _, value in sorted(found, key=lambda pair: -pair[0])]


def _limited(parts: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return the combinations of alternatives; `...` for alternatives if there are too many."""
    count = 1
    for part in parts:
        count *= len(part)
    kept = parts if count <= _MOST else [part if len(part) == 1 else [ANY] for part in parts]
    return list(itertools.product(*kept))


def _placeholder(node: ast.expr) -> str:
    """Return an upper-case name for a value: `self.num_heads` is NUM_HEADS, `len(x)` is N."""
    while isinstance(node, ast.Subscript | ast.Starred):
        node = node.value
    if isinstance(node, ast.Call):
        called = _called(node)
        if called == "len":
            return "N"
        if called in ("join", "listed", "_list"):
            return ANY
        if node.args and called in ("str", "repr", "redact", "printable", "fspath", "text_of"):
            return _placeholder(node.args[0])
        if isinstance(node.func, ast.Attribute) and not node.args:
            return _placeholder(node.func.value)
        return ANY
    name = ""
    if isinstance(node, ast.Attribute):
        name = node.attr
    elif isinstance(node, ast.Name):
        name = node.id
    name = name.strip("_").upper()
    # `x.what` is the whole text of another problem.
    return name if len(name) > 1 and name not in ("WHAT", "TEXT", "MORE", "HOW") else ANY


def _has_words(text: str) -> bool:
    """Return whether a pattern has words of its own, by which a reader finds it."""
    return bool(re.search("[a-z]{2}", PLACEHOLDER.sub(" ", text)))
