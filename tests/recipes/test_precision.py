import functools
import sys

import fiddle as fdl
import jax.numpy as jnp
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.contrib import state_space
from luthier.errors import BadInput, OverrideError
from luthier.recipes import (
    bf16,
    bf16_masters,
    compute_in,
    decoders,
    encoders,
    fp8,
    int8,
    int8_weights,
    lora,
    store_optimizer,
    store_parameters,
    sum_gradients,
    without_lora,
    without_quantization,
)
from luthier.recipes.foreign import config_of

IN_BLOCKS = {
    "block.attention.projection",
    "block.attention.output",
    "block.mlp.gate",
    "block.mlp.up",
    "block.mlp.down",
}


@pytest.fixture(scope="module")
def experiment():
    return graphs.resolve("configs.lm.quickstart")


@pytest.fixture(scope="module")
def mixture():
    return decoders.mixtral(dim=8, num_layers=1, num_heads=2, hidden_dim=8, vocab_size=11)


def quantized(model):
    return {
        place.path.removesuffix(".product"): place.value
        for place in graphs.walk(model)
        if getattr(place.value, "__fn_or_cls__", None) is layers.QuantizedProduct
    }


def test_bf16_is_the_type_that_is_computed_in(experiment):
    changed = bf16(experiment)
    assert changed.model.dtype is jnp.bfloat16
    assert graphs.get(changed, "model.param_dtype") is jnp.float32
    assert bf16(experiment.model).dtype is jnp.bfloat16
    assert graphs.get(experiment, "model.dtype") is jnp.float32
    with pytest.raises(BadInput, match=r"^model: the model has no setting dtype$"):
        bf16(fdl.Partial(layers.Scanned))


def test_masters_are_of_what_is_stored_in_bf16(experiment):
    precision = bf16_masters(experiment, "kernel$").precision
    (stored,), (master,) = precision.parameters, precision.masters
    assert (stored.pattern, stored.dtype) == ("kernel$", jnp.bfloat16)
    assert (master.pattern, master.dtype) == ("kernel$", jnp.float32)


@pytest.mark.parametrize(
    ("fiddler", "field"),
    [
        (store_parameters, "parameters"),
        (store_optimizer, "optimizer"),
        (sum_gradients, "accumulation"),
    ],
)
def test_a_later_rule_comes_first(fiddler, field, experiment):
    changed = fiddler(fiddler(experiment, jnp.bfloat16), jnp.float32, "norm")
    rules = graphs.get(changed, f"precision.{field}")
    assert [(rule.pattern, rule.dtype) for rule in rules] == [
        ("norm", jnp.float32),
        ("", jnp.bfloat16),
    ]
    graphs.validate(changed)
    with pytest.raises(BadInput, match="a model alone has no state to store"):
        fiddler(experiment.model, jnp.bfloat16)


def test_the_linear_maps_of_layers_share_one_product(experiment):
    found = quantized(int8(experiment).model)
    assert set(found) == IN_BLOCKS
    assert len({id(product) for product in found.values()}) == 1
    assert not quantized(experiment.model)


def test_every_kind_of_product(experiment):
    kinds = {
        "int8": (int8(experiment), "int8", "int8", None),
        "with gradients": (int8(experiment, gradient=jnp.int8), "int8", "int8", "int8"),
        "weights": (int8_weights(experiment), None, "int8", None),
        "fp8": (fp8(experiment), "float8_e4m3fn", "float8_e4m3fn", "float8_e5m2"),
    }
    for changed, *expected in kinds.values():
        graphs.validate(changed)
        product = fdl.build(next(iter(quantized(changed.model).values())))
        found = (product.inputs, product.kernel, product.gradient)
        assert [None if kind is None else jnp.dtype(kind).name for kind in found] == expected


def test_heads_and_routers_stay_as_they_are(mixture):
    assert {path for path in quantized(int8(mixture)) if "router" in path} == set()
    assert "block.mlp.expert.up" in quantized(int8(mixture))
    assert not {path for path in quantized(int8(encoders.bert_base())) if "head" in path}
    everything = quantized(int8(mixture, target=""))
    assert "block.mlp.router.logits.projection" in everything


def test_a_default_that_is_a_partial_keeps_its_settings():
    kind = fdl.Partial(state_space.S5)
    model = fdl.Partial(layers.PreNormBlock, attention=kind, mlp=kind, norm=layers.RMSNorm)
    gate = graphs.get(int8(model, target=r"attention\.gate$"), "attention.gate")
    default = graphs.get(model, "attention.gate")
    assert isinstance(default, functools.partial)
    assert gate.bias == default.keywords["bias"]
    assert gate.product.__fn_or_cls__ is layers.QuantizedProduct


def test_adapters_and_products_compose_in_any_order(experiment):
    for changed in (lora(int8(experiment)), int8(lora(experiment))):
        kinds = {
            path: graphs.get(changed.model, path).__fn_or_cls__ for path in quantized(changed.model)
        }
        assert set(kinds) == IN_BLOCKS
        assert kinds["block.attention.output"] is layers.LoraLinear
        assert kinds["block.mlp.up"] is layers.Linear
    plain = without_lora(without_quantization(int8(lora(experiment))))
    assert not quantized(plain.model)


def test_what_is_trained_in_int8_is_still_of_its_family():
    model = decoders.llama(
        vocab_size=11, dim=8, num_layers=1, num_heads=2, num_kv_heads=2, hidden_dim=8
    )
    assert config_of(int8(model)) == config_of(model)


def test_some_layers_compute_in_a_type_of_their_own(experiment):
    changed = compute_in(bf16(experiment), jnp.float32, r"norm$")
    found = {
        place.path: place.value.dtype
        for place in graphs.walk(changed.model, defaults=False)
        if getattr(place.value, "__fn_or_cls__", None) is layers.RMSNorm
    }
    assert found == {"norm": jnp.float32, "block.norm": jnp.float32}
    assert changed.model.dtype is jnp.bfloat16


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "fiddler:int8('atention')",
            "'atention' selects no linear map [set by argument 1: fiddler:int8('atention')]; "
            "did you mean attention?",
        ),
        (
            "fiddler:compute_in(float32, 'xyz')",
            "'xyz' selects no layer that sets a dtype [set by argument 1: "
            "fiddler:compute_in(float32, 'xyz')]; the model has block, block.attention, ",
        ),
    ],
)
def test_a_target_of_nothing_is_refused_with_the_nearest(word, message, experiment):
    with pytest.raises(OverrideError) as raised:
        graphs.apply(experiment, [word], shelves=("luthier.recipes",))
    (line,) = str(raised.value).splitlines()
    assert line.startswith(message)


def test_a_missing_library_is_reported_before_anything_is_changed(experiment, monkeypatch):
    monkeypatch.setitem(sys.modules, "qwix", None)
    with pytest.raises(BadInput, match=r"pip install 'luthier\[quantization\]'$"):
        fp8(experiment)
