import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luthier.data.prepared.tokens import ShardedTokens


@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.data())
def test_it_is_the_concatenation(sizes, data):
    parts = np.split(np.arange(sum(sizes), dtype=np.uint16), np.cumsum(sizes)[:-1])
    tokens = ShardedTokens(parts)
    assert tokens.shape == (len(tokens),) == (sum(sizes),)
    assert tokens.dtype == np.uint16
    positions = np.array(data.draw(st.lists(st.integers(0, sum(sizes) - 1))), np.int64)
    np.testing.assert_array_equal(tokens[positions], positions)
