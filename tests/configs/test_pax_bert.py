"""Pax's BERTs and decoders of optimal scaling: sizes, meshes, and small twins."""

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import layers, optim
from luthier.recipes import tiny
from tests.configs.pax_twins import (
    assert_takes_two_steps,
    mesh_sizes,
    num_devices,
    num_parameters,
    pax_names,
    twin,
)

BERT, SCALING = "configs.pax.bert", "configs.pax.scaling"


def decoder(num_layers, dim, hidden, head_dim, vocab=32_000):
    """Parameters of base A: kernels, biases of the MLP, scale of the query, norms, logits' bias."""
    layer = 4 * dim**2 + 2 * dim * hidden + hidden + dim + head_dim + 4 * dim
    return num_layers * layer + vocab * dim + vocab + 2 * dim


# Layers, width, rows and mesh; rows of Pax are per device.
BERTS = {
    BERT: ("BertAdamL4H128", 4, 128, 8, {"data": 8}),
    f"{BERT}:bert_5m_adafactor": ("BertSpmdL4H128", 4, 128, 4, {"fsdp": 4, "tensor": 2}),
    f"{BERT}:bert_100b": (
        "BertSpmdL33H12kBiggerBatch", 33, 12_288, 4, {"fsdp": 64, "tensor": 8},
    ),
    f"{BERT}:bert_100b(rows=4096,tensor=16)": (
        "BertSpmdL33H12kBiggerBatch8x8x16", 33, 12_288, 4, {"fsdp": 64, "tensor": 16},
    ),
    f"{BERT}:bert_200b": (
        "BertSpmdL66H12kBiggerBatch8x8x16", 66, 12_288, 4, {"fsdp": 64, "tensor": 16},
    ),
    f"{BERT}:bert_200b(rows=512,tensor=8)": (
        "BertSpmdL66H12kBiggerBatch8x8x8", 66, 12_288, 1, {"fsdp": 64, "tensor": 8},
    ),
}  # fmt: skip

SCALINGS = {
    SCALING: ("2x2x1", 28, 16, {"fsdp": 4}),
    f"{SCALING}:layers_32": ("2x2x2", 32, 8, {"fsdp": 8}),
    f"{SCALING}:layers_36": ("2x2x4", 36, 8, {"fsdp": 16}),
    f"{SCALING}:layers_40": ("2x4x4", 40, 8, {"fsdp": 32}),
    f"{SCALING}:layers_45": ("4x4x4", 45, 8, {"fsdp": 64}),
    f"{SCALING}:layers_50": ("4x4x8", 50, 4, {"fsdp": 128}),
    f"{SCALING}:layers_56": ("4x8x8", 56, 2, {"fsdp": 64, "tensor": 4}),
    f"{SCALING}:layers_64": ("4x8x16", 64, 2, {"fsdp": 128, "tensor": 4}),
    f"{SCALING}:layers_64(fsdp=256)": ("4x16x16", 64, 1, {"fsdp": 256, "tensor": 4}),
    f"{SCALING}:layers_64(rows=2048,fsdp=512)": (
        "4x16x32", 64, 1, {"fsdp": 512, "tensor": 4},
    ),
    f"{SCALING}:layers_64(rows=3072,fsdp=256,replica=3)": (
        "4x24x32", 64, 1, {"replica": 3, "fsdp": 256, "tensor": 4},
    ),
}  # fmt: skip


@pytest.mark.parametrize("reference", BERTS)
def test_berts_are_those_of_pax(reference):
    name, num_layers, dim, per_device, mesh = BERTS[reference]
    graph = graphs.resolve(reference)
    graphs.validate(graph)
    hidden, head_dim = (4 * dim, 16) if dim == 128 else (8 * dim, 96)
    assert num_parameters(graph.model) == decoder(num_layers, dim, hidden, head_dim)
    experiment = graphs.build(graph)
    assert mesh_sizes(experiment) == (mesh, {})
    assert experiment.training.global_batch_size == per_device * num_devices(experiment)
    named = [pax.partition("(")[0] for pax in pax_names(reference.partition("(")[0])]
    assert name in named
    block = graph.model.block
    assert graphs.build(block.attention.core) == layers.AutoAttention(
        mask=layers.SameDocument(), cap=50.0
    )
    assert block.mlp.activation.__name__ == "relu"
    assert (experiment.task.mask_token, experiment.task.vocab_size) == (103, 30_522)
    assert experiment.task.label_smoothing == (None if dim == 128 else 0.1)


