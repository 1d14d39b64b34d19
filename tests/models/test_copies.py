import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import Attention, GatedMlp, PreNormBlock, RMSNorm, Scanned, Unrolled
from luthier.models import Decoder, Held, ResNet, WithCopy, generate, hold
from luthier.program import split


def _decoder(stack=Scanned()):
    block = functools.partial(
        PreNormBlock, functools.partial(Attention, 2), functools.partial(GatedMlp, 12), RMSNorm
    )
    return functools.partial(Decoder, 11, 8, 2, block, RMSNorm, stack=stack)


@pytest.mark.parametrize("stack", [Scanned(), Unrolled()])
def test_the_copy_has_the_parameters_as_variables_of_the_same_name(stack):
    structure, parameters, variables = split(WithCopy(_decoder(stack), rngs=nnx.Rngs(0)))
    assert {n.removeprefix("trained.") for n in parameters} == {
        n.removeprefix("copy.") for n in variables
    }
    for name, array in parameters.items():
        other = name.replace("trained.", "copy.")
        np.testing.assert_array_equal(variables[other], array)
        assert structure.axes()[other] == structure.axes()[name]


@pytest.mark.full
def test_the_copy_computes_what_the_model_does():
    model = WithCopy(_decoder(), rngs=nnx.Rngs(0))
    tokens = jnp.arange(6)[None]
    np.testing.assert_array_equal(model(tokens), model.copy(tokens))
    np.testing.assert_array_equal(model(tokens), model.logits(model.hidden(tokens)))


@pytest.mark.full
def test_it_generates_as_the_trained_model():
    model = WithCopy(_decoder(), rngs=nnx.Rngs(0))
    options = {"max_new_tokens": 4, "temperature": 0.0}
    assert generate(model, [[1, 2]], **options) == generate(model.trained, [[1, 2]], **options)


@pytest.mark.full
def test_following_names_the_variables_of_the_whole():
    model = WithCopy(_decoder(), rngs=nnx.Rngs(0))
    model.trained.norm.scale.set_value(jnp.full(8, 3.0))
    found = model.followed(0.75)
    assert set(found) == set(split(model)[2])
    np.testing.assert_allclose(found["copy.norm.scale"], np.full(8, 1.5))
    np.testing.assert_array_equal(
        found["copy.embedding.table"], model.copy.embedding.table.get_value()
    )


@pytest.mark.full
def test_other_variables_are_copied_as_they_are():
    _, parameters, variables = split(
        WithCopy(functools.partial(ResNet, 3, (1,), 4), rngs=nnx.Rngs(0))
    )
    assert all(name.startswith("trained.") for name in parameters)
    assert {"trained.stem.norm.mean", "copy.stem.norm.mean"} <= set(variables)


def test_parameters_in_lists_are_copied_too():
    class Listed(nnx.Module):
        def __init__(self):
            self.kernels = nnx.List([nnx.Param(jnp.ones(2))])

    _, parameters, variables = split(hold(Listed()))
    assert not parameters
    assert set(variables) == {"kernels.0"}


@pytest.mark.full
def test_held_is_no_parameter():
    assert not issubclass(Held, nnx.Param)
    state = nnx.state(jax.jit(lambda: WithCopy(_decoder(), rngs=nnx.Rngs(0)))(), Held)
    assert len(nnx.to_flat_state(state)) > 5
