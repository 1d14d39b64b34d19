import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Bytes, Concatenate, Documents, FirstFit, Packed, Unpacked

CORPUS = st.lists(st.binary(max_size=30), min_size=1, max_size=12)
PACKINGS = st.sampled_from([Concatenate(), FirstFit(), Unpacked()])


def spec_of(rows, length):
    return Packed(Documents(["a"]), Bytes(), length, Concatenate()).batch_spec(rows)


ENTRIES = ("inputs", "targets", "segments", "positions", "documents", "target_bytes")


def rows_of(documents, packing, length):
    return Packed(Documents(documents), Bytes(), length, packing).rows


def slow_rows(documents, packing, length):
    """The same rows, token by token: lists of (input, target, segment, position, chunk)."""
    rows, chunk, room = [], 0, 0
    for document in documents:
        stream = [256, *document, 257]
        for index in range(len(stream) - 1):
            cut = room == 0 if isinstance(packing, Concatenate) else index % length == 0
            if cut:
                rows.append([])
                room = length
            if cut or index == 0:
                chunk, position = chunk + 1, 0
                segment = rows[-1][-1][2] + 1 if rows[-1] else 1
            rows[-1].append((stream[index], stream[index + 1], segment, position, chunk))
            position, room = position + 1, room - 1
    return rows


@given(CORPUS, st.sampled_from([Concatenate(), Unpacked()]), st.integers(1, 13))
def test_rows_equal_those_made_token_by_token(documents, packing, length):
    rows = rows_of(documents, packing, length)
    expected = slow_rows(documents, packing, length)
    assert rows.num_rows == len(expected)
    batch = rows.gather(np.arange(rows.num_rows))
    names = ("inputs", "targets", "segments", "positions", "documents")
    for row, wanted in enumerate(expected):
        padding = length - len(wanted)
        for name, values in zip(names, zip(*wanted, strict=True), strict=True):
            assert batch[name][row].tolist() == [*values, *[0] * padding]
        assert batch["weights"][row].tolist() == [1.0] * len(wanted) + [0.0] * padding
        assert batch["target_bytes"][row].tolist() == [
            *(int(target < 256) for _, target, *_ in wanted),
            *[0] * padding,
        ]


@given(CORPUS, PACKINGS, st.integers(1, 13))
def test_every_byte_is_a_target_once_in_order(documents, packing, length):
    rows = rows_of(documents, packing, length)
    batch = rows.gather(np.arange(rows.num_rows))
    real = batch["weights"] > 0
    order = np.lexsort((batch["positions"][real], batch["documents"][real]))
    expected = [token for document in documents for token in (*document, 257)]
    assert batch["targets"][real][order].tolist() == expected
    assert batch["target_bytes"].sum() == sum(map(len, documents))
    assert batch["weights"].sum() == len(expected)
    np.testing.assert_array_equal(real, batch["segments"] > 0)
    np.testing.assert_array_equal(real, batch["documents"] > 0)
    for name in ENTRIES:
        assert not batch[name][~real].any()


@given(CORPUS, PACKINGS, st.integers(1, 13))
def test_segments_and_positions_agree(documents, packing, length):
    rows = rows_of(documents, packing, length)
    batch = rows.gather(np.arange(rows.num_rows))
    for row in range(rows.num_rows):
        used = int(batch["weights"][row].sum())
        segments, positions, chunks, inputs, targets = (
            batch[name][row, :used]
            for name in ("segments", "positions", "documents", "inputs", "targets")
        )
        new = np.diff(segments, prepend=0)
        assert set(new) <= {0, 1}
        np.testing.assert_array_equal(positions == 0, new == 1)
        np.testing.assert_array_equal(np.diff(positions)[new[1:] == 0], 1)
        assert len(set(zip(segments, chunks, strict=True))) == segments[-1] == len(set(chunks))
        same = new[1:] == 0
        np.testing.assert_array_equal(inputs[1:][same], targets[:-1][same])
        assert set(np.flatnonzero(inputs == 256)) <= set(np.flatnonzero(positions == 0))


@given(CORPUS, st.integers(1, 13))
def test_first_fit_holds_the_rows_of_unpacked(documents, length):
    def by_chunk(packing):
        rows = rows_of(documents, packing, length)
        batch = rows.gather(np.arange(rows.num_rows))
        real = batch["weights"] > 0
        names = ("documents", "positions", "inputs", "targets", "target_bytes")
        return sorted(zip(*(batch[name][real].tolist() for name in names), strict=True))

    assert by_chunk(FirstFit()) == by_chunk(Unpacked())


@given(CORPUS, PACKINGS, st.integers(1, 13), st.data())
def test_rows_do_not_depend_on_what_is_gathered_with_them(documents, packing, length, data):
    rows = rows_of(documents, packing, length)
    whole = rows.gather(np.arange(rows.num_rows))
    some = data.draw(st.lists(st.integers(-1, rows.num_rows - 1)))
    batch = rows.gather(np.array(some, np.int64))
    for name, (shape, dtype) in spec_of(len(some), length).items():
        assert batch[name].shape == shape
        assert batch[name].dtype == dtype
        for index, row in enumerate(some):
            expected = whole[name][row] if row >= 0 else np.zeros(length)
            np.testing.assert_array_equal(batch[name][index], expected)
    assert set(batch) == set(spec_of(1, 1))


def test_an_example():
    batch = rows_of(["abc", "d"], Concatenate(), 5).gather(np.array([0, 1]))
    a, b, c, d = b"abcd"
    assert batch["inputs"].tolist() == [[256, a, b, c, 256], [d, 0, 0, 0, 0]]
    assert batch["targets"].tolist() == [[a, b, c, 257, d], [257, 0, 0, 0, 0]]
    assert batch["segments"].tolist() == [[1, 1, 1, 1, 2], [1, 0, 0, 0, 0]]
    assert batch["positions"].tolist() == [[0, 1, 2, 3, 0], [0, 0, 0, 0, 0]]
    assert batch["documents"].tolist() == [[1, 1, 1, 1, 2], [3, 0, 0, 0, 0]]
    assert batch["target_bytes"].tolist() == [[1, 1, 1, 0, 1], [0, 0, 0, 0, 0]]


@pytest.mark.parametrize(
    "other",
    [
        (["abc", "e"], Concatenate(), 5),
        (["abc", "d"], FirstFit(), 5),
        (["abc", "d"], Concatenate(), 4),
        (["d", "abc"], Concatenate(), 5),
    ],
)
def test_different_rows_have_different_digests(other):
    rows = rows_of(["abc", "d"], Concatenate(), 5)
    assert rows.digest == rows_of(["abc", b"d"], Concatenate(), 5).digest
    assert rows.digest != rows_of(*other).digest
    assert len(rows.digest) == 32
    assert dataclasses.replace(rows).digest == rows.digest
