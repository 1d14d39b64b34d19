import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from luthier.layers import Causal, Contiguous, SameDocument, Window, Zigzag
from luthier.parallel import current_layout


@pytest.mark.parametrize("places", [2, 4, 8])
def test_zigzag_gives_each_place_a_front_and_an_end(on_mesh, places):
    x = jnp.arange(32)[None]
    along = PartitionSpec(None, ("sequence",))

    def run(function):
        with on_mesh(sequence=places):
            mapped = lambda x: function(x, ("sequence",), places)
            return jax.jit(current_layout().shard_map(mapped, ("sequence",), along, along))

    order = Zigzag()
    spread = run(order.spread)(x)
    pieces = jnp.split(jnp.arange(32), 2 * places)
    for i, part in enumerate(jnp.split(spread[0], places)):
        assert (part == jnp.concatenate([pieces[i], pieces[2 * places - 1 - i]])).all()
    assert (run(order.gather)(spread) == x).all()


@pytest.mark.parametrize(
    ("size", "rounds"), [(1, 1), (2, 2), (9, 2), (10, 3), (17, 3), (18, 4), (1000, 4)]
)
def test_windows_need_the_nearest_places_only(size, rounds):
    assert Contiguous().num_rounds(Window(size), 8, 4) == rounds
    # Counted: the farthest key that the first query of a place sees.
    assert rounds == min(4, 1 + (size - 1 + 7) // 8)


def test_other_masks_need_all_places():
    assert Contiguous().num_rounds(Causal(), 8, 4) == 4
    assert Contiguous().num_rounds(SameDocument(), 8, 4) == 4
    assert Zigzag().num_rounds(Window(2), 8, 4) == 4
