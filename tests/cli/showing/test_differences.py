from __future__ import annotations

import io
import json
import sys

import pytest

from luthier import graph as graphs
from luthier.cli import showing
from luthier.cli.operands import Operand, ResultOperand, of_graph
from luthier.errors import BadInput
from luthier.graph import compare


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
    return showing.comparison_of(*sides)


def _printed(monkeypatch, comparison, output):
    monkeypatch.setattr(sys, "stdout", output)
    showing.print_difference(comparison)
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


def _operands():
    graph = graphs.resolve("configs.lm.quickstart")
    found = []
    for number, objectives in enumerate(
        [
            (),
            (ResultOperand("loss", 2.0, "lower"), ResultOperand("steps", 4)),
            (ResultOperand("loss", None),),
        ]
    ):
        document = compare.document(graphs.apply(graph, [f"seed={number}"]), f"trial {number}")
        found.append(
            Operand(f"trial {number}", document, lambda: None, False, objectives=objectives)
        )
    return found


def test_objectives_are_those_that_all_have_which_have_any():
    found = showing.matrix_of(_operands())
    assert found["objectives"] == [
        {"name": "loss", "values": [None, 2.0, None], "direction": "lower"}
    ]
    assert found["rows"] == [{"path": "seed", "texts": ["0", "1", "2"], "values": [0, 1, 2]}]
    assert found["title"] == "2 against trial 0"
    assert found["columns"][1] == {"title": "trial 1", "state": "", "link": ""}
    assert showing.matrix_of(_operands(), ignore=["seed"])["rows"] == []


def test_it_is_printed_as_a_table_or_as_json(capsys):
    found = showing.matrix_of(_operands())
    showing.print_matrix(found, as_json=True)
    assert json.loads(capsys.readouterr().out) == found
    showing.print_matrix(found, as_json=False)
    assert "seed          0  1  2" in capsys.readouterr().out


def test_a_line_is_a_path_and_its_value():
    text = graphs.to_json(graphs.resolve("configs.lm.quickstart"))
    lines = showing.lines_of(text, "config.json")
    assert lines[:3] == ["luthier.program.Experiment", "name = 'quickstart'", "seed = 0"]
    assert "model.block.attention = partial luthier.layers.Attention" in lines
    assert "training.steps = 900 (shared as steps)" in lines


def test_what_changes_is_few_lines():
    graph = graphs.resolve("configs.lm.quickstart")
    before, after = (
        set(showing.lines_of(graphs.to_json(one), ""))
        for one in (graph, graphs.apply(graph, ["optimizer.b2=0.9"]))
    )
    assert (before - after, after - before) == ({"optimizer.b2 = 0.98"}, {"optimizer.b2 = 0.9"})


@pytest.mark.parametrize("text", ["{", "", '{"format": "luthier.graph", "version": 99}'])
def test_what_is_no_record_is_printed_as_it_is(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    showing.print_text(str(tmp_path / "config.json"))
    assert capsys.readouterr().out == text


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"^cannot read .*: No such file or directory$"):
        showing.print_text(str(tmp_path / "nothing"))
