import itertools
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Concatenate, FirstFit, Unpacked

SIZES = st.lists(st.integers(1, 40), min_size=1, max_size=30)
LENGTHS = st.integers(1, 17)
PACKINGS = [Concatenate(), FirstFit(), Unpacked()]


def plan(packing, sizes, length):
    return packing.plan(np.array(sizes, np.int64), length)


def chunks(plan):
    """The chunks by row, each (number, first place in the stream, length)."""
    listed = list(zip(plan.ids.tolist(), plan.starts.tolist(), plan.lengths.tolist(), strict=True))
    edges = plan.row_starts.tolist()
    return [listed[a:b] for a, b in itertools.pairwise(edges)]


@pytest.mark.parametrize("packing", PACKINGS, ids=repr)
def test_every_target_is_in_one_chunk(packing):
    @given(SIZES, LENGTHS)
    def check(sizes, length):
        rows = chunks(plan(packing, sizes, length))
        assert all(row and sum(n for _, _, n in row) <= length for row in rows)
        found = sorted(chunk for row in rows for chunk in row)
        assert [number for number, _, _ in found] == list(range(1, len(found) + 1))
        covered = [start + i for _, start, n in found for i in range(n)]
        begins = np.cumsum([0] + [n + 1 for n in sizes]).tolist()
        wanted = [b + i for b, n in zip(begins, sizes, strict=False) for i in range(n)]
        assert covered == wanted  # once each, in order, and no chunk crosses documents

    check()


@given(SIZES, LENGTHS)
def test_concatenate_wastes_only_the_end(sizes, length):
    rows = chunks(plan(Concatenate(), sizes, length))
    filled = [sum(n for _, _, n in row) for row in rows]
    assert filled[:-1] == [length] * (len(rows) - 1)
    assert len(rows) == -(-sum(sizes) // length)


@given(SIZES, LENGTHS)
def test_concatenate_cuts_at_every_begin_of_a_document_or_a_row(sizes, length):
    ends = np.cumsum(sizes)
    row_edges = np.arange(-(-int(ends[-1]) // length)) * length
    edges = np.union1d(ends - sizes, row_edges)
    made = plan(Concatenate(), sizes, length)
    row_starts = [*np.searchsorted(edges, row_edges), len(edges)]
    for array, wanted, dtype in (
        (made.row_starts, row_starts, np.int64),
        (made.starts, edges + np.searchsorted(ends, edges, side="right"), np.int64),
        (made.lengths, np.diff(edges, append=ends[-1]), np.int32),
        (made.ids, np.arange(1, len(edges) + 1), np.int32),
    ):
        assert array.dtype == dtype
        np.testing.assert_array_equal(array, wanted)


@given(SIZES, LENGTHS)
def test_unpacked_has_one_chunk_a_row(sizes, length):
    rows = chunks(plan(Unpacked(), sizes, length))
    assert [len(row) for row in rows] == [1] * len(rows)
    assert len(rows) == sum(-(-n // length) for n in sizes)


def slow_first_fit(lengths, capacity):
    rows = []
    for length in lengths:
        for row in rows:
            if sum(row) + length <= capacity:
                row.append(length)
                break
        else:
            rows.append([length])
    return sorted(map(tuple, rows))


@given(SIZES, LENGTHS)
def test_first_fit_has_the_chunks_of_unpacked_and_is_first_fit(sizes, length):
    packed, single = (
        chunks(plan(FirstFit(), sizes, length)),
        chunks(plan(Unpacked(), sizes, length)),
    )
    assert sorted(chunk for row in packed for chunk in row) == [row[0] for row in single]
    found = sorted(tuple(n for _, _, n in row) for row in packed)
    assert found == slow_first_fit([row[0][2] for row in single], length)
    firsts = [row[0][0] for row in packed]
    assert firsts == sorted(firsts)
    assert all(row == sorted(row) for row in packed)


@pytest.mark.parametrize("packing", PACKINGS, ids=repr)
def test_fifty_million_targets_in_seconds(packing):
    sizes = np.random.default_rng(0).integers(1, 1000, 100_000)
    began = time.process_time()
    assert plan(packing, sizes, 1024).num_rows >= sizes.sum() // 1024
    assert time.process_time() - began < 5
