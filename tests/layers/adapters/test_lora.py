import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import layers
from luthier.layers import LoraLinear, merge_adapters

MAPS = {
    "D -> HK": ((6,), (2, 3)),
    "HK -> D": ((2, 3), (6,)),
    "D -> F": ((6,), (5,)),
}


def _make(inputs, outputs, key=0, **settings):
    return LoraLinear(
        inputs=inputs,
        outputs=outputs,
        input_axes=("embed",) * len(inputs),
        output_axes=("mlp",) * len(outputs),
        rngs=nnx.Rngs(key),
        **settings,
    )


def _fill(module, key=1):
    """Give the second factors values, as training does."""
    keys = iter(jax.random.split(jax.random.key(key), 100))
    for path, variable in nnx.to_flat_state(nnx.state(module)):
        if path[-1] == "lora_b":
            variable.set_value(jax.random.normal(next(keys), variable.shape))
    return module


@pytest.mark.parametrize("name", MAPS)
def test_it_is_the_formula_of_the_paper(name):
    inputs, outputs = MAPS[name]
    module = _fill(_make(inputs, outputs, rank=4, alpha=8.0, bias=layers.Ones()))
    x = np.random.default_rng(0).normal(size=(3, 4, *inputs))
    w, a, b = (
        np.asarray(p[...], np.float64) for p in (module.kernel, module.lora_a, module.lora_b)
    )
    flat = x.reshape(12, -1)
    change = flat @ a.reshape(-1, 4) @ b.reshape(4, -1)
    expected = flat @ w.reshape(6, -1) + 1.0 + 8.0 / 4 * change
    with jax.default_matmul_precision("highest"):
        found = module(jnp.asarray(x, jnp.float32))
    np.testing.assert_allclose(found, expected.reshape(3, 4, *outputs), rtol=1e-5, atol=1e-5)


def test_at_first_it_is_the_plain_map():
    module = _make((6,), (5,))
    plain = layers.Linear(
        inputs=(6,), outputs=(5,), input_axes=("embed",), output_axes=("mlp",), rngs=nnx.Rngs(0)
    )
    x = jnp.ones((2, 6))
    np.testing.assert_array_equal(module(x), plain(x))
    assert not module.lora_b[...].any()
    assert module.lora_a[...].any()


@pytest.mark.parametrize("inputs", [(48,), (6, 8)])
def test_the_first_factor_starts_as_that_of_peft(inputs):
    """`kaiming_uniform_(a=sqrt(5))`: bound sqrt(6 / (1 + 5) / fan_in), std a third root of it."""
    found = np.asarray(_make(inputs, (5,), rank=1024).lora_a[...], np.float64)
    bound = 48**-0.5
    assert np.abs(found).max() <= bound
    assert np.abs(found).max() > 0.999 * bound
    # 49,152 draws: the standard deviation is known to 0.2 %, the mean to 0.0004.
    np.testing.assert_allclose(found.std(), (3 * 48) ** -0.5, rtol=0.01)
    assert abs(found.mean()) < 5 * found.std() / found.size**0.5


@pytest.mark.full
@pytest.mark.parametrize("stack", [layers.Scanned(), layers.Unrolled()])
def test_merged_stacks_equal_those_with_adapters(stack):
    def block(linear):
        return functools.partial(
            layers.PreNormBlock,
            attention=functools.partial(
                layers.Attention, num_heads=2, num_kv_heads=1, projection=linear, output=linear
            ),
            mlp=functools.partial(layers.Mlp, hidden_dim=12, up=linear, down=linear),
            norm=layers.RMSNorm,
        )

    def make(linear):
        return stack.create(lambda rngs: block(linear)(dim=8, rngs=rngs), 3, nnx.Rngs(0))

    adapted = _fill(make(functools.partial(LoraLinear, rank=3, alpha=5.0)))
    plain = make(layers.Linear)
    arrays = merge_adapters(adapted)
    state = nnx.to_flat_state(nnx.state(plain))
    assert {".".join(map(str, path)) for path, _ in state} == set(arrays)
    for path, variable in state:
        variable.set_value(arrays[".".join(map(str, path))])
    nnx.update(plain, nnx.from_flat_state(state))
    x, tokens = jax.random.normal(jax.random.key(3), (2, 5, 8)), layers.Tokens.single(2, 5)

    def run(blocks):
        return stack.apply(blocks, lambda layer, i, x, _: (layer(x, tokens), None), x)[0]

    with jax.default_matmul_precision("highest"):
        merged, expected = np.asarray(run(plain)), np.asarray(run(adapted))
    assert np.linalg.norm(merged - expected) <= 1e-6 * np.linalg.norm(expected)


def test_parameters_are_named_and_carry_axes():
    state = dict(nnx.to_flat_state(nnx.state(_make((6,), (2, 3), rank=4))))
    assert {path[0] for path in state} == {"kernel", "lora_a", "lora_b"}
    assert state[("lora_a",)].get_metadata()["logical_axes"] == ("embed", None)
    assert state[("lora_b",)].get_metadata()["logical_axes"] == (None, "mlp", "mlp")
