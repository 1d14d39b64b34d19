import dataclasses
from typing import ClassVar

import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.errors import BadInput, CheckpointError
from luthier.recipes import lora
from luthier.recipes.foreign import compare, config_of, model_of

SIZES = {"vocab_size": 11, "width": 2, "depth": 3, "tied": False, "pad": 1}
CHANGES = (
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.attention.head_dim=16",
    "class:Rotary.base=500000",
    "model.block.attention.rotary.scaling=luthier.layers.LinearScaling(factor=2.0)",
    "class:RMSNorm.epsilon=1e-3",
    "model.block.mlp.activation=jax.nn.relu",
    "model.unembedding:=luthier.layers.TiedUnembedding()",
    "model.block.attention.core.mask=luthier.layers.Window(size=7)",
)


def _problems(model, config, family="llama", **options):
    with pytest.raises(CheckpointError) as caught:
        compare(model, config, family, "weights", **options)
    return [str(problem) for problem in caught.value.problems]


def _changed(model, *overrides):
    return graphs.apply(fdl.Config(dict, model=model), overrides).model


def test_each_difference_is_one_line_and_its_override_makes_them_agree(families):
    model = families["llama"](**SIZES)
    config = config_of(model)[1]
    assert compare(model, config, "llama", "weights") == {}
    for change in CHANGES:
        changed = _changed(model, change)
        (line,) = _problems(changed, config)
        overrides, _, waived = line.split("; set ")[1].partition(", or restore.differing=")
        repaired = _changed(changed, *overrides.split(" model.")[:1])
        assert compare(repaired, config, "llama", "weights") == {}, line
        key = waived.split('"')[1]
        assert compare(changed, config, "llama", "weights", differing=[key]), line
    lines = _problems(_changed(model, *CHANGES), config)
    assert len(lines) == len(CHANGES)
    assert (
        "model.block.attention.rotary.base: rope_theta is 10000 in config.json of weights, and "
        "500000 here; set class:Rotary.base=10000" in "\n".join(lines)
    )


def test_how_a_model_is_trained_is_no_difference(families):
    graph = families["llama"](**SIZES)
    config = config_of(graph)[1] | {"use_cache": True, "pad_token_id": 3, "made_by": "someone"}
    changed = lora(_changed(graph, "model.block.attention.core.dropout=0.3"))
    changed.block.attention.core = fdl.Config(layers.FusedAttention, mask=fdl.Config(layers.Causal))
    found = compare(changed, config, "llama", "weights")
    assert found == {"config.json, not looked at": "made_by"}
    # A head that the run makes for itself may be of any kind.
    head = _changed(graph, "model.unembedding:=luthier.layers.TiedUnembedding()")
    del config["made_by"]
    own = _changed(head, "model.unembedding:=luthier.layers.Unembedding()")
    tied = config | {"tie_word_embeddings": True}
    assert compare(own, tied, "llama", "weights", taken={"embedding.table"}) == {}
    assert _problems(own, tied, taken={"unembedding.kernel"})


@dataclasses.dataclass(frozen=True)
class _Tiled(layers.EinsumAttention):
    """A user's core with a setting of its own that changes no result."""

    EXECUTION: ClassVar[tuple[str, ...]] = ("tile",)
    tile: int = 64


@pytest.mark.parametrize(
    "core",
    [
        fdl.Config(layers.CudnnAttention, max_documents=1),
        fdl.Config(layers.RingAttention, order=fdl.Config(layers.Contiguous)),
        fdl.Config(
            layers.AllToAllAttention, core=fdl.Config(layers.CudnnAttention, max_documents=1)
        ),
        fdl.Config(_Tiled, tile=128),
    ],
    ids=["cudnn", "ring", "all_to_all", "own"],
)
def test_declared_settings_of_execution_are_no_difference(core, families):
    model = families["llama"](**SIZES)
    config = config_of(model)[1]
    model.block.attention.core = core
    assert compare(model, config, "llama", "weights") == {}
    # Its other settings are compared still, at the paths where the graph has them.
    inside = "core.core" if core.__fn_or_cls__ is layers.AllToAllAttention else "core"
    change = f"model.block.attention.{inside}.mask=luthier.layers.Window(size=7)"
    (line,) = _problems(_changed(model, change), config)
    remedy = line.split("; set ")[1].partition(", or restore.differing=")[0]
    assert remedy.startswith(f"model.block.attention.{inside}.mask:=")
    assert compare(_changed(model, change, remedy), config, "llama", "weights") == {}


