"""Every recipe against Optax, NumPy in float64, unrolled layers, and itself with traced settings.

To add an optimizer, add a row to RECIPES.
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from luthier.optim import DECAYED, Constant, Matching, WarmupCosine, recipes

NUM_STEPS = 5
LEARNING_RATES = tuple(np.geomspace(1e-5, 1e-1, 8).tolist())
SHARES = (0.0, 0.01, 0.05, 0.1, 0.3, 0.5, 1 / 3, 1.0)
DECAYS = (0.0, 0.5, 0.8, 0.85, 0.9, 0.95, 0.99, 0.999)
NORMS = (0.01, 0.1, 0.3, 0.5, 0.7, 1.0, 1.3, 100.0)


@dataclasses.dataclass(frozen=True)
class Recipe:
    """A row: ours, its settings, Optax's, NumPy's, and what to sweep."""

    make: Callable[..., Any]
    settings: dict[str, float]
    optax: Callable[[dict[str, float]], optax.GradientTransformation]
    numpy: Callable[[dict[str, float], Any, Any, int], Any]
    sweeps: dict[str, tuple[float, ...]]


def decays(names):
    return {name: DECAYED(name) for name in names}


def adamw_of_optax(s):
    adamw = optax.adamw(
        s["learning_rate"],
        b1=s["b1"],
        b2=s["b2"],
        eps=s["eps"],
        weight_decay=s["weight_decay"],
        mask=decays,
    )
    return optax.chain(optax.clip_by_global_norm(s["clip_norm"]), adamw)


def sgd_of_optax(s, nesterov):
    return optax.chain(
        optax.clip_by_global_norm(s["clip_norm"]),
        optax.add_decayed_weights(s["weight_decay"], decays),
        optax.trace(s["momentum"], nesterov),
        optax.scale(-s["learning_rate"]),
    )


def clipped(gradients, limit):
    norm = np.sqrt(sum(np.sum(g * g) for g in gradients.values()))
    return {name: g * min(1.0, limit / norm) for name, g in gradients.items()}


def adamw_of_numpy(s, parameters, gradients, t, memory):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        m, v = memory.get(name, (0.0, 0.0))
        m, v = s["b1"] * m + (1 - s["b1"]) * g, s["b2"] * v + (1 - s["b2"]) * g * g
        memory[name] = m, v
        unit = (m / (1 - s["b1"] ** t)) / (np.sqrt(v / (1 - s["b2"] ** t)) + s["eps"])
        decay = s["weight_decay"] * DECAYED(name)
        parameters[name] = parameters[name] - s["learning_rate"] * (unit + decay * parameters[name])


def sgd_of_numpy(s, parameters, gradients, t, memory, nesterov):
    for name, g in clipped(gradients, s["clip_norm"]).items():
        g = g + s["weight_decay"] * DECAYED(name) * parameters[name]
        trace = memory[name] = g + s["momentum"] * memory.get(name, 0.0)
        step = g + s["momentum"] * trace if nesterov else trace
        parameters[name] = parameters[name] - s["learning_rate"] * step


CLIPPED_AND_DECAYED = {
    "learning_rate": LEARNING_RATES,
    "weight_decay": SHARES,
    "clip_norm": NORMS,
}
SGD = {"learning_rate": 0.1, "momentum": 0.9, "weight_decay": 0.01, "clip_norm": 1.0}
RECIPES = {
    "adamw": Recipe(
        make=recipes.adamw,
        settings={
            "learning_rate": 1e-2,
            "b1": 0.9,
            "b2": 0.95,
            "eps": 1e-8,
            "weight_decay": 0.1,
            "clip_norm": 1.0,
        },
        optax=adamw_of_optax,
        numpy=adamw_of_numpy,
        sweeps={
            **CLIPPED_AND_DECAYED,
            "b1": DECAYS,
            "b2": (0.9, 0.95, 0.97, 0.98, 0.99, 0.995, 0.999, 0.9999),
            "eps": tuple(np.geomspace(1e-16, 1e-2, 8).tolist()),
        },
    ),
    "sgd": Recipe(
        make=recipes.sgd,
        settings=SGD,
        optax=functools.partial(sgd_of_optax, nesterov=False),
        numpy=functools.partial(sgd_of_numpy, nesterov=False),
        sweeps={**CLIPPED_AND_DECAYED, "momentum": DECAYS},
    ),
    "nesterov": Recipe(
        make=recipes.nesterov,
        settings=SGD,
        optax=functools.partial(sgd_of_optax, nesterov=True),
        numpy=functools.partial(sgd_of_numpy, nesterov=True),
        sweeps={**CLIPPED_AND_DECAYED, "momentum": DECAYS},
    ),
}
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


def parameters_and_gradients(dtype=np.float32):
    rng = np.random.default_rng(0)
    shapes = {
        "embedding.table": (11, 6),
        "blocks.attention.query.kernel": (3, 6, 6),
        "blocks.norm.scale": (3, 6),
        "blocks.mlp.up.bias": (3, 6),
        "unembedding.kernel": (6, 11),
    }
    parameters = {n: rng.normal(size=s).astype(dtype) for n, s in shapes.items()}
    gradients = [
        {n: (0.2 * rng.normal(size=s)).astype(dtype) for n, s in shapes.items()}
        for _ in range(NUM_STEPS)
    ]
    # The first step is clipped and the second is not, at a limit of 1.
    gradients[1] = {n: 0.1 * g for n, g in gradients[1].items()}
    return parameters, gradients


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
    parameters = {name: p.astype(np.float64) for name, p in parameters.items()}
    memory = {}
    for t, gradient in enumerate(gradients, 1):
        wide = {name: g.astype(np.float64) for name, g in gradient.items()}
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
        name
        for name, value in vars(recipes).items()
        if inspect.isfunction(value)
        and value.__module__ == recipes.__name__
        and not name.startswith("_")
    }
    assert public == set(RECIPES)


@every_recipe
def test_five_steps_are_those_of_optax(recipe):
    start, gradients = parameters_and_gradients()
    ours, _ = run(recipe.make(**recipe.settings).transformation, start, gradients)
    theirs, _ = run(recipe.optax(recipe.settings), start, gradients)
    assert_near(ours, theirs, start, 5e-6)


@every_recipe
def test_five_steps_are_those_of_numpy_in_float64(recipe):
    start, gradients = parameters_and_gradients()
    ours, _ = run(recipe.make(**recipe.settings).transformation, start, gradients)
    assert_near(ours, run_numpy(recipe, start, gradients), start, 3e-6)


@every_recipe
def test_in_float64_all_digits_agree(recipe):
    with jax.enable_x64(True):
        start, gradients = parameters_and_gradients(np.float64)
        ours, _ = run(recipe.make(**recipe.settings).transformation, start, gradients)
        assert_near(ours, run_numpy(recipe, start, gradients), start, 1e-13)


def test_adam_near_one_is_right_to_float32_where_optax_is_not():
    recipe = dataclasses.replace(
        RECIPES["adamw"], settings=RECIPES["adamw"].settings | {"b2": 0.9999, "weight_decay": 0.0}
    )
    start, gradients = parameters_and_gradients()
    start = {name: np.zeros_like(p) for name, p in start.items()}
    exact = run_numpy(recipe, start, gradients)
    ours, _ = run(recipe.make(**recipe.settings).transformation, start, gradients)
    assert_near(ours, exact, start, 1e-6)
    theirs, _ = run(recipe.optax(recipe.settings), start, gradients)
    with pytest.raises(AssertionError):
        assert_near(theirs, exact, start, 1e-5)


@every_recipe
def test_unrolled_layers_get_the_update_of_scanned_ones(recipe):
    start, gradients = parameters_and_gradients()

    def unrolled(arrays):
        found = {}
        for name, array in arrays.items():
            if name.startswith("blocks."):
                rest = name.removeprefix("blocks.")
                found |= {f"blocks.{i}.{rest}": layer for i, layer in enumerate(array)}
            else:
                found[name] = array
        return found

    transformation = recipe.make(**recipe.settings).transformation
    scanned, _ = run(transformation, start, gradients)
    layers, _ = run(transformation, unrolled(start), [unrolled(g) for g in gradients])
    assert_near(layers, unrolled(scanned), unrolled(start), 1e-6)


@pytest.mark.parametrize(
    ("name", "setting"), [(name, setting) for name, r in RECIPES.items() for setting in r.sweeps]
)
def test_a_traced_setting_gives_the_bits_of_a_constant(name, setting):
    recipe = RECIPES[name]
    start, (gradient, *_) = parameters_and_gradients()
    few = ("blocks.attention.query.kernel", "blocks.norm.scale")
    start, gradient = ({n: jnp.asarray(x[n]) for n in few} for x in (start, gradient))
    state = recipe.make(**recipe.settings).transformation.init(start)

    def first_update(settings, parameters, state, gradient):
        transformation = recipe.make(**settings).transformation
        updates, _ = transformation.update(gradient, state, parameters)
        return optax.apply_updates(parameters, updates)

    traced = jax.jit(first_update)
    assert len(set(recipe.sweeps[setting])) >= 8
    for value in recipe.sweeps[setting]:
        settings = recipe.settings | {setting: value}
        constant = jax.jit(functools.partial(first_update, settings))(start, state, gradient)
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


def test_eight_trials_share_one_compiled_step_and_train_as_compiled_alone():
    recipe = RECIPES["adamw"]

    def make(learning_rate, **settings):
        return recipe.make(WarmupCosine(learning_rate, 0, 20), **settings)

    step, parameters = small_model_step(make)
    shared = jax.jit(step)
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
    assert shared._cache_size() == 1


@every_recipe
def test_trials_can_be_packed_by_vmap(recipe):
    step, parameters = small_model_step(recipe.make)
    empty = recipe.make(**recipe.settings).transformation.init(parameters)
    values = recipe.sweeps["learning_rate"][2:4]
    trials = [recipe.settings | {"learning_rate": value} for value in values]
    scalars = [{n: Scalar.of(v) for n, v in trial.items()} for trial in trials]
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *scalars)
    packed, _, _ = jax.jit(jax.vmap(step, in_axes=(0, None, None)))(stacked, parameters, empty)
    for lane, trial in enumerate(scalars):
        single, _, _ = jax.jit(step)(trial, parameters, empty)
        for name in single:
            np.testing.assert_allclose(packed[name][lane], single[name], rtol=1e-5, atol=1e-7)


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
        assert leaf.shape == parameters[path[-1].key].shape


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
    still = recipe.make(**settings | {"learning_rate": WarmupCosine(1.0, 10, 20)})
    after, _ = run(still.transformation, parameters, [zeros])
    assert (after["a.kernel"] == 1).all()


@every_recipe
def test_ranges_are_of_arguments(recipe):
    assert set(recipe.make.RANGES) < set(inspect.signature(recipe.make).parameters)
    assert set(recipe.settings) - {"learning_rate"} == set(recipe.make.RANGES)
