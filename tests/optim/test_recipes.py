"""Every recipe against Optax, NumPy in float64, unrolled layers, and itself with traced settings.

To add an optimizer, add a row to RECIPES in `tests/optim/table.py`.
"""

import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from luthier import optim
from luthier.contrib import optimizers
from luthier.optim import Constant, Layout, Matching, Optimizer, WarmupCosine
from tests.optim.table import RECIPES

NUM_STEPS = 5
every_recipe = pytest.mark.parametrize("recipe", RECIPES.values(), ids=RECIPES)


@jax.tree_util.register_dataclass
@dataclasses.dataclass(frozen=True)
class Scalar:
    """Stands in for a hoisted leaf: an array with a complement from the host."""

    value: Any
    complement: Any

    @classmethod
    def of(cls, number):
        return cls(np.float32(number), np.float32(1 - number))

    def __jax_array__(self):
        return self.value

    def __rsub__(self, other):
        return self.complement if isinstance(other, int) and other == 1 else other - self.value

    def __mul__(self, other):
        return self.value * other

    def __bool__(self):
        raise TypeError("a branch on the value of a hyperparameter")

    __float__ = __bool__


LAYOUTS = {
    "embedding.table": Layout((11, 6), ("vocab", "embed")),
    "blocks.attention.query.kernel": Layout((3, 6, 2, 3), ("layers", "embed", "heads", "k"), 1),
    "blocks.attention.output.kernel": Layout((3, 2, 3, 6), ("layers", "heads", "k", "embed"), 2),
    "blocks.norm.scale": Layout((3, 6), ("layers", "embed")),
    "blocks.mlp.up.kernel": Layout((3, 6, 8), ("layers", "embed", "mlp"), 1),
    "blocks.mlp.up.bias": Layout((3, 8), ("layers", "mlp")),
    "unembedding.kernel": Layout((6, 11), ("embed", "vocab"), 1),
}


def parameters_and_gradients(dtype=np.float32):
    rng = np.random.default_rng(0)
    # Small, as in models: what float32 rounds off them is small beside the steps, too.
    parameters = {n: (0.1 * rng.normal(size=x.shape)).astype(dtype) for n, x in LAYOUTS.items()}
    gradients = [
        {n: (0.2 * gradient(rng, x)).astype(dtype) for n, x in LAYOUTS.items()}
        for _ in range(NUM_STEPS)
    ]
    # The first step is clipped and the second is not, at a limit of 1.
    gradients[1] = {n: 0.05 * g for n, g in gradients[1].items()}
    return parameters, gradients


def gradient(rng, layout):
    """Return random numbers; for kernels with squares of singular values at equal distances.

    Eigenvectors are only known to the rounding of a matrix over the gaps of its eigenvalues, and
    inverse roots to that over the least of them: what is compared to 1e-6 must have large ones.
    """
    array = rng.normal(size=layout.shape)
    if not layout.is_matrix:
        return array
    left, _, right = np.linalg.svd(layout.to_matrices(array), full_matrices=False)
    values = np.sqrt(np.linspace(6, 1, left.shape[-1]))
    return layout.from_matrices(left @ (values[:, None] * right))


def unrolled(arrays):
    """Return the layers of every stacked parameter by themselves."""
    found = {}
    for name, array in arrays.items():
        if name.startswith("blocks."):
            rest = name.removeprefix("blocks.")
            found |= {f"blocks.{i}.{rest}": layer for i, layer in enumerate(array)}
        else:
            found[name] = array
    return found


def unrolled_layouts():
    layers = {n: [_layer(x)] * 3 if n.startswith("blocks.") else x for n, x in LAYOUTS.items()}
    return unrolled(layers)


def _layer(layout):
    return Layout(layout.shape[1:], layout.axes[1:], layout.num_inputs)


def run_ours(recipe, parameters, gradients, layouts=LAYOUTS):
    optimizer = recipe.make(**recipe.settings)

    @jax.jit
    def step(parameters, state, gradient):
        updates, state = optimizer.update(gradient, state, parameters, layouts)
        return optax.apply_updates(parameters, updates), state

    state = optimizer.init(parameters, layouts)
    with jax.default_matmul_precision("highest"):
        for gradient in gradients:
            parameters, state = step(parameters, state, gradient)
    return parameters


