from __future__ import annotations

import json

from luthier import graph as graphs
from luthier.cli.operands.operand import Operand, ResultOperand
from luthier.cli.showing import differences
from luthier.graph import compare


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
    found = differences.matrix_of(_operands())
    assert found["objectives"] == [
        {"name": "loss", "values": [None, 2.0, None], "direction": "lower"}
    ]
    assert found["rows"] == [{"path": "seed", "texts": ["0", "1", "2"], "values": [0, 1, 2]}]
    assert found["title"] == "2 against trial 0"
    assert found["columns"][1] == {"title": "trial 1", "state": "", "link": ""}
    assert differences.matrix_of(_operands(), ignore=["seed"])["rows"] == []


def test_it_is_printed_as_a_table_or_as_json(capsys):
    found = differences.matrix_of(_operands())
    differences.print_matrix(found, as_json=True)
    assert json.loads(capsys.readouterr().out) == found
    differences.print_matrix(found, as_json=False)
    assert "seed          0  1  2" in capsys.readouterr().out
