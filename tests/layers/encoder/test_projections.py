import functools

import numpy as np
import pytest
from flax import nnx

from luthier.layers import Attention, FanIn, Linear, Zeros, create, query_and_others


def test_queries_have_a_template_of_their_own():
    projection = functools.partial(
        query_and_others,
        query=functools.partial(Linear, Zeros()),
        others=functools.partial(Linear, FanIn(), bias=Zeros()),
    )
    attention = create(
        functools.partial(Attention, 2, projection=projection), dim=8, rngs=nnx.Rngs(0)
    )
    np.testing.assert_array_equal(attention.query.kernel[...], 0)
    assert attention.query.bias is None
    for part in (attention.key, attention.value):
        assert (part.kernel[...] != 0).all()
        assert part.bias.shape == (2, 4)


@pytest.mark.full
def test_keys_draw_as_without_it():
    """The query draws nothing from the keys of the others, whatever it draws itself."""
    plain = functools.partial(Linear, FanIn())
    both = functools.partial(query_and_others, query=plain, others=plain)
    made = [
        create(functools.partial(Attention, 2, projection=p), dim=8, rngs=nnx.Rngs(0))
        for p in (plain, both)
    ]
    for (path, a), (_, b) in zip(*(nnx.to_flat_state(nnx.state(m)) for m in made), strict=True):
        np.testing.assert_array_equal(a[...], b[...], err_msg=str(path))
