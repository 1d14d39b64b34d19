import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import GatedMlp, Linear, Zeros
from luthier.layers.experts.dispatch import apply_each, create_each

BIASED = functools.partial(Linear, bias=Zeros())


def _experts(num=3):
    template = functools.partial(GatedMlp, hidden_dim=5, down=BIASED)
    return create_each(template, num, 2, nnx.Rngs(params=0), dim=4)


def test_parameters_have_an_axis_of_experts_and_know_their_active_share():
    experts = _experts()
    assert experts.up.kernel.shape == (3, 4, 5)
    assert experts.down.bias.shape == (3, 4)
    metadata_by_name = {n: v.get_metadata() for (n, *_), v in nnx.to_flat_state(nnx.state(experts))}
    assert metadata_by_name["up"]["logical_axes"] == ("experts", "embed", "mlp")
    assert metadata_by_name["up"]["num_inputs"] == 1
    assert {metadata["active_share"] for metadata in metadata_by_name.values()} == {2 / 3}


def test_every_expert_has_a_draw_of_its_own_which_others_do_not_change():
    few, many = _experts(2).up.kernel[...], _experts(3).up.kernel[...]
    np.testing.assert_array_equal(few, many[:2])
    assert not np.array_equal(many[0], many[1])


def test_initializers_see_the_matrix_of_one_expert():
    kernel = create_each(
        functools.partial(GatedMlp, hidden_dim=64), 64, 1, nnx.Rngs(params=0), dim=256
    ).up.kernel[...]
    assert float(jnp.std(kernel)) == pytest.approx(1 / 16, rel=0.01)


def test_each_expert_maps_its_own_or_all_map_the_same(draw, distance):
    experts, own, shared = _experts(), draw(3, 2, 6, 4), draw(2, 6, 4)
    graphdef, state = nnx.split(experts)
    alone = [nnx.merge(graphdef, jax.tree.map(lambda x, e=e: x[e], state)) for e in range(3)]
    expected = jnp.stack([expert(x) for expert, x in zip(alone, own, strict=True)])
    assert distance(apply_each(experts, own), expected) < 1e-6
    expected = jnp.stack([expert(shared) for expert in alone])
    assert distance(apply_each(experts, shared, same=True), expected) < 1e-6
