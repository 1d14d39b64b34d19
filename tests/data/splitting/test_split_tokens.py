import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import ShiftLeft, ShiftRight, SplitTokens, Stream, TrimTokens

GOLDEN = Path(__file__).parent / "goldens" / "pax_rows.npz"
NAMES = {
    "inputs": "ids",
    "targets": "labels",
    "weights": "weights",
    "segments": "segment_ids",
    "positions": "segment_pos",
}


def rows_of(packing, documents, length):
    """All rows of documents that stand between start and end tokens in the stream."""
    tokens = np.concatenate([[250, *document, 251] for document in documents]).astype(np.int64)
    sizes = np.array([len(document) + 1 for document in documents], np.int64)
    rows = packing.rows(Stream(tokens, sizes, 0), length, np.full(256, 3, np.int32))
    return rows, rows.gather(np.arange(rows.num_rows))


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as file:
        arrays = dict(file)
    documents = np.split(arrays["tokens"], np.cumsum(arrays["sizes"])[:-1])
    return arrays, documents, int(arrays["length"])


@pytest.mark.parametrize(
    ("case", "packing"),
    [
        ("packed_left", SplitTokens(ShiftLeft(end=1), documents_per_group=4)),
        ("packed_right", SplitTokens(ShiftRight(start=0), documents_per_group=4)),
        ("trimmed_left", TrimTokens(ShiftLeft(end=1))),
    ],
)
def test_rows_are_those_of_pax(case, packing, golden):
    arrays, documents, length = golden
    rows, batch = rows_of(packing, documents, length)
    for ours, theirs in NAMES.items():
        np.testing.assert_array_equal(batch[ours], arrays[f"{case}/{theirs}"], ours)
    assert rows.num_targets == batch["weights"].sum()
    assert batch["segments"].max() == (1 if case == "trimmed_left" else 4)


def reference(documents, length, group):
    """The rows of the published rule, each a list of segments of tokens."""
    segments = []
    for first in range(0, len(documents), group):
        joined = [token for document in documents[first : first + group] for token in document]
        segments += [joined[i : i + length] for i in range(0, len(joined), length)]
    rows = []
    for first in range(0, len(segments), length):
        row = []
        for segment in segments[first : first + length]:
            if row and sum(map(len, row)) + len(segment) > length:
                rows.append(row)
                row = []
            row.append(segment)
        rows.append(row)
    return rows


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=40).filter(any),
    st.integers(1, 9),
    st.integers(1, 7),
)
def test_rows_are_those_of_the_rule(sizes, length, group):
    edges = np.cumsum([0, *sizes])
    documents = [list(range(1 + a, 1 + b)) for a, b in itertools.pairwise(edges.tolist())]
    documents = [[token % 240 + 1 for token in document] for document in documents]
    expected = reference(documents, length, group)
    left, batch = rows_of(SplitTokens(ShiftLeft(7), group), documents, length)
    assert left.num_rows == len(expected)
    numbers = iter(range(1, 1000))
    for r, row in enumerate(expected):
        tokens = [token for segment in row for token in segment]
        padding = [0] * (length - len(tokens))
        assert batch["inputs"][r].tolist() == tokens + padding
        targets = tokens[1:] + padding + ([0] if padding else [])
        targets = [*(targets + [0] * length)[: length - 1], 7]
        assert batch["targets"][r].tolist() == targets
        weights = [1.0] * (len(tokens) - 1) + [0.0] * (length - len(tokens) + 1)
        assert batch["weights"][r].tolist() == weights
        assert batch["target_bytes"][r].tolist() == [3 * int(weight) for weight in weights]
        segments = [n for n, segment in enumerate(row, 1) for _ in segment]
        assert batch["segments"][r].tolist() == segments + padding
        documents_ = [n for segment, n in zip(row, numbers, strict=False) for _ in segment]
        assert batch["documents"][r].tolist()[: len(tokens)] == documents_
    assert left.num_targets == batch["weights"].sum()
    assert left.num_examples == batch["documents"].max()


def test_rows_are_assembled_one_by_one_as_together():
    documents = [[i] * (i % 5) for i in range(1, 60)]
    rows, batch = rows_of(SplitTokens(ShiftRight(9), 3), documents, 8)
    for row in range(rows.num_rows):
        for name, entry in rows.gather(np.array([row])).items():
            np.testing.assert_array_equal(entry[0], batch[name][row])
    some = rows.gather(np.array([2, -1, 0]))
    for name, entry in some.items():
        np.testing.assert_array_equal(entry[[0, 2]], batch[name][[2, 0]])
        assert not entry[1].any()


@pytest.mark.parametrize("packing", [SplitTokens(), TrimTokens()], ids=repr)
def test_the_space_in_front_of_a_document_is_not_counted(packing):
    tokens = np.array([250, 5, 6, 251, 250, 7, 251, 250, 251])
    stream = Stream(tokens, np.array([3, 2, 1]), 0)
    rows = packing.rows(stream, 4, np.full(256, 3, np.int32), prefix_bytes=1)
    found = rows.gather(np.arange(rows.num_rows))["target_bytes"].tolist()
    assert found == (
        [[3, 2, 0, 0]] if isinstance(packing, SplitTokens) else [[3, 0, 0, 0], [0] * 4]
    )


def test_documents_without_tokens_have_no_rows():
    for packing in (SplitTokens(), TrimTokens()):
        assert rows_of(packing, [[], []], 4)[0].num_rows == 0
