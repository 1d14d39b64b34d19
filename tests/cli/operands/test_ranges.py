"""`luthier diff BASE..HEAD --markdown` in a small repository of experiments."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from luthier.cli import main
from luthier.cli.operands import ranges

FILE = """import fiddle as fdl

from mine import parts


def experiment():
    return fdl.Config(parts.Rate, rate={rate}, note="{note}")
"""
PARTS = """import dataclasses


@dataclasses.dataclass
class Rate:
    rate: float
    note: str = ""
"""


def _git(*words):
    identity = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, *words], capture_output=True, text=True, check=True)
    return done.stdout


def _write(name, rate, note=""):
    Path("configs", f"{name}.py").write_text(FILE.format(rate=rate, note=note))


def _commit(message):
    _git("add", "--all")
    _git("commit", "--quiet", "--message", message)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    """A branch `change` of `main`, which has gone on; every kind of config that is not the same."""
    folder = tmp_path / "repository"
    (folder / "configs").mkdir(parents=True)
    (folder / "mine").mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(scratch))
    for package in ("mine", "configs"):
        Path(package, "__init__.py").write_text("")
    Path("mine/parts.py").write_text(PARTS)
    Path("pyproject.toml").write_text('[tool.luthier]\npackages = ["mine"]\n')
    _write("changed", 0.1)
    _write("same", 0.1)
    _write("removed", 0.1)
    _write("broken", 0.1)
    Path("configs/repaired.py").write_text(
        "import nothing_of_this_name\n\n\ndef experiment(): ...\n"
    )
    Path("configs/never.py").write_text("import nothing_of_this_name\n\n\ndef experiment(): ...\n")
    Path("configs/sized.py").write_text("def experiment(size): ...\n")
    _git("init", "--quiet", "--initial-branch", "main")
    _commit("First")
    _git("switch", "--quiet", "--create", "change")
    _write("changed", 0.2, note="a | b `c` <b>")
    _write("added", 0.1)
    _write("repaired", 0.1)
    Path("configs/removed.py").unlink()
    Path("configs/broken.py").write_text("def experiment():\n    raise ValueError('too | small')\n")
    _commit("Second")
    _git("switch", "--quiet", "main")
    _write("same", 0.5)
    _commit("Main has gone on")
    _git("switch", "--quiet", "change")
    # The working tree is imported by this process: its packages must neither be others nor stay.
    kept = _take_modules()
    yield folder
    _take_modules()
    sys.modules.update(kept)


def _take_modules():
    names = [name for name in sys.modules if name.partition(".")[0] in ("configs", "mine")]
    return {name: sys.modules.pop(name) for name in names}


def _printed(capsys, *words):
    assert main(["diff", *words]) == 0
    return capsys.readouterr().out


@pytest.mark.full
def test_all_that_is_not_the_same_is_listed_once(repository, capsys):
    text = _printed(capsys, "main...change", "--markdown")
    lines = text.splitlines()
    # From where the branch began: what main has changed since is not listed.
    fork, end = (_git("rev-parse", name)[:8] for name in ("main~1", "change"))
    assert lines[:3] == [
        f"### Configs: main ({fork}) → change ({end})",
        "",
        "1 changed, 1 added, 1 removed, 1 not resolving, 1 resolving again.",
    ]
    table = {line.split(" | ")[0].strip("| `"): line for line in lines if line.startswith("| `")}
    assert set(table) == {
        *("configs.changed", "configs.added", "configs.removed", "configs.broken"),
        "configs.repaired",
    }
    assert "2 changes: 2 changed" in table["configs.changed"]
    assert table["configs.added"] == "| `configs.added` | added |"
    assert table["configs.removed"] == "| `configs.removed` | removed |"
    # A bar in an error does not end the cell of the table.
    assert "does not resolve: `" in table["configs.broken"]
    assert r"too \| small" in table["configs.broken"]
    assert "nothing_of_this_name" in table["configs.repaired"]
    assert "- 1 resolve at neither end: configs.never" in text.replace("\\", "")
    assert "- 1 need arguments and are left out: configs.sized" in text.replace("\\", "")
    # The details are folded, and their block is not ended by what is in it.
    assert text.count("<details>") == text.count("</details>") == 1
    assert "~ rate: 0.1 -> 0.2 (x2)" in text
    assert "a | b `c` <b>" in text
    # Not an experiment of luthier, so it has no parameters.
    assert "no effects: " in text


def test_a_range_of_two_dots_compares_the_ends_and_an_open_one_the_working_tree(repository, capsys):
    assert main(["diff", "main..change", "--markdown", "--exit-code"]) == 1
    assert "`configs.same`" in capsys.readouterr().out
    _write("changed", 0.7)
    text = _printed(capsys, "change..", "--markdown")
    head, _, counts = text.splitlines()[:3]
    assert re.fullmatch(r"### Configs: change \(\w{8}\) → the working tree", head)
    assert counts == "1 changed."
    assert "~ rate: 0.2 -> 0.7" in text


def test_nothing_changed(repository, capsys):
    text = _printed(capsys, "change..change", "--markdown", "--exit-code")
    assert text.splitlines()[2:] == [
        "No config changed.",
        "",
        "- 2 resolve at neither end: configs.broken, configs.never",
        "- 1 need arguments and are left out: configs.sized",
    ]


REAL = """from luthier.shipped.configs.lm import quickstart


def experiment():
    graph = quickstart.experiment()
    graph.model.block.mlp.hidden_dim = {hidden_dim}
    graph.optimizer.b2 = {b2}
    return graph
"""


@pytest.mark.full
def test_a_changed_experiment_has_its_parameters_flops_and_what_becomes_of_checkpoints(
    repository, capsys
):
    Path("configs/rate.py").write_text(REAL.format(hidden_dim=384, b2=0.98))
    Path("configs/wide.py").write_text(REAL.format(hidden_dim=384, b2=0.98))
    _commit("Real ones")
    Path("configs/rate.py").write_text(REAL.format(hidden_dim=384, b2=0.9))
    Path("configs/wide.py").write_text(REAL.format(hidden_dim=768, b2=0.98))
    lines = _printed(capsys, "HEAD..", "--markdown").splitlines()
    rows = {line.split(" | ")[0]: line.split(" | ")[2:] for line in lines if line[:3] == "| `"}
    assert rows["| `configs.rate`"] == ["the same", "the same", "yes |"]
    parameters, flops, checkpoint = rows["| `configs.wide`"]
    assert re.fullmatch(r"821,376 → [\d,]+ \(x1\.\d+\)", parameters)
    assert re.fullmatch(r"\S+ FLOPs → \S+ FLOPs \(x1\.\d+\)", flops)
    assert checkpoint == "no |"


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (["main..nowhere", "--markdown"], "there is no revision 'nowhere' in"),
        (
            ["main..change"],
            "main..change compares all configs, which is printed as Markdown only; add --markdown",
        ),
        (
            ["main..change", "--markdown", "--html", "x.html"],
            "--html needs exactly two operands; leave it out",
        ),
    ],
)
def test_what_cannot_be_printed_is_one_line(repository, capsys, words, line):
    assert main(["diff", *words]) == 2
    error = capsys.readouterr().err
    assert line in error
    assert len(error.splitlines()) == 1
    assert not Path("x.html").exists()


def test_a_path_with_dots_is_not_a_range(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    assert not ranges.is_range("a/..")
    assert not ranges.is_range("HEAD~1:configs.x")
    assert ranges.is_range("origin/main..HEAD")
    assert ranges.is_range("v1.0...")
