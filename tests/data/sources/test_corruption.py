import pytest

from luthier.data import Fail, Skip
from luthier.errors import DataError, Problem


def test_fail_raises_at_the_first():
    with pytest.raises(DataError, match="bad"):
        Fail().tolerate([Problem("bad")])


def test_skip_counts():
    Skip(at_most=2).tolerate([Problem("a"), Problem("b")])
    with pytest.raises(DataError, match="more than 2 documents cannot be used; the last: c"):
        Skip(at_most=2).tolerate([Problem("a"), Problem("b"), Problem("c")])
