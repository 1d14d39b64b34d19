"""Residual networks against PyTorch; tools/goldens/make_vision.py made the files."""

import functools
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.layers import BasicBlock, BottleneckBlock, GroupNorm, LargeStem, SmallStem
from luthier.models import ResNet
from luthier.tasks import Observer

FOLDER = Path(__file__).parent / "goldens"


def resnet_bottleneck():
    return ResNet(5, (1, 1), 8, 3, BottleneckBlock, LargeStem, rngs=nnx.Rngs(0))


def resnet_basic():
    return ResNet(5, (1, 1), 8, 1, BasicBlock, SmallStem, rngs=nnx.Rngs(0))


def resnet_group():
    norm = functools.partial(GroupNorm, 4)
    block = functools.partial(BasicBlock, norm, norm)
    stem = functools.partial(LargeStem, norm)
    return ResNet(5, (1, 2), 8, 3, block, stem, rngs=nnx.Rngs(0))


@pytest.fixture(scope="module", params=[resnet_bottleneck, resnet_basic, resnet_group])
def golden(request):
    with np.load(FOLDER / f"{request.param.__name__}.npz") as file:
        arrays = dict(file)
    graphdef, state = nnx.split(nnx.eval_shape(request.param))
    flat = {".".join(map(str, path)): variable for path, variable in nnx.to_flat_state(state)}
    start = "before/"
    given = {n.removeprefix(start): x for n, x in arrays.items() if n.startswith(start)}
    assert flat.keys() == given.keys()
    for name, variable in flat.items():
        assert variable.shape == given[name].shape, name
        variable.set_value(jnp.asarray(given[name]))
    return lambda: nnx.merge(graphdef, state), arrays


def test_logits_by_running_statistics(golden):
    make, arrays = golden
    logits = jax.jit(lambda model, x: model(x))(make(), arrays["inputs"])
    np.testing.assert_allclose(logits, arrays["evaluated"], rtol=1e-5, atol=1e-5)


def test_logits_by_statistics_of_the_batch_and_what_becomes_of_them(golden):
    make, arrays = golden
    observe = jax.jit(lambda model, x, weights: model.observe(x, weights))
    logits, found = observe(make(), arrays["inputs"], jnp.ones(len(arrays["inputs"])))
    np.testing.assert_allclose(logits, arrays["trained"], rtol=1e-5, atol=1e-5)
    expected = {n.partition("/")[2]: x for n, x in arrays.items() if n.startswith("after/")}
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


def test_rows_of_padding_change_nothing(golden):
    make, arrays = golden
    images = arrays["inputs"]
    observe = jax.jit(lambda model, x, weights: model.observe(x, weights))
    expected, statistics = observe(make(), images, jnp.ones(len(images)))
    padded = np.concatenate([images, np.full_like(images[:1], np.nan)])
    weights = jnp.float32([1] * len(images) + [0])
    logits, found = observe(make(), padded, weights)
    np.testing.assert_allclose(logits[:-1], expected, rtol=1e-5, atol=1e-6)
    for name, array in statistics.items():
        np.testing.assert_allclose(found[name], array, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.full
def test_it_observes_as_the_classification_task_asks():
    assert isinstance(resnet_basic(), Observer)
