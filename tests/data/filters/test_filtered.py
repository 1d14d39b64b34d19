import dataclasses
import pickle

import pytest

from luthier.data import (
    Bytes,
    Concatenate,
    Deduplicate,
    Documents,
    Filtered,
    Length,
    Packed,
    Predicate,
    Skip,
    Source,
)
from luthier.errors import DataError, Problem

TEXTS = [f"text {number % 40} " * (number % 7) for number in range(700)]


def test_what_is_kept_and_who_refused_what():
    source = Filtered(Documents(TEXTS), [Length(min_bytes=1), Deduplicate()])
    expected = [text.encode() for text in dict.fromkeys(TEXTS) if text]
    assert list(source.read(0, len(source))) == expected
    empty = sum(not text for text in TEXTS)
    assert source.verdict.counts == {
        "unreadable": 0,
        "length": empty,
        "duplicate": 700 - empty - len(expected),
        "kept": len(expected),
    }
    assert source.verdict.masks["length"].tolist() == [bool(text) for text in TEXTS]
    assert source.name(0) == f"document {TEXTS.index(expected[0].decode()) + 1}"


def test_it_trains_like_the_documents_that_are_left():
    kept = [text for text in TEXTS if len(text) > 20]
    filtered = Filtered(Documents(TEXTS), [Length(min_bytes=21)])
    first, second = (Packed(s, Bytes(), 16, Concatenate()) for s in (filtered, Documents(kept)))
    assert first.rows.digest == second.rows.digest


def test_the_verdict_travels_to_other_processes():
    source = Filtered(Documents(TEXTS), [Deduplicate()])
    assert len(source) == len(pickle.loads(pickle.dumps(source)))
    assert "verdict" in vars(pickle.loads(pickle.dumps(source)))


@dataclasses.dataclass(frozen=True)
class Holes(Source):
    """A source of which every seventh document cannot be read."""

    def __len__(self):
        return 30

    def __getitem__(self, index):
        if index % 7 == 3:
            raise DataError(Problem(f"hole {index}"))
        return b"%d" % index

    def name(self, index):
        return f"number {index}"


def test_documents_that_cannot_be_read():
    with pytest.raises(DataError, match="hole 3"):
        len(Filtered(Holes()))
    source = Filtered(Holes(), corrupt=Skip())
    assert list(source.read(0, len(source))) == [b"%d" % i for i in range(30) if i % 7 != 3]
    assert source.verdict.counts["unreadable"] == 4
    assert [problem.what for problem in source.verdict.problems] == [
        f"hole {index}" for index in (3, 10, 17, 24)
    ]


def test_errors():
    with pytest.raises(DataError, match="several filters are called length"):
        len(Filtered(Documents(TEXTS), [Length(1), Length(2)]))
    with pytest.raises(DataError, match=r"none of 700 documents is kept \(unreadable 0, none 700"):
        len(Filtered(Documents(TEXTS), [Predicate("none", lambda _: False)]))
