import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Deduplicate, Length, Predicate, fold


@given(st.lists(st.binary(max_size=9)), st.integers(0, 9), st.none() | st.integers(0, 9))
def test_length(documents, low, high):
    kept = Length(low, high).start()(documents)
    top = 99 if high is None else high
    assert kept.tolist() == [low <= len(document) <= top for document in documents]


@given(st.lists(st.sampled_from([b"a", b"A", b"b", b""])), st.integers(0, 5))
def test_the_first_of_equals_is_kept_over_blocks(documents, cut):
    keep = Deduplicate().start()
    mask = np.concatenate([keep(documents[:cut]), keep(documents[cut:])])
    assert [d for d, kept in zip(documents, mask, strict=True) if kept] == list(
        dict.fromkeys(documents)
    )


def test_equal_after_normalizing():
    documents = [b"A  x", b"a\nx ", b"b"]
    assert Deduplicate(fold).start()(documents).tolist() == [True, False, True]
    assert Deduplicate().start()(documents).tolist() == [True, True, True]


def test_every_pass_starts_anew():
    filter_ = Deduplicate()
    assert filter_.start()([b"a"]).tolist() == [True]
    assert filter_.start()([b"a"]).tolist() == [True]


def test_a_predicate_of_the_users_own():
    keep = Predicate("ascii", bytes.isascii).start()
    assert keep([b"a", "é".encode(), b"b"]).tolist() == [True, False, True]


def test_fold():
    assert fold("  Two\tWORDS  \n É".encode()) == "two words é".encode()
    assert fold(b"\xff A") == b"\xff a"
