from __future__ import annotations

from luthier import graph as graphs
from luthier.cli import references
from luthier.cli.showing import why


def test_a_default_says_so(importable_project, capsys):
    why.print_why(references.load_reference("trials.tiny"), "seed", as_json=False)
    assert capsys.readouterr().out == "left at its default\n"


def test_what_arguments_set_is_told(importable_project, capsys):
    graph = graphs.apply(references.load_reference("trials.tiny"), ["seed=5"])
    why.print_why(graph, "seed", as_json=False)
    assert "argument 1: seed=5" in capsys.readouterr().out
