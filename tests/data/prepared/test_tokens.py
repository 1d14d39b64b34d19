import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data.prepared.shards import ShardedStream, ShardedTokens
from luthier.errors import DataError


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_it_is_the_concatenation(sizes, data):
    parts = np.split(np.arange(sum(sizes), dtype=np.uint16), np.cumsum(sizes)[:-1])
    tokens = ShardedTokens(parts, sum(sizes), "corpus")
    assert tokens.shape == (len(tokens),) == (sum(sizes),)
    assert tokens.dtype == np.uint16
    positions = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1))), np.int64)
    np.testing.assert_array_equal(tokens[positions], positions)


def test_a_token_that_is_none_of_the_vocabulary_is_refused():
    tokens = ShardedTokens([np.array([1, 2, 700], np.uint16)], 258, "corpus")
    np.testing.assert_array_equal(tokens[np.array([0, 1])], [1, 2])
    with pytest.raises(DataError, match="corpus: holds tokens that are not in its vocabulary"):
        tokens[np.array([1, 2])]


def test_a_stream_reads_its_documents_when_they_are_asked_for():
    read = []

    def read_targets():
        read.append("once")
        return np.array([1, 1], np.int64)

    tokens = ShardedTokens([np.arange(4, dtype=np.uint16)], 258, "corpus")
    stream = ShardedStream(tokens, read_targets, 7)
    assert (stream.tokens, stream.num_bytes) == (tokens, 7)
    assert not read
    np.testing.assert_array_equal(stream.num_targets, [1, 1])
    assert len(read) == 1
