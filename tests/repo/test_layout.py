"""Where files stand and what they are called."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib

FORBIDDEN_NAMES = {"utils", "util", "helpers", "helper", "common", "misc", "base", "lib", "tools"}
FOLDERS = {"framework", "configs", "sweeps", "tests", "tools", "docs"}


def test_the_top_folders_are_those_of_the_design(root, repository_files):
    found = {path.relative_to(root).parts[0] for path in repository_files}
    folders = {name for name in found if (root / name).is_dir() and not name.startswith(".")}
    assert folders <= FOLDERS, folders - FOLDERS
    assert not (root / "framework" / "__init__.py").exists(), "framework/ is a source root"


def test_no_module_is_called_a_drawer(modules):
    parts = {m.place: [p.removesuffix(".py") for p in m.place.split("/")] for m in modules}
    bad = [
        place
        for place, names in parts.items()
        if FORBIDDEN_NAMES & set(names) or any(name.endswith("_lib") for name in names)
    ]
    assert not bad, f"names that say nothing: {bad}"


def test_every_folder_is_a_package_with_a_docstring(modules):
    facades = [module for module in modules if module.is_facade]
    without = [m.place for m in facades if not ast.get_docstring(m.tree)]
    assert not without, f"facades without a docstring: {without}"
    folders = {m.path.parent for m in modules}
    bare = [str(f) for f in folders - {m.path.parent for m in facades}]
    assert not bare, f"folders without __init__.py: {bare}"


def test_the_layer_rule_holds(root):
    """Runs import-linter, as CI does."""
    code = "import sys; from importlinter.cli import lint_imports_command as c; sys.exit(c())"
    done = subprocess.run([sys.executable, "-c", code], cwd=root, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_room_is_in_the_layers_contract(root, modules):
    settings = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["importlinter"]
    (contract,) = [c for c in settings["contracts"] if c["id"] == "layers"]
    assert contract["exhaustive"] is True
    named = {name for line in contract["layers"] for name in re.split(r"\s*\|\s*", line)}
    assert {module.room for module in modules if module.room} <= named