@pytest.mark.parametrize(
    ("family", "change", "key"),
    [
        ("llama", {"quantization_config": {"quant_method": "fp8"}}, "quantization_config"),
        ("llama", {"embd_pdrop": 0.1}, "embd_pdrop"),
        ("llama", {"sliding_window": 128}, "sliding_window"),
        ("llama", {"residual_multiplier": 0.2}, "residual_multiplier"),
        ("llama", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}, "factor"),
        ("llama", {"rope_parameters": {"partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        ("gemma", {"hidden_act": "relu"}, "hidden_act"),
        ("gemma", {"hidden_activation": "relu"}, "hidden_activation"),
        ("gemma2", {"attention_bias": True}, "attention_bias"),
    ],
)
def test_keys_that_change_the_forward_pass_are_refused_where_nothing_follows_them(
    family, change, key, families
):
    model = families[family](**SIZES)
    config = config_of(model)[1]
    if "rope_scaling" in change:
        config["rope_parameters"] = {"rope_theta": 10000.0, "rope_type": "linear", "factor": 2.0}
    with pytest.raises(BadInput, match=f"config.json sets {key} to "):
        model_of(config | change)
    assert any(f"config.json sets {key} to " in line for line in _problems(model, config | change))
    waived = compare(model, config | change, family, "weights", differing=[*change, "rope"])
    assert waived["meant to differ from config.json"]


def test_keys_of_other_families_that_change_nothing_are_understood(families):
    config = config_of(families["llama"](**SIZES))[1]
    for harmless in (
        {"sliding_window": None, "layer_types": ["full_attention"] * 3, "pretraining_tp": 1},
        {"attention_dropout": 0.0, "rope_scaling": None, "embedding_multiplier": 1.0},
    ):
        model_of(config | harmless)


def test_rates_of_dropout_are_read_each(families):
    config = config_of(families["gpt2"](**SIZES))[1]
    model = model_of(config | {"attn_pdrop": 0.2, "embd_pdrop": 0.3, "resid_pdrop": 0.4})
    rates = ("block.attention.core.dropout", "embedding.dropout.rate", "block.dropout.rate")
    assert [graphs.evaluate(graphs.get(model, path)) for path in rates] == [0.2, 0.3, 0.4]
    again = config_of(model)[1]
    assert [again[f"{part}_pdrop"] for part in ("attn", "embd", "resid")] == [0.2, 0.3, 0.4]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3", "gemma", "gemma3"])
def test_dropout_of_attention_is_applied(family, families):
    config = config_of(families[family](**SIZES))[1]
    model = model_of(config | {"attention_dropout": 0.25})
    blocks = model.block if isinstance(model.block, list | tuple) else [model.block]
    assert [block.attention.core.dropout for block in blocks] == [0.25] * len(blocks)
    assert config_of(model)[1]["attention_dropout"] == 0.25
    assert graphs.get(model_of(config), "vocab_size") == 11


def test_a_custom_model_is_reported_as_not_compared(families):
    class Wider(layers.GatedMlp):
        pass

    model = families["llama"](**SIZES)
    config = config_of(model)[1]
    model.block.mlp = fdl.Partial(Wider, hidden_dim=8, activation=jax.nn.relu)
    found = compare(model, config, "llama", "weights")
    assert found == {"not compared with config.json": "block.mlp (Wider)"}
    assert "no graph is made" in compare(model, {}, "toy", "weights")["not compared"]