def test_the_smallest_has_the_parameters_that_pax_published():
    assert num_parameters(graphs.resolve(BERT).model) == 4_919_360


def test_the_smallest_has_three_kernels_and_the_others_one():
    """Pax reads the one kernel of queries, keys and values as three times as large."""
    limits = {
        reference: graphs.build(
            graphs.resolve(reference).model.block.attention.projection
        ).keywords["kernel"].limit
        for reference in (BERT, f"{BERT}:bert_5m_adafactor")
    }  # fmt: skip
    assert limits[BERT] == pytest.approx((6 / (128 * (8 + 16))) ** 0.5, rel=1e-5)
    assert limits[f"{BERT}:bert_5m_adafactor"] == pytest.approx(limits[BERT] / 3**0.5, rel=1e-6)


def test_their_optimizers_are_those_of_pax():
    adam = graphs.resolve(BERT).optimizer
    assert adam.__fn_or_cls__ is optim.capped_adamw
    assert (adam.b2, adam.clip_norm, adam.weight_decay) == (0.99, 5.0, 1e-3)
    assert float(graphs.build(adam.learning_rate)(4000)) == pytest.approx(1e-3)
    for reference, decay in ((f"{BERT}:bert_5m_adafactor", 1e-3), (f"{BERT}:bert_100b", 1e-2)):
        adafactor = graphs.resolve(reference).optimizer
        assert adafactor.__fn_or_cls__ is optim.adafactor
        assert (adafactor.clip_norm, adafactor.weight_decay) == (5.0, decay)
        schedule = graphs.build(adafactor.learning_rate)
        found = [schedule(step) for step in (0, 4000, 4001, 100_000, 200_000)]
        np.testing.assert_allclose(found, [0, 2.5e-4, 2.5e-4, 2.5e-5, 2.5e-5], rtol=1e-5)


@pytest.mark.parametrize("reference", SCALINGS)
def test_decoders_of_optimal_scaling_are_those_of_pax(reference):
    name, num_layers, per_device, mesh = SCALINGS[reference]
    graph = graphs.resolve(reference)
    graphs.validate(graph)
    dim = 128 * num_layers
    assert num_parameters(graph.model) == decoder(num_layers, dim, 4 * dim, 128)
    experiment = graphs.build(graph)
    assert mesh_sizes(experiment) == (mesh, {})
    assert dim % mesh["fsdp"] == 0
    assert experiment.training.global_batch_size == per_device * num_devices(experiment)
    arguments = reference.partition("(")[2].rstrip(")").replace(",", ", ")
    expected = f"OptimalScaling{name}" + (f"({arguments})" if arguments else "")
    assert expected in pax_names(reference.partition("(")[0])
    assert graphs.build(graph.model.stack).remat == layers.SaveProjections()
    assert float(graphs.build(graph.optimizer.learning_rate)(4000)) == pytest.approx(2.5e-4)


@pytest.mark.slow
@pytest.mark.parametrize("reference", [name for name in BERTS if "(" not in name])
def test_every_twin_takes_two_steps_on_its_axes(reference):
    within, across = mesh_sizes(assert_takes_two_steps(twin(reference)))
    assert (within.keys(), across) == (BERTS[reference][-1].keys(), {})


@pytest.mark.slow
@pytest.mark.parametrize(
    "reference", [name for name in SCALINGS if "(" not in name or "replica" in name]
)
def test_every_twin_of_optimal_scaling_takes_two_steps_on_its_axes(reference):
    graph = tiny(graphs.resolve(reference))
    graphs.set_value(graph, "parallelism.mesh.data", 1)  # no copies that fill the machine
    graphs.validate(graph)
    within, across = mesh_sizes(assert_takes_two_steps(graph))
    assert (within.keys(), across) == (SCALINGS[reference][-1].keys(), {})
