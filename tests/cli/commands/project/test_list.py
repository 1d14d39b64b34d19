from __future__ import annotations

import json
import re
import sys

import pytest

from luthier.cli import Alias, Listed, main
from luthier.cli import find_experiments as find

EXPERIMENTS = '''"""A small model of English."""
import module_that_does_not_exist

def experiment() -> "fdl.Config[Experiment]":
    return 1

def wide(width: int, depth=2, *, heads, seed=0) -> "fdl.Config[Experiment]":
    """A wider model.

    More words.
    """

def helper():
    """Not an experiment."""

def _hidden() -> "fdl.Config[Experiment]":
    """Not public."""
'''


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "configs" / "lm").mkdir(parents=True)
    (tmp_path / "configs" / "__init__.py").write_text("")
    (tmp_path / "configs" / "lm" / "small.py").write_text(EXPERIMENTS)
    (tmp_path / "configs" / "broken.py").write_text("def (")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_find_reads_without_importing(folder):
    broken, small, wide = find(folder / "configs")
    assert broken.reference == "configs.broken"
    assert "cannot be read" in broken.description
    assert small == Listed("configs.lm.small", "A small model of English.")
    assert wide == Listed("configs.lm.small:wide", "A wider model.", ("width", "heads"))
    assert "configs.lm.small" not in sys.modules


