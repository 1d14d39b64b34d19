"""Pax's numbers, against a float64 NumPy reference that is written from its formulas alone.

Gradients of the reference are those of complex steps, Im f(x + ih) / h, exact to float64.

Shapes: L length, D width, H heads, K elements of a head, V vocabulary.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import program as programs
from luthier.cli import find_experiment
from luthier.recipes import tiny
from tests.compiling import quick_step

A, GPT = "C4Spmd1BAdam4Replicas", "C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas"
D, H, K, V, L = 4, 2, 2, 7, 5


def resolve(name):
    return graphs.resolve(find_experiment(name))


# Schedules


def rampup(step, peak, warmup, start, fall):
    if step < warmup:
        return peak * step / warmup
    return peak if step < start else peak * fall(step)


def exponential(step, peak=1e-3, warmup=4000, start=4001, end=300_000):
    def fall(step):
        return np.exp(np.log(0.1) * min(1, (step - start) / (end - start)))

    return rampup(step, peak, warmup, start, fall)


def cosine(step, peak, warmup, end):
    start = warmup + 1

    def fall(step):
        return 0.1 + 0.45 * (1 + np.cos(np.pi * min(1, (step - start) / (end - start))))

    return rampup(step, peak, warmup, start, fall)


def assert_schedule(name, expected, steps):
    rate = graphs.build(resolve(name).optimizer.learning_rate)
    found = [float(rate(jnp.asarray(step))) for step in steps]
    np.testing.assert_allclose(found, [expected(step) for step in steps], rtol=3e-6, atol=0)


@pytest.mark.parametrize(("name", "peak"), [(A, 1e-3), ("LmCloudSpmd2B", 2.5e-4)])
def test_the_exponential_schedule_at_ten_steps(name, peak):
    steps = (0, 1, 2000, 3999, 4000, 4001, 4002, 150_000, 300_000, 1_000_000)
    assert_schedule(name, lambda step: exponential(step, peak), steps)


MLPERF = "C4SpmdPipelineGpt3AdamMLPerfHP"


@pytest.mark.parametrize(
    ("name", "peak", "warmup", "end"),
    [
        (GPT, 6e-5, 265, 108_600),
        ("C4SpmdPipelineGpt3SmallAdam8Replicas", 2e-4, 265, 108_600),
        (f"{MLPERF}BS1p5k768Replicas", 2e-5, 265, 108_600),
        (f"{MLPERF}BS2k512Replicas", 2e-5, 199, 81_450),
        (f"{MLPERF}BS3k768Replicas", 2e-5, 133, 54_300),
        (f"{MLPERF}BS4k1024Replicas", 3e-5, 100, 40_725),
        (f"{MLPERF}BS8k1024Replicas", 3e-5, 50, 20_363),
        ("GPT126M", 6e-4, 636, 500_000),
        ("GPT5B", 1.6e-4, 115, 62_500),
        ("GPT175B", 2e-5, 265, 108_600),
    ],
)
def test_the_cosine_schedule_at_ten_steps(name, peak, warmup, end):
    near = (warmup - 1, warmup, warmup + 1, warmup + 2)
    steps = (0, 1, warmup // 2, *near, end // 2, end, 2 * end)
    assert_schedule(name, lambda step: cosine(step, peak, warmup, end), steps)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (A, (0.9, 0.99, 1e-6, 0.0, 1.0, 1e-3, 5.0)),
        ("LmCloudSpmd2B", (0.9, 0.99, 1e-6, 0.0, 1.0, 1e-3, 5.0)),
        (GPT, (0.9, 0.95, 1e-8, 0.0, None, 0.1, 1.0)),
        ("GPT126M", (0.9, 0.95, 1e-8, 0.0, None, 0.1, 1.0)),
    ],
)
def test_the_settings_of_adam(name, expected):
    given = resolve(name).optimizer.__arguments__
    names = ("b1", "b2", "eps", "eps_root", "max_update_rms", "weight_decay", "clip_norm")
    assert tuple(given[name] for name in names) == expected
    assert "decay_mask" not in given, "everything decays"


# Initializers


def test_the_limit_of_attention_kernels_at_full_size():
    """Queries, keys and values of one kernel [3, D, N, H]: about 0.0023, and not 0.034."""
    attention = resolve(A).model.block.attention
    expected = np.sqrt(6 / (3 * 2560 * (20 + 128))) * 1.000001
    limit = graphs.build(attention.projection.kernel).limit
    assert limit == pytest.approx(expected, rel=1e-12)
    assert limit == pytest.approx(0.0023, rel=0.01)
    out = np.sqrt(6 / (2560 * (20 + 128))) * 1.000001
    assert graphs.build(attention.output.kernel).limit == pytest.approx(out, rel=1e-12)


def assert_uniform(x, limit):
    x = np.asarray(x, np.float64)
    assert 0.98 * limit < np.abs(x).max() <= limit * (1 + 1e-6)
    assert x.std() == pytest.approx(limit / np.sqrt(3), rel=0.05)
    assert x.mean() == pytest.approx(0, abs=0.1 * limit)


def assert_normal(x, stddev):
    x = np.asarray(x, np.float64)
    assert x.std() == pytest.approx(stddev, rel=0.05)
    assert x.mean() == pytest.approx(0, abs=0.1 * stddev)


def model_of(name):
    return graphs.build(tiny(resolve(name)).model)(rngs=nnx.Rngs(0))


def test_initial_values_of_base_model_a():
    model, dim, heads, size, hidden = model_of(A), 32, 2, 16, 128
    attention, mlp = model.blocks.attention, model.blocks.mlp
    qkv = np.sqrt(6 / (3 * dim * (heads + size)))
    for kernel in (attention.query.kernel, attention.key.kernel, attention.value.kernel):
        assert_uniform(kernel[...], qkv * 1.000001)
    assert_uniform(attention.output.kernel[...], np.sqrt(6 / (dim * (heads + size))) * 1.000001)
    for kernel in (mlp.up.kernel, mlp.down.kernel):
        assert_uniform(kernel[...], np.sqrt(6 / (dim + hidden)) * 1.000001)
    assert_normal(model.embedding.table[...], dim**-0.5)
    norms = (model.norm, model.blocks.attention_norm, model.blocks.mlp_norm)
    zeros = [x for norm in norms for x in (norm.scale, norm.bias)]
    zeros += [mlp.up.bias, mlp.down.bias, attention.query_key.theta, model.unembedding.bias]
    assert all((np.asarray(x[...]) == 0).all() for x in zeros)


@pytest.mark.parametrize(("name", "stddev"), [(GPT, 0.006), ("GPT126M", 0.023), ("GPT5B", 0.01)])
def test_initial_values_of_gpts(name, stddev):
    model = model_of(name)
    attention, mlp = model.blocks.attention, model.blocks.mlp
    linears = (attention.query, attention.key, attention.value, attention.output, mlp.up, mlp.down)
    for linear in linears:
        assert_normal(linear.kernel[...], stddev)
        assert (np.asarray(linear.bias[...]) == 0).all()
    assert_normal(model.embedding.table[...][:1000], stddev)
    assert_normal(model.embedding.position.table[...], stddev)


# Three steps: the loss, its gradient, and the optimizer


def norm(x, p, name, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    x = centred / np.sqrt((centred * centred).mean(-1, keepdims=True) + epsilon)
    return x * (1 + p[f"{name}.scale"]) + p[f"{name}.bias"]


def gelu(x):
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def attend(q, k, v, batch, cap):
    scores = np.einsum("BLHK,BSHK->BHLS", q, k)
    scores = scores if cap is None else cap * np.tanh(scores / cap)
    same = batch["segments"][:, :, None] == batch["segments"][:, None, :]
    seen = (np.tril(np.ones((L, L))) * same)[:, None]
    weights = np.exp(scores) * seen
    return np.einsum("BHLS,BSHK->BLHK", weights / weights.sum(-1, keepdims=True), v)


def cross_entropy(logits, batch):
    logits = logits - logits.real.max(-1, keepdims=True)
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    nll = -np.take_along_axis(log_p, batch["targets"][..., None], -1)[..., 0]
    return (nll * batch["weights"]).sum() / batch["weights"].sum()


def layer(p, i):
    return {n.removeprefix("blocks."): x[i] for n, x in p.items() if n.startswith("blocks.")}


def loss_of_a(p, batch):
    """Base model A: caps, a scale of each dimension of the queries, sinusoids, sqrt(D)."""
    scales = np.exp(-np.log(1e4) / (D // 2 - 1) * np.arange(D // 2))
    angles = batch["positions"][..., None] * scales
    x = p["embedding.table"][batch["inputs"]] * np.sqrt(D)
    x = x + np.concatenate([np.sin(angles), np.cos(angles)], -1)
    for i in range(2):
        w = layer(p, i)
        y = norm(x, w, "attention_norm", 1e-6)
        kernels = (w[f"attention.{n}.kernel"] for n in ("query", "key", "value"))
        q, k, v = (np.einsum("BLD,DHK->BLHK", y, kernel) for kernel in kernels)
        softplus = np.log(1 + np.exp(w["attention.query_key.theta"]))
        q = q * (1.442695040888963 / np.sqrt(K)) * softplus
        out = np.einsum("BLHK,HKD->BLD", attend(q, k, v, batch, 50.0), w["attention.output.kernel"])
        x = x + out
        y = norm(x, w, "mlp_norm", 1e-6)
        y = gelu(y @ w["mlp.up.kernel"] + w["mlp.up.bias"])
        x = x + y @ w["mlp.down.kernel"] + w["mlp.down.bias"]
    logits = norm(x, p, "norm", 1e-6) @ p["embedding.table"].T + p["unembedding.bias"]
    return cross_entropy(30.0 * np.tanh(logits / 30.0), batch)


def loss_of_gpt3(p, batch):
    """GPT-3: learned positions, biases in attention, no caps and no scales."""
    x = p["embedding.table"][batch["inputs"]] + p["embedding.position.table"][batch["positions"]]
    for i in range(2):
        w = layer(p, i)
        y = norm(x, w, "attention_norm", 1e-5)
        parts = [f"attention.{n}" for n in ("query", "key", "value")]
        q, k, v = (np.einsum("BLD,DHK->BLHK", y, w[f"{n}.kernel"]) + w[f"{n}.bias"] for n in parts)
        seen = attend(q / np.sqrt(K), k, v, batch, None)
        x = x + np.einsum("BLHK,HKD->BLD", seen, w["attention.output.kernel"])
        x = x + w["attention.output.bias"]
        y = norm(x, w, "mlp_norm", 1e-5)
        y = gelu(y @ w["mlp.up.kernel"] + w["mlp.up.bias"])
        x = x + y @ w["mlp.down.kernel"] + w["mlp.down.bias"]
    return cross_entropy(norm(x, p, "norm", 1e-5) @ p["embedding.table"].T, batch)


def gradients(loss, p, batch):
    """Return the loss and its derivative by every parameter, one complex step each."""
    p = {name: x.astype(np.complex128) for name, x in p.items()}
    found = {}
    for name, x in p.items():
        found[name] = np.zeros(x.shape)
        for place in np.ndindex(*x.shape):
            x[place] += 1e-30j
            found[name][place] = loss(p, batch).imag / 1e-30
            x[place] = x[place].real
    return loss(p, batch).real, found


def adam(p, gradient, moments, t, rate, *, b1, b2, eps, cap, decay, clip):
    """Change parameters and moments as the t-th step does, from 1."""
    size = np.sqrt(sum((g * g).sum() for g in gradient.values()))
    for name, g in gradient.items():
        g = g * min(1, clip / size)
        m, v = moments.setdefault(name, (np.zeros_like(g), np.zeros_like(g)))
        d1 = b1 * (1 - b1 ** (t - 1)) / (1 - b1**t)
        d2 = b2 * (1 - b2 ** (t - 1)) / (1 - b2**t)
        m, v = d1 * m + (1 - d1) * g, d2 * v + (1 - d2) * g * g
        moments[name] = (m, v)
        u = m / (np.sqrt(v) + eps)
        if cap is not None:  # of a variable, and each layer has its own
            axes = tuple(range(int(name.startswith("blocks.")), u.ndim))
            u = u / np.maximum(1, np.sqrt((u * u).mean(axes, keepdims=True)) / cap)
        p[name] = p[name] - rate * (u + decay * p[name])


def small(name, **changes):
    """Return the twin of an experiment in float64, of sizes that complex steps can do."""
    graph = tiny(resolve(name))
    sizes = {"vocab_size": V, "dim": D, "block.attention.num_heads": H}
    sizes |= {"block.attention.head_dim": K, "dtype": jnp.float64, "param_dtype": jnp.float64}
    for path, value in sizes.items():
        graphs.set_value(graph, f"model.{path}", value)
    for path, value in {"optimizer." + n: x for n, x in changes.items()}.items():
        graphs.set_value(graph, path, value)
    for axis in ("data", "fsdp", "tensor"):
        graphs.set_value(graph, f"parallelism.mesh.{axis}", 1)
    graphs.set_value(graph, "data.length", L)
    graphs.set_value(graph, "training.global_batch_size", 2)
    return graph


def batches(generator):
    """Rows of two documents, of which some targets do not count."""
    segments = np.array([[1, 1, 1, 2, 2], [1, 1, 2, 2, 2]])
    positions = np.array([[0, 1, 2, 0, 1], [0, 1, 0, 1, 2]])
    for _ in range(3):
        draw = generator.integers(0, V, (2, 2, L))
        weights = (generator.random((2, L)) < 0.8).astype(np.float64)
        weights[0, 0] = 1
        batch = {"inputs": draw[0], "targets": draw[1], "weights": weights, "segments": segments}
        yield batch | {"positions": positions, "documents": segments, "target_bytes": segments}


def three_steps(graph, loss, settings):
    """Train the program and the reference; yield the loss and the parameters of both."""
    program = programs.make(graph, jax.devices()[:1])
    values, step = program.values(), quick_step(program)
    generator, leaves = np.random.default_rng(0), list(program.init(values))
    p, moments = {}, {}
    for i, name in enumerate(program.names):
        if name.startswith("parameters/"):
            x = 0.3 * generator.standard_normal(leaves[i].shape)
            leaves[i] = jax.device_put(x, leaves[i].sharding)
            p[name.removeprefix("parameters/")] = x
    index = program.scalar_names.index("loss")
    rates = (0.0, settings.pop("peak"), None)
    for t, batch in enumerate(batches(generator), 1):
        placed = {
            n: jax.device_put(batch[n].astype(s.dtype), s.sharding)
            for n, s in program.batch.items()
        }
        leaves, scalars = step(values, tuple(leaves), placed)
        expected, gradient = gradients(loss, p, batch)
        rate = rates[1] if rates[t - 1] is None else rates[t - 1]
        adam(p, gradient, moments, t, rate, **settings)
        named = program.named(leaves)
        yield float(scalars[index]), expected, {n: named[f"parameters/{n}"] for n in p}, p


ADAM_A = {"b1": 0.9, "b2": 0.99, "eps": 1e-6, "cap": 1.0, "decay": 1e-3, "clip": 5.0, "peak": 1e-3}
ADAM_GPT = {"b1": 0.9, "b2": 0.95, "eps": 1e-8, "cap": None, "decay": 0.1, "clip": 1.0}


@pytest.mark.parametrize(
    ("name", "loss", "settings", "changes"),
    [
        pytest.param(A, loss_of_a, ADAM_A, {}, marks=pytest.mark.slow),
        (
            A,
            loss_of_a,
            ADAM_A | {"cap": 0.4, "clip": 0.1},
            {"max_update_rms": 0.4, "clip_norm": 0.1},
        ),
        (GPT, loss_of_gpt3, ADAM_GPT | {"peak": 6e-5}, {}),
    ],
    ids=["a", "a where cap and clip act", "gpt3"],
)
def test_three_steps_of_a_twin(name, loss, settings, changes):
    with jax.enable_x64(True):
        steps = three_steps(small(name, **changes), loss, dict(settings))
        for found, expected, ours, p in steps:
            assert found == pytest.approx(expected, rel=1e-6)
            for part, x in ours.items():
                np.testing.assert_allclose(x, p[part], rtol=1e-9, atol=1e-12, err_msg=part)
