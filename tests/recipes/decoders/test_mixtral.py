import jax
import numpy as np
import pytest
from flax import nnx

from luthier.layers.experts import ACTIVE_SHARE
from luthier.recipes.decoders import mixtral, mixtral_8x7b, mixtral_8x22b

SIZES = {"num_layers": 2, "num_heads": 4, "num_kv_heads": 2, "hidden_dim": 40}


def _active(abstract, graph):
    state = nnx.to_flat_state(nnx.state(abstract(graph), nnx.Param))
    sizes = (
        int(np.prod(v.get_value().shape)) * v.get_metadata().get(ACTIVE_SHARE, 1) for _, v in state
    )
    return sum(sizes)


@pytest.mark.full
def test_number_of_parameters(num_parameters, abstract):
    assert num_parameters(mixtral_8x7b()) == 46_702_792_704
    assert _active(abstract, mixtral_8x7b()) == 12_879_925_248
    assert num_parameters(mixtral_8x22b()) == 140_630_071_296
    assert _active(abstract, mixtral_8x22b()) == 39_161_468_928


def test_experts_are_of_the_initializer_of_the_others(abstract):
    initializers = {
        ".".join(map(str, path)): variable.get_metadata()["initializer"]
        for path, variable in nnx.to_flat_state(nnx.state(abstract(mixtral_8x7b()), nnx.Param))
    }
    assert {initializers[n] for n in initializers if ".mlp." in n} == {"Normal(stddev=0.02)"}
    assert len(jax.tree.leaves(initializers)) == 13


@pytest.mark.slow
def test_trains(assert_trains):
    assert_trains(mixtral(vocab_size=258, dim=16, **SIZES, pad_to_multiple=8))
