from __future__ import annotations

import pytest

from luthier import graph as graphs
from luthier.cli.showing import differences
from luthier.errors import BadInput


def test_a_line_is_a_path_and_its_value():
    text = graphs.to_json(graphs.resolve("configs.lm.quickstart"))
    lines = differences.lines_of(text, "config.json")
    assert lines[:3] == ["luthier.program.Experiment", "name = 'quickstart'", "seed = 0"]
    assert "model.block.attention = partial luthier.layers.Attention" in lines
    assert "training.steps = 900 (shared as steps)" in lines


def test_what_changes_is_few_lines():
    graph = graphs.resolve("configs.lm.quickstart")
    before, after = (
        set(differences.lines_of(graphs.to_json(one), ""))
        for one in (graph, graphs.apply(graph, ["optimizer.b2=0.9"]))
    )
    assert (before - after, after - before) == ({"optimizer.b2 = 0.98"}, {"optimizer.b2 = 0.9"})


@pytest.mark.parametrize("text", ["{", "", '{"format": "luthier.graph", "version": 99}'])
def test_what_is_no_record_is_printed_as_it_is(tmp_path, capsys, text):
    (tmp_path / "config.json").write_text(text)
    differences.print_text(str(tmp_path / "config.json"))
    assert capsys.readouterr().out == text


def test_what_cannot_be_read_is_refused(tmp_path):
    with pytest.raises(BadInput, match=r"^cannot read .*: No such file or directory$"):
        differences.print_text(str(tmp_path / "nothing"))
