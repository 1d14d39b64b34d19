import functools

import fiddle as fdl
import jax
import jax.numpy as jnp
from flax import nnx

from luthier.layers import (
    FanIn,
    LayerNorm,
    Linear,
    RMSNorm,
    Zeros,
    create,
    outlined,
    parameter,
    vector,
    wide,
)


def test_create_offers_what_is_inherited():
    norm = create(RMSNorm, dim=3, dtype=jnp.bfloat16, param_dtype=jnp.float32, rngs=nnx.Rngs(0))
    assert norm.scale.shape == (3,)
    assert norm.dtype == jnp.bfloat16


def test_create_leaves_out_what_the_child_does_not_take():
    norm = create(RMSNorm, dim=3, vocab_size=7, rngs=nnx.Rngs(0))
    assert norm.scale.shape == (3,)


def test_what_the_template_binds_wins():
    template = functools.partial(functools.partial(RMSNorm, dtype=jnp.float32), epsilon=1e-3)
    norm = create(template, dim=3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert (norm.dtype, norm.epsilon) == (jnp.float32, 1e-3)


def test_a_callable_without_inherited_gets_what_its_signature_names():
    def template(dim, *, rngs):
        return dim, rngs

    assert create(template, dim=3, dtype=jnp.float32, rngs="rngs") == (3, "rngs")


def test_built_partials_of_fiddle_are_templates():
    node = fdl.Partial(LayerNorm, epsilon=1e-3, bias=fdl.ArgFactory(Zeros))
    node.scale = fdl.Config(Zeros)
    norm = create(fdl.build(node), dim=3, dtype=jnp.bfloat16, rngs=nnx.Rngs(0))
    assert norm.epsilon == 1e-3
    assert norm.dtype == jnp.bfloat16
    assert not norm.scale[...].any()


def test_kernels_of_any_rank_are_initialized_as_matrices():
    shapes = []

    def initializer(key, shape, dtype):
        shapes.append(shape)
        return jnp.zeros(shape, dtype)

    axes = ("embed", "heads", "head_dim")
    kernel = parameter(initializer, (6,), (2, 4), axes, jnp.float32, nnx.Rngs(0))
    assert shapes == [(6, 8)]
    assert kernel.shape == (6, 2, 4)
    assert kernel.get_metadata()["logical_axes"] == axes


def test_vectors_carry_their_axes():
    bias = vector(FanIn(), (2, 4), ("heads", "head_dim"), jnp.bfloat16, nnx.Rngs(0))
    assert bias.dtype == jnp.bfloat16
    assert bias.get_metadata()["logical_axes"] == ("heads", "head_dim")
    assert bias.get_metadata()["initializer"] == "FanIn(scale=1.0)"


def test_sums_are_at_least_float32():
    assert wide(jnp.bfloat16) == jnp.float32
    assert wide(jnp.float64) == jnp.float64


def test_templates_make_abstract_modules():
    make = functools.partial(
        Linear, inputs=(3,), outputs=(5,), input_axes=("embed",), output_axes=("mlp",)
    )
    module = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
    assert isinstance(module.kernel.get_raw_value(), jax.ShapeDtypeStruct)


def test_an_outline_has_shapes_and_names_but_no_initial_values():
    def kernel():
        sizes = {"inputs": (3,), "outputs": (2, 5), "rngs": nnx.Rngs(0)}
        return parameter(FanIn(), axes=("embed", "heads", "head_dim"), dtype=jnp.float32, **sizes)

    whole = kernel()
    with outlined():
        outline = kernel()
    assert outline.shape == whole.shape
    assert outline.get_metadata() == whole.get_metadata()
    assert not outline[...].any()
    assert kernel()[...].any()
