from __future__ import annotations

import math
from typing import Any, Literal

import pytest
from graph_toys import parts

from luthier.graph.grammar import NOTHING, choice, choices


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("FAST", parts.Kind, parts.Kind.FAST),
        ("fast", parts.Kind, parts.Kind.FAST),
        ("Fast", parts.Kind, parts.Kind.FAST),
        ("'fast'", parts.Kind, parts.Kind.FAST),
        ("Kind.FAST", parts.Kind, parts.Kind.FAST),
        ("none", parts.Kind | None, parts.Kind.NONE),
        ("None", parts.Kind | None, NOTHING),
        ("a", Literal["a", 3], "a"),
        ("3", Literal["a", 3], 3),
        ("true", bool, True),
        ("FALSE", bool | None, False),
        ("-inf", float, -math.inf),
        ("true", Any, NOTHING),
        ("true", str, NOTHING),
        ("fats", parts.Kind, NOTHING),
    ],
)
def test_choices_by_name_or_value(text, annotation, expected):
    assert choice(text, annotation) is expected or choice(text, annotation) == expected


def test_all_choices():
    assert choices(parts.Kind | None) == ["FAST", "EXACT", "NONE"]
    assert choices(Literal["a", 3]) == ["a", "3"]
    assert choices(int) == []
