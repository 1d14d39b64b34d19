from __future__ import annotations

from luthier import graph as graphs
from luthier.cli import references
from luthier.cli.showing import changes


def test_what_overrides_change_is_told(importable_project, capsys):
    before = references.load_reference("trials.tiny")
    changes.print_changes(before, graphs.apply(before, ["seed=5"]))
    assert "seed" in capsys.readouterr().out


def test_nothing_is_told_as_such(importable_project, capsys):
    before = references.load_reference("trials.tiny")
    changes.print_changes(before, before)
    assert capsys.readouterr().out == "nothing changes\n"
