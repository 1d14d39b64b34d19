"""The decoders of Pax against Pax itself: logits, and twenty steps of training.

tools/goldens/make_pax.py made the files, with Paxml 1.4.0.
"""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import tasks
from luthier.program import split
from luthier.recipes import published
from luthier.recipes.decoders import pax, pax_gpt3

GOLDENS = Path(__file__).parents[1] / "goldens"
SIZES = {"vocab_size": 256, "dim": 64, "num_layers": 2, "num_heads": 4, "head_dim": 16}
WARMUP, END = 4, 16


def base_a():
    optimizer = published.pax_c4_adam()
    rate = published.rampup_exponential(1e-3, WARMUP, WARMUP + 1, END)
    optimizer.learning_rate = rate
    return pax(**SIZES), optimizer


def gpt3():
    optimizer = published.pax_gpt3_adam(peak=6e-4, warmup_steps=WARMUP, decay_end=END)
    return pax_gpt3(**SIZES, max_length=48), optimizer


CASES = {"pax_base_a": base_a, "pax_gpt3": gpt3}


@functools.cache
def golden(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        return dict(file)


def part(name, prefix):
    found = golden(name)
    return {k.removeprefix(prefix): found[k] for k in found if k.startswith(prefix)}


def batch_of(name, step):
    entries = {key: entry[step].astype(np.int32) for key, entry in part(name, "batch/").items()}
    names = {"inputs": "ids", "targets": "labels"}
    names |= {"segments": "segment_ids", "positions": "segment_pos"}
    batch = {ours: jnp.asarray(entries[theirs]) for ours, theirs in names.items()}
    zeros = jnp.zeros_like(batch["inputs"])
    weights = (batch["segments"] > 0).astype(jnp.float32)
    return batch | {"documents": zeros, "target_bytes": zeros, "weights": weights}


@pytest.fixture(params=CASES, scope="module")
def case(request):
    """The name of a golden, the model's structure, its weights, and the optimizer."""
    graph, optimizer = CASES[request.param]()
    structure, drawn, _ = split(graphs.build(graph)(rngs=nnx.Rngs(0)))
    weights = part(request.param, "parameter/")
    assert {n: v.shape for n, v in drawn.items()} == {n: w.shape for n, w in weights.items()}
    parameters = {name: jnp.asarray(weights[name], jnp.float32) for name in drawn}
    return request.param, structure, parameters, graphs.build(optimizer)


@pytest.mark.full
def test_logits_are_those_of_pax(case):
    name, structure, parameters, _ = case
    batch = batch_of(name, 0)
    places = {"positions_BL": batch["positions"], "segments_BL": batch["segments"]}
    with jax.default_matmul_precision("highest"):
        logits = jax.jit(lambda p: structure.merge(p)(batch["inputs"], **places))(parameters)
    logits, real = logits[::3], np.asarray(batch["weights"])[::3] > 0
    expected = golden(name)["logits"]
    assert np.abs(expected[real]).max() > 3
    np.testing.assert_allclose(logits[real], expected[real], rtol=1e-4, atol=1e-4)


@pytest.mark.full
def test_twenty_steps_are_those_of_pax(case):
    name, structure, parameters, optimizer = case
    start, layouts, task = parameters, structure.layouts(), tasks.LanguageModelling()

    def loss(parameters, batch):
        ratio = task.loss(structure.merge(parameters), batch, None).loss
        return ratio.numerator / ratio.denominator

    @jax.jit
    def step(parameters, state, batch):
        value, gradients = jax.value_and_grad(loss)(parameters, batch)
        update, state = optimizer.update(gradients, state, parameters, layouts)
        return {n: p + update[n] for n, p in parameters.items()}, state, value

    state, losses = optimizer.init(parameters, layouts), []
    with jax.default_matmul_precision("highest"):
        for number in range(20):
            parameters, state, value = step(parameters, state, batch_of(name, number))
            losses.append(float(value))
    np.testing.assert_allclose(losses, golden(name)["losses"], rtol=1e-6)
    changes = part(name, "change/")
    # Its gradient is zero but for rounding, which Adam makes as large as any other.
    changes.pop("blocks.attention.key.bias", None)
    for key, change in changes.items():
        moved = np.linalg.norm(np.asarray(parameters[key] - start[key], np.float64))
        assert moved == pytest.approx(change, rel=1e-5), key