def run(transformation, parameters, gradients):
    @jax.jit
    def step(parameters, state, gradient):
        updates, state = transformation.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state

    state = transformation.init(parameters)
    for gradient in gradients:
        parameters, state = step(parameters, state, gradient)
    return parameters, state


def run_numpy(recipe, parameters, gradients):
    """Return the parameters of the unrolled layers."""
    parameters = {n: p.astype(np.float64) for n, p in unrolled(parameters).items()}
    memory = {}
    for t, gradient in enumerate(gradients, 1):
        wide = {n: g.astype(np.float64) for n, g in unrolled(gradient).items()}
        recipe.numpy(recipe.settings, parameters, wide, t, memory)
    return parameters


def assert_near(found, expected, start, tolerance):
    """Compare how far parameters moved, parameter by parameter, in the 2-norm."""
    assert set(found) == set(expected)
    for name in expected:
        moved = np.asarray(expected[name], np.float64) - start[name]
        error = np.asarray(found[name], np.float64) - np.asarray(expected[name], np.float64)
        assert np.linalg.norm(error) <= tolerance * np.linalg.norm(moved), name


def test_every_recipe_is_in_the_table():
    public = {
        value
        for facade in (optim, optimizers)
        for name, value in vars(facade).items()
        if inspect.isfunction(value) and inspect.signature(value).return_annotation == "Optimizer"
    }
    assert public - {optim.assemble, optim.partition} == {r.recipe for r in RECIPES.values()}


@pytest.mark.parametrize("name", [name for name, recipe in RECIPES.items() if recipe.optax])
def test_five_steps_are_those_of_optax(name):
    recipe = RECIPES[name]
    start, gradients = parameters_and_gradients()
    ours = run_ours(recipe, start, gradients)
    layers = [unrolled(gradient) for gradient in gradients]
    theirs, _ = run(recipe.optax(recipe.settings), unrolled(start), layers)
    assert_near(unrolled(ours), theirs, unrolled(start), 5e-6)


@every_recipe
def test_five_steps_are_those_of_numpy_in_float64(recipe):
    start, gradients = parameters_and_gradients()
    ours = run_ours(recipe, start, gradients)
    exact = run_numpy(recipe, start, gradients)
    assert_near(unrolled(ours), exact, unrolled(start), 3e-6)


@every_recipe
def test_in_float64_all_digits_agree(recipe):
    with jax.enable_x64(True):
        start, gradients = parameters_and_gradients(np.float64)
        ours = run_ours(recipe, start, gradients)
        exact = run_numpy(recipe, start, gradients)
        assert_near(unrolled(ours), exact, unrolled(start), 1e-11)


def test_adam_near_one_is_right_to_float32_where_optax_is_not():
    recipe = dataclasses.replace(
        RECIPES["adamw"], settings=RECIPES["adamw"].settings | {"b2": 0.9999, "weight_decay": 0.0}
    )
    start, gradients = parameters_and_gradients()
    start = {name: np.zeros_like(p) for name, p in start.items()}
    exact = run_numpy(recipe, start, gradients)
    ours = unrolled(run_ours(recipe, start, gradients))
    assert_near(ours, exact, unrolled(start), 1e-6)
    theirs, _ = run(recipe.optax(recipe.settings), start, gradients)
    with pytest.raises(AssertionError):
        assert_near(unrolled(theirs), exact, unrolled(start), 1e-5)


