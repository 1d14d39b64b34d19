import collections
import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import ByteCounts, Shakespeare, bigram_entropy, unigram_entropy

SMALL = st.lists(st.one_of(st.binary(max_size=9), st.text("abé").map(str.encode)), max_size=9)


def slow(documents, context):
    """The mean surprise of every byte under counts of (context, byte)."""
    seen = [
        (document[i - 1] if i else None, byte)
        for document in documents
        for i, byte in enumerate(document)
    ]
    pairs = collections.Counter((y if context else 0, x) for y, x in seen)
    contexts = collections.Counter(y if context else 0 for y, _ in seen)
    surprise = sum(n * math.log(n / contexts[y]) for (y, _), n in pairs.items())
    return -surprise / max(len(seen), 1)


@given(SMALL)
def test_equal_to_the_definition(documents):
    assert unigram_entropy(documents) == pytest.approx(slow(documents, False), abs=1e-12)
    assert bigram_entropy(documents) == pytest.approx(slow(documents, True), abs=1e-12)


@given(SMALL, SMALL)
def test_counting_in_parts_changes_nothing(first, second):
    counts = ByteCounts()
    counts.add(first)
    counts.add(second)
    assert counts.unigram_entropy() == unigram_entropy(first + second)
    assert counts.bigram_entropy() == bigram_entropy(first + second)
    assert counts.num_bytes == sum(map(len, first + second))


def test_one_document_need_not_be_in_a_list():
    assert unigram_entropy(b"abab") == pytest.approx(math.log(2))
    assert bigram_entropy(b"abab") == 0.0


def test_nothing_costs_nothing():
    assert unigram_entropy([]) == bigram_entropy([b""]) == 0.0


def test_shakespeare_in_half_a_second():
    documents = list(Shakespeare("train"))
    began = time.process_time()
    counts = ByteCounts()
    counts.add(documents)
    found = counts.unigram_entropy(), counts.bigram_entropy()
    assert time.process_time() - began < 0.5
    assert found == pytest.approx((3.30327, 2.46913), abs=1e-5)


def test_counts_of_parts_merge_exactly():
    documents = [b"to be", b"or not", b"", b"to be"]
    whole, first, second = ByteCounts(), ByteCounts(), ByteCounts()
    whole.add(documents)
    first.add(documents[:1])
    second.add(documents[1:])
    first.merge(second.pairs)
    np.testing.assert_array_equal(first.pairs, whole.pairs)
    assert first.bigram_entropy() == whole.bigram_entropy()
    assert first.num_bytes == 16
