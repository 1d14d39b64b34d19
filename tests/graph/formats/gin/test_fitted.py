from __future__ import annotations

import pathlib

import fiddle as fdl
import numpy as np
import pytest
from graph_toys import parts

from luthier.graph import values
from luthier.graph.formats.gin.lookup import Lookup
from luthier.graph.formats.gin.values import check, fit
from luthier.graph.grammar.statements import Unreadable
from luthier.graph.signatures import UNSET

LOOKUP = Lookup()


@pytest.mark.parametrize(
    ("value", "annotation", "expected"),
    [
        (1, float, 1),
        (1e3, int, 1000),
        ([1, 2], tuple[int, ...], (1, 2)),
        ("exact", parts.Kind, parts.Kind.EXACT),
        ("data", pathlib.Path, pathlib.Path("data")),
        ("None", str | None, "None"),
        (None, int | None, None),
    ],
)
def test_values_fit_or_are_converted(value, annotation, expected):
    made = fit(value, annotation, UNSET, LOOKUP)
    assert (made, type(made)) == (expected, type(expected))


def test_dtypes_are_read_by_name():
    assert np.dtype(fit("f32", np.dtype, UNSET, LOOKUP)) == np.dtype("float32")


@pytest.mark.parametrize(
    ("value", "annotation", "said"),
    [
        ("7", int, "'7' is not an int"),
        ("None", int | None, "'None' is not an int or None"),
        (fdl.Config(parts.Mlp), int, "Mlp(...) is not an int"),
        (1.5, int, "1.5 is not an int"),
    ],
)
def test_what_does_not_fit_is_refused(value, annotation, said):
    with pytest.raises(Unreadable) as caught:
        fit(value, annotation, UNSET, LOOKUP)
    assert caught.value.problem.what == said


def test_value_nodes_are_checked_when_all_is_bound():
    node = values.value("x", name="n")
    assert fit(node, int, UNSET, LOOKUP) is node
    with pytest.raises(Unreadable, match="n = 'x' is not an int"):
        check(node, int)