@every_recipe
def test_unrolled_layers_get_the_update_of_scanned_ones(recipe):
    start, gradients = parameters_and_gradients()
    scanned = unrolled(run_ours(recipe, start, gradients))
    apart = [unrolled(gradient) for gradient in gradients]
    layers = run_ours(recipe, unrolled(start), apart, unrolled_layouts())
    assert_near(layers, scanned, unrolled(start), 1e-6)


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name, r in RECIPES.items() for setting in r.sweeps]
)
def test_a_traced_setting_gives_the_bits_of_a_constant(name, setting):
    recipe = RECIPES[name]
    start, (gradient, *_) = parameters_and_gradients()
    few = ("blocks.attention.query.kernel", "blocks.norm.scale")
    start, gradient = ({n: jnp.asarray(x[n]) for n in few} for x in (start, gradient))
    state = recipe.make(**recipe.settings).init(start, LAYOUTS)

    def second_update(settings, parameters, state, gradient):
        optimizer = recipe.make(**settings)
        _, state = optimizer.update(gradient, state, parameters, LAYOUTS)  # SOAP begins with none
        updates, _ = optimizer.update(gradient, state, parameters, LAYOUTS)
        return optax.apply_updates(parameters, updates)

    traced = jax.jit(second_update)
    assert len(set(recipe.sweeps[setting])) >= 3
    for value in recipe.sweeps[setting]:
        settings = recipe.settings | {setting: value}
        constant = jax.jit(functools.partial(second_update, settings))(start, state, gradient)
        scalars = {name: Scalar.of(number) for name, number in settings.items()}
        hoisted = traced(scalars, start, state, gradient)
        for name in start:
            np.testing.assert_array_equal(hoisted[name], constant[name], err_msg=name)
    assert traced._cache_size() == 1


def small_model_step(make):
    rng = np.random.default_rng(1)
    inputs = rng.normal(size=(32, 8)).astype(np.float32)
    targets = np.sin(inputs.sum(-1, keepdims=True))

    def loss(parameters):
        hidden = jnp.tanh(inputs @ parameters["up.kernel"] + parameters["up.bias"])
        return ((hidden @ parameters["down.kernel"] - targets) ** 2).mean()

    def step(settings, parameters, state):
        transformation = make(**settings).transformation
        value, gradient = jax.value_and_grad(loss)(parameters)
        updates, state = transformation.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates), state, value

    parameters = {
        "up.kernel": 0.3 * rng.normal(size=(8, 16)).astype(np.float32),
        "up.bias": np.zeros(16, np.float32),
        "down.kernel": 0.3 * rng.normal(size=(16, 1)).astype(np.float32),
    }
    return step, jax.tree.map(jnp.asarray, parameters)


@pytest.mark.full
def test_eight_trials_share_one_compiled_step_and_train_as_compiled_alone():
    recipe = RECIPES["adamw"]

    def make(learning_rate, **settings):
        return recipe.make(learning_rate=WarmupCosine(learning_rate, 0, 20), **settings)

    step, parameters = small_model_step(make)
    traces = []

    @jax.jit
    def shared(*arguments):
        traces.append(arguments)
        return step(*arguments)

    empty = make(**recipe.settings).transformation.init(parameters)
    for rate, b2 in zip(np.geomspace(1e-4, 3e-2, 8), recipe.sweeps["b2"], strict=True):
        settings = recipe.settings | {"learning_rate": float(rate), "b2": b2}
        alone = jax.jit(functools.partial(step, settings))
        scalars = {name: Scalar.of(number) for name, number in settings.items()}
        a, a_state, b, b_state = parameters, empty, parameters, empty
        losses = []
        for index in range(10):
            a, a_state, a_loss = alone(a, a_state)
            b, b_state, b_loss = shared(scalars, b, b_state)
            losses.append((a_loss, b_loss))
            if index == 0:
                assert all((a[name] == b[name]).all() for name in a)
                assert all((a[name] != parameters[name]).any() for name in a)
        np.testing.assert_allclose(*zip(*losses, strict=True), rtol=1e-6)
    assert len(traces) == 1


@every_recipe
def test_trials_can_be_packed_by_vmap(recipe):
    step, parameters = small_model_step(recipe.make)
    empty = recipe.make(**recipe.settings).transformation.init(parameters)
    values = recipe.sweeps["learning_rate"][2:4]
    trials = [recipe.settings | {"learning_rate": value} for value in values]
    scalars = [{n: Scalar.of(v) for n, v in trial.items()} for trial in trials]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *scalars)
    # As users compile it: how Shampoo's inverse roots round depends on the machine code.
    options = {"xla_backend_optimization_level": 3}
    packed_step = jax.jit(jax.vmap(step, in_axes=(0, None, None)), compiler_options=options)
    packed, _, _ = packed_step(stacked, parameters, empty)
    for lane, trial in enumerate(scalars):
        single, _, _ = jax.jit(step, compiler_options=options)(trial, parameters, empty)
        for name in single:
            error = np.linalg.norm(packed[name][lane] - single[name])
            assert error <= 1e-6 * np.linalg.norm(single[name]), name


