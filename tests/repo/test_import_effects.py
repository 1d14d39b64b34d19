"""Importing changes nothing in the process; `luthier.install` does, and can be taken back."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.process_state import STATE


def _run(code: str) -> str:
    command = [sys.executable, "-W", "ignore", "-c", STATE + code]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
    return done.stdout


@pytest.mark.full
def test_importing_every_module_changes_nothing(modules):
    names = [
        module.import_name
        for module in modules
        # What only runs as a program, under other versions of luthier or without its libraries.
        if module.path.name != "__main__.py" and "template" not in module.place
    ]
    assert len(names) > 300
    code = f"""
before = state()
for name in {names!r}:
    importlib.import_module(name)
    changed = changes(before)
    if changed:
        print(name, changed)
        before = state()
"""
    assert _run(code) == ""


@pytest.mark.full
def test_install_twice_and_undo_once_leave_all_as_it_was():
    code = """
import luthier
before = state()
undo = luthier.install()
print(changes(before))
installed = state()
luthier.install()
print(changes(installed))
undo()
print(changes(before))
luthier.install()
luthier.install()()  # whoever installed them
print(changes(before))
"""
    installed = "['lowerings', 'signatures', 'metaclass', 'locations of fiddle']"
    assert _run(code).splitlines() == [installed, "[]", "[]", "[]"]


def test_nodes_from_before_get_their_names_when_they_are_checked():
    """A notebook makes nodes by hand before any function of luthier is called."""
    code = """
import fiddle as fdl
from luthier import graph, layers
node = fdl.Config(layers.Linear, 3, features=2, dims=4)
print(sorted(map(str, node.__arguments__)))
try:
    graph.validate(node)
except graph.errors.BadInput as error:
    print(error)
print(sorted(map(str, node.__arguments__)))
"""
    code = code.replace("graph.errors.BadInput", "luthier.errors.BadInput")
    first, *reported, last = _run("import luthier.errors\n" + code).splitlines()
    assert first == "['0', 'dims', 'features']"
    assert any("dims" in line for line in reported)
    assert "'0'" not in last
