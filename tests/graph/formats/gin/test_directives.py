from __future__ import annotations

import pytest

from luthier.graph.formats.gin.statements import Directive, GinReference, gather


def read(*lines):
    problems = []
    found = gather([Directive(*line.split(" ", 1), "here") for line in lines], problems)
    return found, [str(problem) for problem in problems]


def test_all_of_them():
    found, problems = read(
        "format 1",
        "root @a.B()",
        "partial x/f",
        "factory g",
        "instance P",
        "tag x/f.y p.Tag",
        "shared M",
        'called dim_2 "dim"',
        "called size null",
        'value N {"dtype": "int8"}',
    )
    assert not problems
    assert found.is_export
    assert found.root == (GinReference("a.B", True), "here")
    assert found.kinds == {"x/f": "partial", "g": "factory", "P": "instance"}
    assert found.tags == [("x/f", "y", "p.Tag", "here")]
    assert found.shared == {"M"}
    assert found.called == {"dim_2": "dim", "size": ""}
    assert found.values == {"N": ({"dtype": "int8"}, "here")}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("format 2", "format 2 is not 1, which this luthier reads [set by here]"),
        ("rot @a", "there is no directive 'rot' [set by here]; did you mean root?"),
        ("root 3", "'3' is not a reference; write @Name() [set by here]"),
        ("tag f p.Tag", "a tag directive is `tag scope/Name.argument package.Tag` [set by here]"),
        ("value N {", "'{' is not JSON [set by here]"),
        ("called N 3", "3 is not a name [set by here]"),
    ],
)
def test_what_cannot_be_read(line, said):
    assert read(line)[1] == [said]
