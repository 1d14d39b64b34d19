import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier.errors import BadInput
from luthier.layers import (
    ClassToken,
    Dropout,
    DropoutKeys,
    MeanPool,
    Normal,
    PatchEmbedding,
)


def make(image_size=(4, 9), patch_size=(2, 3), num_tokens=0, **settings):
    settings = {"bias": Normal(1.0), "positions": Normal(1.0), **settings}
    sizes = {"num_tokens": num_tokens, "dim": 5, "rngs": nnx.Rngs(0)}
    return PatchEmbedding(image_size, patch_size, **settings, **sizes)


def same(x):
    return x


@functools.partial(jax.jit, static_argnums=2)
def embed(model, images, prepend=same, keys=None):
    return model(images, prepend, keys)


@pytest.mark.full
def test_patches_are_a_convolution_and_count_along_rows(draw, distance):
    model, images = make(), draw(2, 4, 9, 3)
    convolved = jax.lax.conv_general_dilated(
        images, model.kernel[...], (2, 3), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    assert convolved.shape == (2, 2, 3, 5)
    expected = convolved.reshape(2, 6, 5) + model.bias[...] + model.positions[...]
    assert distance(embed(model, images), expected) < 1e-6


def test_tokens_in_front_have_positions_too(draw):
    token = ClassToken(Normal(1.0), dim=5, rngs=nnx.Rngs(1))
    model, images = make(num_tokens=token.num_tokens), draw(2, 4, 9, 3)
    found = model(images, token.prepend)
    assert found.shape == (2, 7, 5)
    expected = token.token[...] + model.positions[0]
    np.testing.assert_allclose(found[:, 0], jnp.stack([expected] * 2), rtol=1e-6)
    np.testing.assert_array_equal(token(found), found[:, 0])


def test_the_mean_has_no_token(draw):
    pool, x = MeanPool(), draw(2, 6, 5)
    assert pool.num_tokens == 0
    assert pool.prepend(x) is x
    np.testing.assert_allclose(pool(x), np.asarray(x).mean(1), rtol=1e-5, atol=1e-6)


def test_dropout_is_by_token(draw):
    model, images = make(dropout=functools.partial(Dropout, 0.5)), draw(2, 4, 9, 3)
    places = jnp.broadcast_to(jnp.arange(6), (2, 6))
    keys = lambda *rows: DropoutKeys.of_tokens(
        jax.random.key(0), jnp.asarray(rows)[:, None] + 0 * places, places
    )
    kept = embed(model, images, same, keys(1, 2)) != 0
    assert (kept[0] != kept[1]).any()
    swapped = embed(model, images, same, keys(2, 1)) != 0
    np.testing.assert_array_equal(swapped, kept[::-1])


def test_axes():
    axes = {
        ".".join(path): p.get_metadata()["logical_axes"]
        for path, p in nnx.to_flat_state(nnx.state(make()))
    }
    assert axes == {
        "bias": ("embed",),
        "kernel": (None, None, None, "embed"),
        "positions": (None, "embed"),
    }


@pytest.mark.parametrize(
    ("image_size", "patch_size", "message"),
    [
        ((4, 8), (2, 3), "do not fill images"),
        ((4, 9, 3), (2, 3), "image_size is"),
        ((4, 9), (0, 3), "patch_size is"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(image_size, patch_size, message):
    with pytest.raises(BadInput, match=message):
        make(image_size, patch_size)


def test_images_of_another_size_are_refused(draw):
    with pytest.raises(BadInput, match=r"height, width, channels \[9, 4, 3\]"):
        make()(draw(2, 9, 4, 3), same)
