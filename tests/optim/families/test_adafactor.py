import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier.optim import AdamDecay, Axes, LastDims, Layout, PowerDecay, adafactor

SHAPE = (3, 16, 2, 12)
LAYOUTS = {"k": Layout(SHAPE, ("layers", "embed", "heads", "k"), 1), "b": Layout((16,))}
PARAMETERS = {"k": jnp.ones(SHAPE), "b": jnp.ones(16)}


def test_decays():
    counts = jnp.arange(4)
    t = np.arange(1, 5)
    np.testing.assert_allclose(PowerDecay(0.8)(counts), t**-0.8, rtol=1e-6)
    np.testing.assert_allclose(PowerDecay(0.8, 0.5)(counts), np.maximum(0.5, t**-0.8), rtol=1e-6)
    np.testing.assert_allclose(AdamDecay(0.9)(counts), 0.1 / (1 - 0.9**t), rtol=1e-6)
    assert PowerDecay()(jnp.int32(0)) == 1


def test_the_state_is_small_and_layers_are_no_dimension():
    state = adafactor(0.1, least_factored_dim=3).init(PARAMETERS, LAYOUTS).stages[1]
    assert state.rows["k"].shape == (3, 2, 12)
    assert state.columns["k"].shape == (3, 16, 2)
    assert set(state.entries) == {"b"}
    large = adafactor(0.1).init(PARAMETERS, LAYOUTS).stages[1]
    assert set(large.entries) == {"k", "b"}


@pytest.mark.parametrize("setting", ["momentum", "max_update_rms", "least_parameter_rms"])
def test_what_is_left_out_leaves_no_state(setting):
    with_none = adafactor(0.1, **{setting: None}).init(PARAMETERS, LAYOUTS)
    names = {jax.tree_util.keystr(p) for p, _ in jax.tree_util.tree_leaves_with_path(with_none)}
    assert not [name for name in names if "trace" in name]


@pytest.mark.full
def test_learning_rates_are_absolute_without_a_parameter_scale():
    gradients = {"k": jnp.ones(SHAPE), "b": jnp.ones(16)}
    parameters = jax.tree.map(lambda x: 7 * x, PARAMETERS)
    for least, step in ((1e-3, 0.7), (None, 0.1)):
        optimizer = adafactor(0.1, least_parameter_rms=least, least_factored_dim=3)
        updates, _ = optimizer.update(
            gradients, optimizer.init(parameters, LAYOUTS), parameters, LAYOUTS
        )
        np.testing.assert_allclose(updates["k"], -step, rtol=1e-5)


def test_the_last_two_dimensions_may_be_the_factored_ones():
    optimizer = adafactor(0.1, least_factored_dim=1, factored_dims=LastDims())
    state = optimizer.init(PARAMETERS, LAYOUTS)
    factored = state.stages[1]
    assert (factored.rows["k"].shape, factored.columns["k"].shape) == ((3, 16, 2), (3, 16, 12))
    axes = factored.axes(LAYOUTS)
    assert axes.rows["k"] == Axes(("layers", "embed", "heads"))
    assert axes.columns["k"] == Axes(("layers", "embed", "k"))
    gradients = jax.tree.map(lambda x: x.at[1].multiply(3.0), PARAMETERS)
    _, state = optimizer.update(gradients, state, PARAMETERS, LAYOUTS)
    after = state.stages[1]
    assert jax.tree.structure(after) == jax.tree.structure(factored)
    assert after.axes(LAYOUTS) == axes
    np.testing.assert_allclose(after.rows["k"][:, 0, 0], [1, 9, 1], rtol=1e-6)
