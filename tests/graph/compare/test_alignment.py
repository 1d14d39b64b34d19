from __future__ import annotations

import itertools

import hypothesis
import pytest
from hypothesis import strategies as st

from luthier.graph.compare import alignment
from luthier.graph.compare.alignment import align, common

LISTS = st.lists(st.integers(0, 4), max_size=8)


def _longest(a, b):
    """The length of a longest common subsequence, by trying all."""
    for length in range(min(len(a), len(b)), 0, -1):
        ours = set(itertools.combinations(a, length))
        if ours & set(itertools.combinations(b, length)):
            return length
    return 0


def _is_common(pairs, a, b):
    assert all(a[i] == b[j] for i, j in pairs)
    assert all(i < k and j < m for (i, j), (k, m) in itertools.pairwise(pairs))


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(LISTS, LISTS)
def test_it_is_a_longest_common_subsequence(a, b):
    pairs = common(a, b)
    _is_common(pairs, a, b)
    assert len(pairs) == _longest(a, b)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(LISTS, LISTS)
def test_the_cheap_way_finds_a_common_subsequence(a, b):
    pairs = alignment._by_occurrence(a, b)
    _is_common(pairs, a, b)
    if sorted(a) == sorted(set(a)) and sorted(b) == sorted(set(b)):
        assert len(pairs) == _longest(a, b)


@hypothesis.settings(max_examples=100, deadline=None)
@hypothesis.given(LISTS, LISTS)
def test_every_element_is_in_one_pair_in_order(a, b):
    pairs = align(a, b, [x % 2 for x in a], [x % 2 for x in b])
    assert [i for i, _ in pairs if i is not None] == list(range(len(a)))
    assert [j for _, j in pairs if j is not None] == list(range(len(b)))


@pytest.mark.parametrize("edit", ["first", "middle", "last"])
def test_long_lists_with_one_insertion(edit):
    a = [n % 7 for n in range(3000)]
    place = {"first": 0, "middle": 1500, "last": 3000}[edit]
    b = [*a[:place], 99, *a[place:]]
    pairs = align(a, b, a, b)
    assert [pair for pair in pairs if None in pair] == [(None, place)]


def test_long_lists_with_edits_at_both_ends():
    a = list(range(3000))
    b = [-1, *a[:10], *a[11:2500], -2, *a[2500:], -3]
    pairs = align(a, b, [0] * len(a), [0] * len(b))
    assert [pair for pair in pairs if None in pair] == [
        (None, 0),
        (10, None),
        (None, 2500),
        (None, 3001),
    ]


def test_between_equal_elements_what_is_alike_is_paired():
    assert align("ab", "cdb", ["x", "b"], ["y", "x", "b"]) == [(None, 0), (0, 1), (1, 2)]
    assert align("a", "b", ["x"], ["y"]) == [(0, 0)]
