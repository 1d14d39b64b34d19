"""Mistakes that other systems accept in silence: each is refused in one line, with the remedy."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
from pathlib import Path

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier.cli import main

MISTAKES = tomllib.loads(Path(__file__).with_name("mistakes.toml").read_text())["mistake"]
USER_ERRORS = tomllib.loads(Path(__file__).with_name("user_errors.toml").read_text())["case"]


def record(folder: Path, node: dict) -> None:
    """Write the record of a graph, as a run has it."""
    folder.mkdir()
    document = json.loads(graphs.to_json(fdl.Config(dict)))  # the format and version of today
    assert "graph" in document
    (folder / "config.json").write_text(json.dumps({**document, "graph": node}))


def test_there_are_enough_of_them():
    # With those in the user's own code, which test_user_errors.py runs.
    assert len(MISTAKES) + len(USER_ERRORS) >= 40
    assert len({mistake["mistake"] for mistake in MISTAKES}) == len(MISTAKES)


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda mistake: mistake["mistake"])
def test_a_mistake_is_refused_in_one_line(mistake, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    if "recorded" in mistake:
        record(tmp_path / "taken", json.loads(mistake["recorded"]))
    before = sorted(tmp_path.rglob("*"))
    assert main(mistake["words"]) == 2
    line = f"luthier: {mistake['says']}"
    assert capsys.readouterr().err == f"{line}\n"
    assert len(line) <= 200
    assert sorted(tmp_path.rglob("*")) == before


BEFORE = """
import sys
from luthier import graph  # what reading a record needs
from luthier.cli.commands import show, train
from luthier.cli import main
before = set(sys.modules)
code = main(sys.argv[1:])
new = {name.partition(".")[0] for name in set(sys.modules) - before}
print("imported:", *sorted(new - {"luthier"} - set(sys.stdlib_module_names)))
print("stdlib:", *sorted({"antigravity", "this", "os.system", "turtle"} & set(sys.modules)))
sys.exit(code)
"""

REFUSED = {
    "os.system": "'os' is not on the list",
    "antigravity.fly": "'antigravity' is not on the list",
    "subprocess.run": "'subprocess' is not on the list",
    "builtins.eval": "'builtins.eval' may not be imported",
    "trap_package.fire": "'trap_package' is not on the list",
    "optax._src.alias.adamw": "is private",
    "jax._src.xla_bridge.os.system": "is private",
    "luthier.cli.main.main": "is not on the list",
    "jax.numpy.load": "is not on the list",
}


@pytest.mark.parametrize("words", [["show", "taken"], ["train", "taken"]], ids=" ".join)
def test_a_record_imports_nothing_that_is_not_on_the_list(words, tmp_path):
    """All names at once: one line for each, exit code 2, and no module that they name."""
    (tmp_path / "trap_package.py").write_text("open('fired', 'w').close()\ndef fire(): pass\n")
    node = {"list": [{"config": name, "arguments": {}} for name in REFUSED]}
    node = {"config": "builtins.dict", "arguments": {"nodes": [*node["list"]]}}
    record(tmp_path / "taken", node)
    done = subprocess.run(
        [sys.executable, "-c", BEFORE, *words],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path), "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == len(REFUSED)
    for line, (name, why) in zip(lines, REFUSED.items(), strict=True):
        assert name in line
        assert why in line
    imported, stdlib = done.stdout.splitlines()[-2:]
    assert not set(imported.split()[1:]) & {"trap_package", "antigravity"}
    assert stdlib == "stdlib:"
    assert not (tmp_path / "fired").exists()
