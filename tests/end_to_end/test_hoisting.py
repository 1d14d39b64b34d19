"""Trials that differ in scalars share one program, and none of them can tell."""

import jax
import numpy as np
import pytest

from luthier import graph as graphs

HOIST = ("optimizer.learning_rate.peak", "optimizer.b2")
B2 = (0.9, 0.95, 0.98, 0.99, 0.995, 0.999, 0.9995, 0.9999)
PEAKS = np.geomspace(1e-4, 1e-2, 8).tolist()
SETTINGS = [
    {"optimizer.learning_rate.peak": peak, "optimizer.b2": b2}
    for peak, b2 in zip(PEAKS, B2, strict=True)
]


def _set(graph, setting):
    return graphs.apply(graph, [f"{path}={value!r}" for path, value in setting.items()])


@pytest.fixture(scope="module")
def base(shrunk):
    return shrunk("optimizer.learning_rate.warmup_steps=0")


@pytest.fixture(scope="module")
def hoisted(base, case):
    return case(base, hoist=HOIST)


@pytest.fixture(scope="module")
def batches(hoisted):
    return hoisted.batches(10)


def _train(one, step, values, batches):
    """Return the first state and the losses of a training."""
    index = one.program.scalar_names.index("loss")
    leaves, losses, first = one.init(), [], None
    for batch in batches:
        leaves, vector = step(values, leaves, one.put(batch))
        losses.append(float(vector[index]))
        first = first or {n: np.asarray(x) for n, x in one.program.named(leaves).items()}
    return first, losses


@pytest.mark.full
def test_eight_settings_compile_once(base, hoisted, batches):
    step = hoisted.program.compile_step()
    _train(hoisted, step, hoisted.values, batches[:1])
    leaves, compiled = hoisted.init(), []

    def listen(event, duration, **_):
        if event == "/jax/core/compile/backend_compile_duration":
            compiled.append(event)

    jax.monitoring.register_event_duration_secs_listener(listen)
    jax.jit(lambda x: 3 * x - 1)(np.float32(2))
    assert compiled, "the counter counts"
    compiled.clear()
    for setting in SETTINGS:
        values = hoisted.program.values(_set(base, setting))
        leaves, _ = step(values, leaves, hoisted.put(batches[0]))
    jax.monitoring.unregister_event_duration_listener(listen)
    assert not compiled


@pytest.mark.full
@pytest.mark.parametrize("setting", SETTINGS, ids=lambda s: "{:.0e} {}".format(*s.values()))
def test_a_hoisted_setting_trains_as_a_constant_one(base, hoisted, batches, case, setting):
    graph = _set(base, setting)
    step = hoisted.program.compile_step()
    found, losses = _train(hoisted, step, hoisted.program.values(graph), batches)
    constant = case(graph)
    expected, constant_losses = _train(
        constant, constant.program.compile_step(), constant.values, batches
    )
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array, err_msg=name)
    np.testing.assert_allclose(losses, constant_losses, rtol=1e-6)


@pytest.mark.full
def test_the_settings_do_differ(base, hoisted, batches):
    finals = set()
    for setting in SETTINGS:
        values = hoisted.program.values(_set(base, setting))
        finals.add(hoisted.steps(batches[:3], values)[1][-1])
    assert len(finals) == len(SETTINGS)


@pytest.mark.parametrize(
    "path",
    [
        "optimizer.b1",
        pytest.param("optimizer.weight_decay", marks=pytest.mark.slow),
        pytest.param("optimizer.clip_norm", marks=pytest.mark.slow),
        pytest.param("task.z_loss", marks=pytest.mark.slow),
        "model.block.dropout.rate",
        pytest.param("optimizer.learning_rate.warmup_steps", marks=pytest.mark.slow),
        "seed",
    ],
)
def test_other_leaves_hoist_too(shrunk, case, path):
    base = shrunk("model.block.dropout=partial:luthier.layers.Dropout(rate=0.1)")
    hoisted, constant = case(base, hoist=(path,)), case(base)
    batches = constant.batches(5)
    np.testing.assert_allclose(
        hoisted.steps(batches)[1], constant.steps(batches)[1], rtol=1e-6, err_msg=path
    )


def test_a_leaf_outside_the_traced_fields_is_refused(shrunk, case):
    with pytest.raises(Exception, match=r"data\.length: cannot be hoisted"):
        case(shrunk(), hoist=("data.length",))
    with pytest.raises(Exception, match="is not a number"):
        case(shrunk(), hoist=("model.block.mlp.activation",))
