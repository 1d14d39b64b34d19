import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx

from luthier.program.state import below, flatten, split, unflatten, with_prefix


class Child(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(
            jax.random.normal(rngs.params(), (2, 3)), logical_axes=("embed", "mlp")
        )


class Parent(nnx.Module):
    def __init__(self, rngs):
        self.children = nnx.List([Child(rngs), Child(rngs)])
        self.seen = nnx.BatchStat(jnp.zeros(2))

    def __call__(self, x):
        return x @ self.children[0].kernel + self.seen.sum()


def test_a_module_comes_apart_by_dotted_names_and_together_again():
    module = Parent(nnx.Rngs(0))
    structure, parameters, variables = split(module)
    assert set(parameters) == {"children.0.kernel", "children.1.kernel"}
    assert set(variables) == {"seen"}
    assert structure.axes() == {
        "children.0.kernel": ("embed", "mlp"),
        "children.1.kernel": ("embed", "mlp"),
    }
    doubled = {name: 2 * x for name, x in (parameters | variables).items()}
    x = jnp.ones((1, 2))
    np.testing.assert_allclose(structure.merge(doubled)(x), 2 * module(x), rtol=1e-6)


def test_merging_shares_nothing_with_the_module_that_was_split():
    structure, parameters, variables = split(Parent(nnx.Rngs(0)))
    first = structure.merge(parameters | variables)
    first.children[0].kernel[...] = jnp.zeros((2, 3))
    second = structure.merge(parameters | variables)
    assert float(jnp.abs(second.children[0].kernel[...]).sum()) > 0


def test_prefixes_go_on_and_come_off():
    state = with_prefix("ema", {"a.b": 1}) | with_prefix("parameters", {"a.b": 2})
    assert state == {"ema/a.b": 1, "parameters/a.b": 2}
    assert below("ema", state) == {"a.b": 1}


def test_an_optimizers_state_is_flat_by_name_and_comes_back():
    parameters = {"a.b": jnp.ones(2), "c": jnp.ones((2, 2))}
    state = optax.adam(1e-3).init(parameters)
    flat = flatten("optimizer", state)
    assert "optimizer/0/mu/a.b" in flat
    assert len(flat) == len(jax.tree.leaves(state))
    again = unflatten("optimizer", jax.eval_shape(lambda: state), flat)
    assert jax.tree.structure(again) == jax.tree.structure(state)
    jax.tree.map(np.testing.assert_array_equal, again, state)
