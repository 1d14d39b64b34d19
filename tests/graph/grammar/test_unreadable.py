from __future__ import annotations

from luthier.errors import LuthierError, Problem
from luthier.graph.grammar import Unreadable


def test_it_carries_a_problem():
    assert Unreadable("wrong").problem == Problem("wrong")
    assert str(Unreadable(Problem("wrong", path="a"))) == "a: wrong"
    assert not issubclass(Unreadable, LuthierError)  # `apply` and `resolve` turn it into one
