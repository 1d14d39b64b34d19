"""Every program of tools/ starts, and what its child processes run can be imported."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / "tools"
FOREIGN = {"torch", "transformers", "paxml", "praxis", "levanter", "kauldron", "maxtext"}


def _sources() -> list[Path]:
    return sorted(path for path in TOOLS.rglob("*.py") if path.name != "__init__.py")


def _is_program(source: Path) -> bool:
    return "ArgumentParser" in source.read_text(encoding="utf-8")


def _trees(source: Path):
    """Yield the syntax tree of a file, and of the scripts that it keeps as texts."""
    tree = ast.parse(source.read_text(encoding="utf-8"))
    yield tree
    for node in ast.walk(tree):
        is_script = isinstance(node, ast.Constant) and isinstance(node.value, str)
        if is_script and "\nfrom luthier" in node.value:
            try:
                yield ast.parse(node.value.replace("{{", "{").replace("}}", "}"))
            except SyntaxError:  # a template with fields
                continue


def _used(tree: ast.AST):
    """Yield what a tree imports from luthier, and the attributes that it takes of it."""
    bound = {
        n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    }
    bound |= {n.arg for n in ast.walk(tree) if isinstance(n, ast.arg)}
    attributes: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
            attributes.setdefault(node.value.id, set()).add(node.attr)
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("luthier"):
            for alias in node.names:
                own = alias.asname or alias.name
                yield node.module, alias.name, () if own in bound else attributes.get(own, ())


@pytest.mark.parametrize("source", _sources(), ids=lambda path: path.relative_to(TOOLS).as_posix())
def test_every_name_that_a_program_takes_from_luthier_exists(source):
    for tree in _trees(source):
        for module, name, attributes in _used(tree):
            place = importlib.import_module(module)
            used = getattr(place, name, None) or importlib.import_module(f"{module}.{name}")
            missing = [each for each in attributes if not hasattr(used, each)]
            assert not missing, f"{module}.{name} has no {missing}"


@pytest.mark.parametrize(
    "source",
    [
        p
        for p in _sources()
        if "ArgumentParser(" in p.read_text() and "gpu_hour/" not in p.as_posix()
    ],
    ids=lambda path: path.relative_to(TOOLS).as_posix(),
)
@pytest.mark.full
def test_every_program_prints_its_help(source):
    text = source.read_text(encoding="utf-8")
    if any(f"import {name}" in text or f"from {name}" in text for name in FOREIGN):
        pytest.skip("imports what only the environment of a peer has")
    done = subprocess.run(
        [sys.executable, str(source), "--help"], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert "usage:" in done.stdout
