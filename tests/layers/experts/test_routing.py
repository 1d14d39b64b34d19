import functools

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier.errors import ValidationError
from luthier.layers import DropoutKeys, RouterLogits, TopK, as_scored, renormalized

E, D = 5, 4


def _router(k=2, **settings):
    return TopK(k, **settings, num_experts=E, dim=D, rngs=nnx.Rngs(params=0))


def _scores(router, x_BLD, function):
    return np.asarray(function(x_BLD @ router.logits.projection.kernel[...]), np.float64)


def test_tokens_go_to_the_experts_of_the_highest_probability(draw):
    router, x_BLD = _router(), draw(2, 3, D)
    choice = router(x_BLD)
    scores_BLE = _scores(router, x_BLD, jax.nn.softmax)
    order_BLK = np.argsort(-scores_BLE, -1)[..., :2]
    np.testing.assert_array_equal(choice.experts_BLK, order_BLK)
    best_BLK = np.take_along_axis(scores_BLE, order_BLK, -1)
    expected_BLK = best_BLK / best_BLK.sum(-1, keepdims=True)
    np.testing.assert_allclose(choice.weights_BLK, expected_BLK, rtol=1e-5)
    np.testing.assert_allclose(choice.probabilities_BLE, scores_BLE, rtol=1e-5)


def test_weights_over_their_sum_are_the_softmax_over_the_chosen_logits(draw):
    choice = _router()(draw(2, 3, D))
    chosen_BLK = jnp.take_along_axis(choice.logits_BLE, choice.experts_BLK, -1)
    np.testing.assert_allclose(choice.weights_BLK, jax.nn.softmax(chosen_BLK), rtol=1e-5)


def test_weights_may_be_the_scores_themselves_scaled(draw):
    router, x_BLD = _router(1, weights=as_scored, scale=2.5), draw(2, 3, D)
    best_BL = _scores(router, x_BLD, jax.nn.softmax).max(-1)
    np.testing.assert_allclose(router(x_BLD).weights_BLK[..., 0], 2.5 * best_BL, rtol=1e-5)


def test_sigmoid_scores_count_as_shares_of_their_sum(draw):
    router, x_BLD = _router(scores=jax.nn.sigmoid, weights=renormalized), draw(2, 3, D)
    choice, scores_BLE = router(x_BLD), _scores(router, x_BLD, jax.nn.sigmoid)
    expected_BLE = scores_BLE / scores_BLE.sum(-1, keepdims=True)
    np.testing.assert_allclose(choice.probabilities_BLE, expected_BLE, rtol=1e-5)
    np.testing.assert_allclose(choice.weights_BLK.sum(-1), np.ones((2, 3)), rtol=1e-6)


def test_routing_is_in_float32_whatever_the_model_computes_in(draw):
    narrow = _router(dtype=jnp.bfloat16, param_dtype=jnp.bfloat16)
    x_BLD = draw(2, 3, D).astype(jnp.bfloat16)
    choice = narrow(x_BLD)
    kernel = narrow.logits.projection.kernel[...].astype(jnp.float32)
    assert choice.logits_BLE.dtype == choice.weights_BLK.dtype == jnp.float32
    np.testing.assert_allclose(choice.logits_BLE, x_BLD.astype(jnp.float32) @ kernel, rtol=1e-5)


def test_jitter_multiplies_the_input_and_belongs_to_the_token(draw):
    noisy = functools.partial(RouterLogits, jitter=0.1)
    router, x_BLD = _router(logits=noisy), draw(2, 3, D)
    documents_BL = jnp.array([[1, 1, 1], [2, 2, 2]])
    positions_BL = jnp.array([[0, 1, 2], [0, 1, 2]])
    keys = DropoutKeys.of_tokens(jax.random.key(0), documents_BL, positions_BL)
    quiet, loud = router(x_BLD).logits_BLE, router(x_BLD, keys).logits_BLE
    kernel = router.logits.projection.kernel[...]
    factors = (loud - quiet)[..., :D] @ jnp.linalg.pinv(kernel[:, :D]) / x_BLD
    assert 0.01 < float(jnp.abs(factors).max()) <= 0.1 + 1e-4
    turned = DropoutKeys.of_tokens(jax.random.key(0), documents_BL[::-1], positions_BL)
    np.testing.assert_array_equal(router(x_BLD[::-1], turned).logits_BLE, loud[::-1])


@pytest.mark.parametrize(("setting", "wrong"), [({"k": 0}, "k"), ({"k": 1, "scale": 0.0}, "scale")])
def test_settings_have_ranges(setting, wrong):
    graphs.validate(fdl.Partial(TopK, k=1))
    with pytest.raises(ValidationError) as raised:
        graphs.validate(fdl.Partial(TopK, **setting))
    assert [problem.path for problem in raised.value.problems] == [wrong]
