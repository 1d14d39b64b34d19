import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.contrib.mean_teacher import MeanTeacher
from luthier.metrics import CONSISTENCY, LOSS
from luthier.models import WithCopy
from luthier.tasks import Classification

ROWS, DIM, CLASSES = 6, 4, 3


class Model(nnx.Module):
    INHERITED = ("rngs",)

    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (DIM, CLASSES)))

    def __call__(self, inputs, *, dropout=None):
        if dropout is not None:
            inputs = inputs * (dropout.uniform((DIM,))[:, 0] < 0.5)
        return inputs @ self.kernel[...]


def model():
    found = WithCopy(Model, rngs=nnx.Rngs(0))
    found.copy.kernel.set_value(found.copy.kernel[...] + 0.5 * jnp.eye(DIM, CLASSES))
    return found


def batch():
    generator = np.random.default_rng(0)
    return {
        "inputs": generator.standard_normal((ROWS, DIM)).astype(np.float32),
        "labels": np.array([0, 1, -1, 2, -1, 0], np.int32),
        "weights": np.array([1, 1, 1, 1, 0.5, 0], np.float32),
        "examples": np.arange(1, ROWS + 1, dtype=np.int32),
    }


def _softmax(x):
    return np.exp(x) / np.exp(x).sum(-1, keepdims=True)


@pytest.mark.full
def test_against_numpy_without_dropout():
    values, pair, w = batch(), model(), batch()["weights"]
    own, taught = (
        _softmax(values["inputs"] @ np.asarray(m.kernel[...], np.float64))
        for m in (pair.trained, pair.copy)
    )
    apart = ((own - taught) ** 2).mean(-1)
    labelled = values["labels"] >= 0
    nats = np.where(labelled, -np.log(own[np.arange(ROWS), values["labels"]]), 0)
    sums = MeanTeacher(consistency=2.0).loss(pair, values, None)
    expected = ((nats + 2 * apart) * w).sum() / w.sum()
    assert sums.loss.host().value() == pytest.approx(expected, rel=1e-5)
    found = sums.metrics[CONSISTENCY].host().value()
    assert found == pytest.approx((apart * w).sum() / w.sum(), rel=1e-5)


def test_the_teacher_follows():
    pair = model()
    updates = MeanTeacher(decay=0.75).loss(pair, batch(), None).updates
    expected = 0.75 * pair.copy.kernel[...] + 0.25 * pair.trained.kernel[...]
    assert set(updates) == {"copy.kernel"}
    np.testing.assert_allclose(updates["copy.kernel"], expected, rtol=1e-6)


def test_student_and_teacher_have_masks_of_their_own():
    pair = WithCopy(Model, rngs=nnx.Rngs(0))
    task = MeanTeacher()
    assert task.loss(pair, batch(), None).metrics[CONSISTENCY].host().value() == 0
    assert task.loss(pair, batch(), jax.random.key(0)).metrics[CONSISTENCY].host().value() > 0


def test_evaluation_is_of_the_teacher():
    pair, values = model(), batch()
    values["labels"] = np.abs(values["labels"])
    found = MeanTeacher().evaluate(pair, values)
    assert found[LOSS].host() == Classification().evaluate(pair.copy, values)[LOSS].host()


def test_decay_may_be_a_tracer():
    follow = jax.jit(functools.partial(lambda m, d: m.followed(d), model()))
    assert follow(0.5)["copy.kernel"].shape == (DIM, CLASSES)
