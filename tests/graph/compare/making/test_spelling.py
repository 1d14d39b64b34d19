from __future__ import annotations

import math

import pytest
from graph_toys import parts, recorded

from luthier.graph import apply
from luthier.graph.compare.overrides import Speller, Unspeakable, word_path
from luthier.graph.record.encode import encode


def spell(value):
    return Speller(("graph_toys",), lambda number: "alias:x", lambda name, given: "config").value(
        encode(value)
    )


@pytest.mark.parametrize(
    "value",
    [
        *(0, -7, 10**30, 1.5, -0.0, 1e-300, math.inf, -math.inf, True, None),
        *("", "text", "it's", 'a"b', "a\nb", "$x", "None", "ref:x", "ü\udc80", (), (1,), [1, (2,)]),
        *({}, {"a": [1]}, {1: {"b c": None}}, parts.relu, recorded.Speed.FAST),
    ],
)
def test_what_is_spelled_is_read_back(value):
    made = apply(parts.experiment(), [f"extra:={spell(value)}"]).extra
    assert repr(made) == repr(value)


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (1j, "the grammar cannot write a complex number"),
        (b"a", "the grammar cannot write bytes"),
        ({1}, "the grammar cannot write a set"),
        ({None: 1}, "only text and whole numbers can be keys in a value"),
        (recorded.Point(1), "the grammar cannot write an instance of a dataclass; only nodes"),
        (int, "a value may not name builtins.int here"),
    ],
)
def test_what_cannot_be_spelled(value, reason):
    with pytest.raises(Unspeakable) as raised:
        spell(value)
    assert str(raised.value) == reason


def test_paths_that_words_can_begin_with():
    assert word_path("a.b[0]['c d']", ("a", "b", 0, "c d")) == "a.b[0]['c d']"
    for path, parts_of in (("", ()), ("a['*']", ("a", "*")), ("a['x=1']", ("a", "x=1"))):
        with pytest.raises(Unspeakable):
            word_path(path, parts_of)