def test_the_command_prints_references_and_descriptions(folder, capsys):
    assert main(["list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(
        line.split() == ["configs.lm.small", *["A", "small", "model", "of", "English."]]
        for line in lines
    )
    assert any(line.startswith("configs.lm.small:wide(width=..., heads=...)") for line in lines)


def test_words_select(folder, capsys):
    assert main(["list", "WIDER", "lm"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert "wide" in line
    assert main(["list", "nothing"]) == 0
    assert "no experiment contains nothing" in capsys.readouterr().out


HEADED = '''"""A small model.

Paper: none.
Command: luthier train configs.headed
Parameters: 12,345.
Hardware: 2 CPU cores, under 3 minutes; the data is
  elsewhere.
Expected: loss <= 1.5 on held_out (1.4 on 2026-11-21).

More.
"""

def experiment() -> "fdl.Config[Experiment]":
    """Train it on a long text, which takes a long sentence to describe for a narrow terminal."""

def large() -> "fdl.Config[Experiment]":
    """Train 1.5 billion parameters on 16 chips."""
'''


def test_a_docstring_states_parameters_hardware_and_the_expected_result(folder, capsys):
    (folder / "configs" / "headed.py").write_text(HEADED)
    assert main(["list", "headed", "--json"]) == 0
    first, second = json.loads(capsys.readouterr().out)
    assert (first["parameters"], first["expected"]) == ("12,345", "loss <= 1.5 on held_out")
    assert first["hardware"] == "2 CPU cores, under 3 minutes"
    assert (second["parameters"], second["hardware"]) == ("1.5 billion", "16 chips")
    assert main(["list", "headed"]) == 0
    first, second = capsys.readouterr().out.splitlines()
    columns = re.split(r"  +", first)
    assert columns[:4] == ["configs.headed", "12,345", "2 CPU cores, < 3 min", "loss <= 1.5"]
    assert columns[4].endswith("a narrow terminal.")
    assert re.split(r"  +", second)[:3] == ["configs.headed:large", "1.5B", "16 chips"]


@pytest.mark.parametrize("columns", [60, 80, 132, 200])
def test_a_terminal_gets_groups_with_lines_that_fit(folder, capsys, monkeypatch, columns):
    (folder / "configs" / "headed.py").write_text(HEADED)
    (folder / "configs" / "lm" / "__init__.py").write_text('"""Language models."""')
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(columns))
    monkeypatch.setenv("NO_COLOR", "1")
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    lines = out.splitlines()
    assert max(map(len, lines)) <= columns
    assert lines[0].startswith("experiment")
    assert "configs.lm: Language models" in lines
    text = " ".join(out.split())
    if columns < 200:
        assert "a long text, which takes a long sentence to describe for a narrow terminal." in text
    assert "loss <= 1.5" in text


def test_experiments_of_pax_are_listed_on_request(folder, capsys):
    assert main(["list"]) == 0
    out = capsys.readouterr().out
    count = re.search(r"^(\d+) experiments of Pax: luthier list pax$", out, re.MULTILINE)
    assert "configs.pax." not in out
    assert main(["list", "--all"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("configs.pax.") for line in lines) == int(count[1])
    assert main(["list", "pax", "c4"]) == 0
    assert "--exp=C4Spmd1BAdam4Replicas" in capsys.readouterr().out
    # A folder of the user's own that has this name is the user's.
    (folder / "configs" / "pax").mkdir()
    (folder / "configs" / "pax" / "own.py").write_text("def experiment(): pass")
    assert main(["list"]) == 0
    assert "configs.pax.own" in capsys.readouterr().out


def test_json(folder, capsys):
    assert main(["list", "--json", "lm.small"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [entry["reference"] for entry in found] == ["configs.lm.small", "configs.lm.small:wide"]


def test_what_comes_with_luthier_follows_what_the_project_has(folder, tmp_path, capsys):
    # The project's own experiment of a name hides the one of luthier.
    (folder / "configs" / "lm" / "quickstart.py").write_text('def experiment():\n    "My own."\n')
    assert main(["list", "lm"]) == 0
    own, rest = capsys.readouterr().out.split("\nwith luthier:\n")
    assert own.splitlines()[0].split(maxsplit=1) == ["configs.lm.quickstart", "My own."]
    assert "configs.lm.small" in own
    assert "configs.lm.families:llama " in rest
    assert "sweeps.lm_learning_rate " in rest
    assert "configs.lm.quickstart " not in rest


NAMED = '''
def experiment() -> "fdl.Config[Experiment]":
    """A small model.

    Pax: Small4Replicas
    Pax: Small4ReplicasLimitSteps(steps=15_000)
    """

def wide(size: int) -> "fdl.Config[Experiment]":
    """A model that Pax: does not have."""
'''


@pytest.fixture
def named(folder):
    (folder / "configs" / "broken.py").unlink()
    (folder / "configs" / "lm" / "small.py").write_text(NAMED)
    return folder


def test_names_of_pax_are_read(named):
    small, wide = find(named / "configs")
    assert small.aliases == (
        Alias("Small4Replicas", "configs.lm.small"),
        Alias("Small4ReplicasLimitSteps", "configs.lm.small(steps=15_000)"),
    )
    assert wide.aliases == ()


def test_who_looks_for_something_sees_the_names_of_pax(named, capsys):
    assert main(["list", "pax", "lm.small"]) == 0
    lines = [line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        ["configs.lm.small", "A small model."],
        ["configs.lm.small", "--exp=Small4Replicas"],
        ["configs.lm.small(steps=15_000)", "--exp=Small4ReplicasLimitSteps"],
        ["configs.lm.small:wide(size=...)", "A model that Pax: does not have."],
    ]
    assert main(["list", "LIMIT"]) == 0
    assert "Small4ReplicasLimitSteps" in capsys.readouterr().out
    assert main(["list"]) == 0
    assert "--exp" not in capsys.readouterr().out


def test_json_has_the_names_of_pax(named, capsys):
    assert main(["list", "--json", "Small4ReplicasLimitSteps"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert entry["aliases"][1] == {
        "name": "Small4ReplicasLimitSteps",
        "reference": "configs.lm.small(steps=15_000)",
    }


def test_components_are_found_by_their_summaries_too(folder, capsys):
    assert main(["list", "--components", "SwiGLU"]) == 0
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split(maxsplit=1)[0] == "luthier.layers.GatedMlp"
    assert "SwiGLU" in line
    assert main(["list", "--components", "swiglu", "zzzz"]) == 0
    assert capsys.readouterr().out == "no component contains swiglu and zzzz\n"
