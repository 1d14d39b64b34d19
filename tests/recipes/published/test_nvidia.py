"""The optimizers of Pax's configurations for GPUs against float64, written from its formulas."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier.optim import Layout
from luthier.recipes import published

SHAPES = {"query": (6, 4, 5), "up": (6, 9), "bias": (9,)}
LAYOUTS = {n: Layout(s, None, 1 if n != "bias" else None) for n, s in SHAPES.items()}
STEPS = [0, 1, 2, 1000, 99_999, 250_000, 400_000, 499_999, 500_000, 600_000]


def rate(step):
    share = np.clip((step - 1) / 499_999, 0, 1)
    return 6e-4 * (0.1 + 0.9 * 0.5 * (1 + np.cos(np.pi * share)))


def rms(x):
    return np.sqrt(np.mean(x * x))


@pytest.mark.parametrize("recipe", [published.nvidia_adam, published.nvidia_adafactor])
def test_the_rate_is_that_of_the_formula_at_ten_steps(recipe):
    schedule = graphs.build(recipe().learning_rate)
    found = [float(schedule(step)) for step in STEPS]
    np.testing.assert_allclose(found, [rate(step) for step in STEPS], rtol=2e-6)


def adam(t, g, w, memory):
    d1, d2 = (b * (1 - b ** (t - 1)) / (1 - b**t) for b in (0.9, 0.95))
    m, v = memory or (0.0, 0.0)
    memory = d1 * m + (1 - d1) * g, d2 * v + (1 - d2) * g * g
    u = memory[0] / (np.sqrt(memory[1]) + 1e-8)
    return u / max(1.0, rms(u)) + 1e-3 * w, memory


def adafactor(t, g, w, memory, weight_decay=1e-3):
    """`ShardedAdafactor`, with the rate taken out of the momentum."""
    decay = 0.99 * (1 - 0.99 ** (t - 1)) / (1 - 0.99**t)
    square = g * g + 1e-30
    new = [square.mean(-1), square.mean(-2)] if g.ndim > 1 else [square]
    old, average = memory or ([0.0] * len(new), 0.0)
    means = [decay * o + (1 - decay) * n for o, n in zip(old, new, strict=True)]
    if g.ndim > 1:
        rows, columns = means
        relative = rows / rows.mean(-1, keepdims=True)
        u = g / np.sqrt(relative)[..., :, None] / np.sqrt(columns)[..., None, :]
    else:
        u = g / np.sqrt(means[0])
    average = 0.9 * average + 0.1 * u / max(1.0, rms(u))
    return average + weight_decay * w, (means, average)


@pytest.mark.full
@pytest.mark.parametrize(
    ("recipe", "step_of"), [(published.nvidia_adam, adam), (published.nvidia_adafactor, adafactor)]
)
def test_three_steps_are_those_of_the_formulas(recipe, step_of):
    generator = np.random.default_rng(0)
    draw = {n: generator.standard_normal((4, *s)) for n, s in SHAPES.items()}
    expected = {n: x[0].copy() for n, x in draw.items()}
    parameters = {n: jnp.asarray(x, jnp.float32) for n, x in expected.items()}
    optimizer, memory = graphs.build(recipe()), {}
    state = optimizer.init(parameters, LAYOUTS)
    for t in (1, 2, 3):
        gradients = {n: x[t] for n, x in draw.items()}
        given = {n: jnp.asarray(g, jnp.float32) for n, g in gradients.items()}
        updates, state = optimizer.update(given, state, parameters, LAYOUTS)
        parameters = jax.tree.map(jnp.add, parameters, updates)
        norm = np.sqrt(sum((g * g).sum() for g in gradients.values()))
        for n, g in gradients.items():
            g = g * min(1.0, 1.0 / norm)
            step, memory[n] = step_of(t, g, expected[n], memory.get(n))
            expected[n] = expected[n] - rate(t - 1) * step
    for n, found in parameters.items():
        moved = np.asarray(found, np.float64) - draw[n][0]
        np.testing.assert_allclose(moved, expected[n] - draw[n][0], rtol=1e-4, atol=3e-7)


def test_berts_adafactor_clips_at_five_and_decays_more():
    node = published.pax_adafactor(2.5e-4, weight_decay=1e-2)
    assert (node.clip_norm, node.weight_decay, node.momentum) == (5.0, 1e-2, 0.9)
    assert graphs.build(node.decay_mask)("blocks.attention_norm.bias"), "everything decays"