@every_recipe
def test_states_are_float32_and_named_after_parameters(recipe):
    parameters = {"a.kernel": jnp.ones((2, 3), jnp.bfloat16), "b.bias": jnp.ones(3)}
    transformation = recipe.make(**recipe.settings).transformation
    gradients = {name: jnp.ones(p.shape) for name, p in parameters.items()}
    after, state = run(transformation, parameters, [gradients])
    assert after["a.kernel"].dtype == jnp.bfloat16
    assert jax.tree.structure(state) == jax.tree.structure(transformation.init(parameters))
    assert state.num_updates == 1
    leaves = jax.tree_util.tree_leaves_with_path(state.stages)
    assert leaves
    for path, leaf in leaves:
        assert leaf.dtype == jnp.float32
        assert path[-1].key in parameters


@every_recipe
def test_clipping_changes_no_name_of_the_state(recipe):
    parameters, _ = parameters_and_gradients()
    with_it = recipe.make(**recipe.settings).transformation.init(parameters)
    without = recipe.make(**recipe.settings | {"clip_norm": None}).transformation.init(parameters)
    paths = [[p for p, _ in jax.tree_util.tree_leaves_with_path(s)] for s in (with_it, without)]
    assert paths[0] == paths[1]


@every_recipe
def test_the_mask_and_the_schedule_are_used(recipe):
    settings = recipe.settings | {"weight_decay": 0.5, "clip_norm": None}
    parameters = {"a.kernel": jnp.ones(3), "b.kernel": jnp.ones(3)}
    zeros = {name: jnp.zeros(3) for name in parameters}
    optimizer = recipe.make(**settings | {"decay_mask": Matching(r"^a\.")})
    after, _ = run(optimizer.transformation, parameters, [zeros])
    assert (after["a.kernel"] < 1).all()
    assert (after["b.kernel"] == 1).all()
    assert optimizer.learning_rate == Constant(settings["learning_rate"])
    rates = {name: WarmupCosine(1.0, 10, 20) for name in settings if name.endswith("learning_rate")}
    after, _ = run(recipe.make(**settings | rates).transformation, parameters, [zeros])
    assert (after["a.kernel"] == 1).all()


@every_recipe
def test_a_mask_without_parameters_is_reported(recipe):
    names = ["blocks.mlp.up.kernel", "norm.scale"]
    assert recipe.make(**recipe.settings).check(names) == []
    (problem,) = recipe.make(**recipe.settings, decay_mask=Matching("kernle")).check(names)
    assert str(problem).startswith("decay_mask: Matching(pattern='kernle') holds no parameter")
    assert "norm.scale" in problem.remedy


@every_recipe
def test_ranges_are_of_arguments(recipe):
    arguments = inspect.signature(recipe.recipe).parameters
    assert set(recipe.recipe.RANGES) < set(arguments)
    floats = {name for name in arguments if isinstance(arguments[name].default, int | float)}
    assert floats <= set(recipe.recipe.RANGES)


def test_an_optimizer_of_optax_needs_no_layouts():
    optimizer = Optimizer(optax.adam(0.1), Constant(0.1))
    parameters = {"a.kernel": jnp.ones((2, 3))}
    state = optimizer.init(parameters, {"a.kernel": Layout((2, 3), None, 1)})
    updates, _ = optimizer.update(parameters, state, parameters, {})
    np.testing.assert_allclose(updates["a.kernel"], -0.1, rtol=1e-5)


def test_an_optimizer_without_a_check_fits_all_parameters():
    assert Optimizer(optax.adam(0.1), Constant(0.1)).check(["a.kernel", "b.scale"]) == []
