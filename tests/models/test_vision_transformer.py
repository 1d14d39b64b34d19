import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph
from luthier.layers import DropoutKeys, Scanned, Unrolled
from luthier.recipes import encoders

SIZES = {
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 24,
    "image_size": (4, 8),
    "patch_size": (2, 2),
    "num_classes": 5,
}


@functools.cache
def make(kind="vit", stack=Scanned(), dtype=jnp.float32):
    recipe = getattr(encoders, kind)(**SIZES, dropout=0.5)
    recipe.stack = stack
    recipe.head.kernel = jax.nn.initializers.normal(1.0)
    template = functools.partial(graph.build(recipe), dtype=dtype)
    init = lambda: template(rngs=nnx.Rngs(0))
    graphdef, _ = nnx.split(nnx.eval_shape(init))
    return nnx.merge(graphdef, jax.jit(lambda: nnx.state(init()))())


@pytest.fixture
def images():
    return jnp.asarray(np.random.default_rng(0).standard_normal((3, 4, 8, 3)), jnp.float32)


@jax.jit
def logits(model, images, examples=None):
    keys = None
    if examples is not None:
        rows = jnp.asarray(examples)[:, None]
        keys = DropoutKeys.of_tokens(jax.random.key(0), rows, jnp.zeros_like(rows))
    return model(images, dropout=keys)


@pytest.mark.full
@pytest.mark.parametrize("kind", ["vit", "vit_mean"])
def test_logits_and_number_of_tokens(kind, images):
    model = make(kind)
    assert logits(model, images).shape == (3, 5)
    num_tokens = 9 if kind == "vit" else 8
    states = jax.eval_shape(lambda x: model.hidden(x), images)
    assert states.shape == (3, num_tokens, 16)
    assert model.embedding.positions.shape == (num_tokens, 16)


@pytest.mark.parametrize("kind", ["vit", "vit_mean"])
def test_every_pixel_counts_for_its_image_only(kind, images):
    model = make(kind)
    gradient = jax.jit(jax.grad(lambda x: jnp.square(logits(model, x)[1]).sum()))(images)
    np.testing.assert_array_equal(gradient[jnp.array([0, 2])], 0)
    assert (gradient[1] != 0).all()


def test_without_positions_patches_may_change_places(images):
    """Attention is not causal: the mean over patches does not know their order."""
    model = make("vit_mean")
    graphdef, state = nnx.split(model)
    state = nnx.from_flat_state(
        (p, v.replace(jnp.zeros(v.shape)) if p[-1] == "positions" else v)
        for p, v in nnx.to_flat_state(state)
    )
    model = nnx.merge(graphdef, state)
    swapped = jnp.concatenate([images[:, 2:], images[:, :2]], axis=1)
    np.testing.assert_allclose(logits(model, images), logits(model, swapped), rtol=1e-4, atol=1e-5)


def test_dropout_belongs_to_the_example(images):
    model = make()
    alike = jnp.concatenate([images[:1]] * 3)
    found = logits(model, alike, jnp.asarray([7, 8, 7]))
    np.testing.assert_array_equal(found[0], found[2])
    assert (found[0] != found[1]).any()


@pytest.mark.full
def test_stacks_agree(images, distance):
    examples = jnp.asarray([1, 2, 3])
    found = [logits(make(stack=s), images, examples) for s in (Scanned(), Unrolled())]
    assert distance(*found) < 1e-6


def test_bfloat16_gives_logits_in_float32(images):
    found = logits(make(dtype=jnp.bfloat16), images)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, logits(make(), images), atol=0.2, rtol=0.2)


def test_logical_axes():
    axes = {
        ".".join(path): p.get_metadata()["logical_axes"]
        for path, p in nnx.to_flat_state(nnx.state(make()))
    }
    assert axes["head.kernel"] == ("embed", None)
    assert axes["head.bias"] == (None,)
    assert axes["pooling.token"] == ("embed",)
    assert axes["blocks.mlp.up.kernel"] == ("layers", "embed", "mlp")
