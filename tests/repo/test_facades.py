"""Tests import what packages export, so that a package can be rearranged without touching them."""

from __future__ import annotations

import ast
from pathlib import Path

MOST = 0.15  # of all test files may import from a module below a package's facade


def _is_module(name: str, framework: Path) -> bool:
    """Return whether a dotted name is a module that belongs to a package of luthier."""
    parts = name.split(".")
    if parts[0] != "luthier" or len(parts) < 3:
        return False  # `luthier.errors` and its like are packages of one module
    if parts[1] == "contrib" and len(parts) == 3:
        return False  # entry points name what these export
    if not framework.joinpath(*parts).with_suffix(".py").is_file():
        return False
    # Some functions are called like their module; a facade that exports one means the function.
    facade = framework.joinpath(*parts[:-1], "__init__.py").read_text(encoding="utf-8")
    return f'"{parts[-1]}"' not in facade


def _imported(tree: ast.Module):
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def test_most_test_files_import_from_facades_only(root):
    files = sorted((root / "tests").rglob("test_*.py"))
    assert len(files) > 200
    below = {}
    for path in files:
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {name for name in _imported(tree) if _is_module(name, root / "framework")}
        if modules:
            below[path.relative_to(root).as_posix()] = sorted(modules)
    assert len(below) <= MOST * len(files), f"{len(below)} of {len(files)}: {below}"
