import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.optim import Matching
from luthier.program import model_arrays, split
from luthier.program.state import below, changed, chosen, flatten, unflatten, with_prefix


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


def test_chosen_parameters_are_those_of_the_mask():
    parameters = {"a.kernel": 1, "a.bias": 2, "b.kernel": 3}
    assert chosen(parameters, None) == parameters
    assert chosen(parameters, Matching("kernel")) == {"a.kernel": 1, "b.kernel": 3}


def test_a_mask_for_nothing_is_one_clear_error():
    with pytest.raises(BadInput) as caught:
        chosen({"a.kernel": 1}, Matching("lora"))
    (problem,) = caught.value.problems
    assert problem.path == "training.trainable"
    assert "lora" in problem.what
    assert "a.kernel" in problem.remedy


def test_a_model_takes_parameters_that_have_no_average_as_they_are():
    state = {"parameters/a": 1, "parameters/b": 2, "ema/a": 3, "variables/c": 4, "step": 5}
    assert model_arrays(state) == {"a": 1, "b": 2, "c": 4}
    assert model_arrays(state, "ema") == {"a": 3, "b": 2, "c": 4}


def test_updates_take_the_type_of_what_they_replace():
    state = {"variables/mean": jnp.zeros(2, jnp.bfloat16), "variables/other": jnp.zeros(1)}
    found = changed("variables", {"mean": np.ones(2, np.float32)}, state)
    assert set(found) == {"variables/mean"}
    assert found["variables/mean"].dtype == jnp.bfloat16


def test_updates_of_what_is_not_there_are_bad_input_all_at_once():
    state = {"variables/mean": jnp.zeros(2)}
    with pytest.raises(BadInput) as caught:
        changed("variables", {"mean": jnp.zeros(3), "maen": jnp.zeros(2)}, state)
    assert len(caught.value.problems) == 2
    assert "there are: mean" in str(caught.value)
