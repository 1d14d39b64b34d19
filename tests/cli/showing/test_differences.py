from __future__ import annotations

import io
import sys

import pytest

from luthier import graph as graphs
from luthier.cli.operands.operand import of_graph
from luthier.cli.showing import differences


class _Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self):
        return True


class _OldTerminal(_Terminal):
    encoding = "iso8859-1"


@pytest.fixture
def comparison():
    graph = graphs.resolve("configs.lm.quickstart")
    changed = graphs.apply(graph, ["records.wandb.notes=" + "long " * 40])
    sides = [of_graph(name, lambda g=g: g) for name, g in (("a", graph), ("b", changed))]
    return differences.comparison_of(*sides)


def _printed(monkeypatch, comparison, output):
    monkeypatch.setattr(sys, "stdout", output)
    differences.print_difference(comparison)
    return output.getvalue()


def test_a_terminal_has_colours_and_an_end_of_line(monkeypatch, comparison):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[" in _printed(monkeypatch, comparison, _Terminal())
    monkeypatch.setenv("NO_COLOR", "1")
    plain = _printed(monkeypatch, comparison, _Terminal())
    assert "\x1b" not in plain
    assert max(map(len, plain.splitlines())) <= 80


def test_a_pipe_has_neither(monkeypatch, comparison):
    piped = _printed(monkeypatch, comparison, io.StringIO())
    assert "\x1b" not in piped
    assert len(piped.splitlines()) == 4


def test_what_cannot_be_printed_is_drawn_in_ascii(monkeypatch, comparison):
    assert _printed(monkeypatch, comparison, _OldTerminal()).isascii()
