"""Names say what a value is: a message, a problem, a node, and not that somebody `told` it."""

from __future__ import annotations

import ast
import re
from pathlib import Path

FOLDERS = ("framework/luthier", "configs", "sweeps", "tests", "tools")
# As a word of a name in snake_case, too: `_told_before`.
_NO_NOUNS = re.compile(r"(?:^|_)(?:told|said|heed|thing)(?:_|$)")


def _names(node: ast.AST) -> list[str]:
    match node:
        case ast.Name():
            return [node.id]
        case ast.Attribute():
            return [node.attr]
        case ast.arg():
            return [node.arg]
        case ast.keyword():
            return [node.arg or ""]
        case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
            return [node.name]
        case ast.alias():
            return [*node.name.split("."), node.asname or ""]
    return []


def _files(root: Path):
    for folder in FOLDERS:
        yield from (path for path in (root / folder).rglob("*.py"))


def test_identifiers_are_nouns_and_verbs_of_the_field(root):
    found, seen = [], 0
    for path in _files(root):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _names(node):
                seen += 1
                if _NO_NOUNS.search(name):
                    line = getattr(node, "lineno", "")
                    found.append(f"{path.relative_to(root)}:{line}: {name}")
    assert seen > 100_000
    assert not found, "\n".join(found)


def test_modules_are_named_alike(root):
    assert not [path.name for path in _files(root) if _NO_NOUNS.search(path.stem)]
