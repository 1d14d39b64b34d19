"""NVIDIA's recipes of Pax against the table that was read from Pax, and their small twins."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import layers, optim
from tests.configs.pax_twins import (
    assert_takes_two_steps,
    mesh_sizes,
    num_devices,
    num_parameters,
    pax_names,
    twin,
)

DENSE, PIPELINES = "configs.pax.nvidia", "configs.pax.nvidia_pipelines"
LLAMA = "configs.pax.llama"


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
      pax: The name in Pax.
      billions: Parameters, as L (4 D N H + 2 D F) + V D.
      rows: The global batch, in rows; Pax has it per device.
      per_device: The same as Pax has it.
      within: Mesh axes within a slice, or a machine.
      across: Mesh axes across them.
      stages: Stages and rows of a microbatch; None where there is no pipeline.
    """

    pax: str
    billions: float
    rows: int
    per_device: float
    within: dict
    across: dict = dataclasses.field(default_factory=dict)
    stages: tuple[int, int] | None = None


TWO_STAGES = {"stage": 2, "replica": 2, "tensor": 4}
FOUR_STAGES = {"stage": 4, "tensor": 4}

TABLE = {
    DENSE: Row("NVIDIA1_3B", 1.32, 64, 4, {"replica": 16}),
    f"{DENSE}:decoder_8b": Row("NVIDIA8_3B", 8.27, 64, 4, {"replica": 4, "tensor": 4}),
    f"{DENSE}:decoder_10b": Row("NVIDIA10B", 10.3, 4, 0.25, {"replica": 2, "tensor": 8}),
    f"{DENSE}:decoder_25b": Row("Llama33BProxy", 25.2, 16, 1, {"fsdp": 16}),
    f"{DENSE}:decoder_175b": Row("NVIDIA175B_FSDP", 174.6, 128, 1, {"fsdp": 16}, {"fsdp": 8}),
    PIPELINES: Row("NVIDIA5B", 5.05, 16, 1, {"stage": 4, "replica": 2, "tensor": 2}, stages=(4, 2)),
    f"{PIPELINES}:decoder_3b": Row("TestSmallConfig", 3.44, 32, 2, TWO_STAGES, stages=(2, 2)),
    f"{PIPELINES}:decoder_10b": Row("NVIDIA40BProxy", 10.1, 256, 16, TWO_STAGES, stages=(2, 4)),
    f"{PIPELINES}:decoder_16b": Row("NVIDIA70BProxy", 16.5, 128, 8, TWO_STAGES, stages=(2, 4)),
    f"{PIPELINES}:decoder_30b": Row("NVIDIA116BProxy", 29.7, 96, 6, FOUR_STAGES, stages=(4, 2)),
    f"{PIPELINES}:decoder_44b": Row("NVIDIA175BProxy", 44.1, 96, 6, FOUR_STAGES, stages=(4, 1)),
    f"{PIPELINES}:decoder_175b": Row(
        "NVIDIA175B", 174.6, 6, 0.0625, {"tensor": 16}, {"stage": 6}, stages=(6, 1)
    ),
    f"{PIPELINES}:circular_7b": Row(
        "NVIDIA_CIRCULAR_REPEAT", 6.57, 8, 1, {"stage": 8}, stages=(8, 1)
    ),
    LLAMA: Row("Llama2_7B", 6.69, 16, 1, {"fsdp": 16}),
    f"{LLAMA}:llama_13b": Row("Llama2_13B", 12.95, 16, 1, {"fsdp": 16}),
    f"{LLAMA}:llama_70b": Row("Llama2_70B", 68.9, 64, 1, {"fsdp": 16}, {"fsdp": 4}),
}

ADAFACTOR = (f"{DENSE}:decoder_25b", f"{DENSE}:decoder_175b", f"{PIPELINES}:decoder_175b")
NOT_AS_OTHERS = (f"{PIPELINES}:circular_7b",)


@pytest.mark.parametrize("reference", TABLE)
def test_sizes_batch_and_mesh_are_those_of_the_table(reference):
    row, graph = TABLE[reference], graphs.resolve(reference)
    graphs.validate(graph)
    assert num_parameters(graph.model) / 1e9 == pytest.approx(row.billions, rel=0.005)
    experiment = graphs.build(graph)
    assert mesh_sizes(experiment) == (row.within, row.across)
    rows = experiment.training.global_batch_size
    assert rows == row.rows == row.per_device * num_devices(experiment)
    stack = graphs.build(graph.model.stack)
    if row.stages is None:
        assert stack == layers.Scanned(remat=layers.FullRemat())
    else:
        stages, part = row.stages
        assert mesh_sizes(experiment)[0].get("stage", 1) * row.across.get("stage", 1) == stages
        assert stack.microbatches == rows // part
        assert not stack.problems(graphs.evaluate(graph.model.num_layers), 1, rows, stages)


@pytest.mark.parametrize("reference", TABLE)
def test_the_name_in_pax_stands_in_the_docstring(reference):
    assert pax_names(reference) == [TABLE[reference].pax]


def test_sizes_of_the_models_of_llama_are_those_of_the_formula_with_biases():
    """Norms, and biases that Llama 2 has not, are what the table leaves out."""
    L, D, F, V, K, G = 80, 8192, 28_672, 51_200, 128, 8
    attention = 2 * D * D + 2 * D * G * K + 2 * D + 2 * G * K
    layer = attention + 3 * D * F + 2 * F + D + 2 * D
    assert num_parameters(graphs.resolve(f"{LLAMA}:llama_70b").model) == L * layer + V * D + V + D


@pytest.mark.parametrize("reference", [name for name in TABLE if name not in NOT_AS_OTHERS])
def test_the_optimizer_and_the_types_are_those_of_nvidia(reference):
    graph = graphs.resolve(reference)
    node = graph.optimizer
    assert (graphs.get(node, "clip_norm"), graphs.get(node, "weight_decay")) == (1.0, 1e-3)
    assert graphs.get(node, "max_update_rms") == 1.0
    if reference in ADAFACTOR:
        assert node.__fn_or_cls__ is optim.adafactor
        assert (node.momentum, graphs.build(node.decay).b2) == (0.9, 0.99)
        assert node.least_parameter_rms is None
    else:
        assert node.__fn_or_cls__ is optim.capped_adamw
        assert (node.b1, node.b2, node.eps, node.eps_root) == (0.9, 0.95, 1e-8, 0.0)
    schedule = graphs.build(node.learning_rate)
    steps = np.array([0, 1, 2, 1000, 99_999, 250_000, 400_000, 499_999, 500_000, 600_000])
    share = np.clip((steps - 1) / 499_999, 0, 1)
    expected = 6e-4 * (0.1 + 0.45 * (1 + np.cos(np.pi * share)))
    np.testing.assert_allclose([schedule(step) for step in steps], expected, rtol=1e-5)
    assert graph.model.dtype == jnp.bfloat16
    assert graph.checkpoints.every.__arguments__ == {"count": 100_000}


def test_the_circular_pipeline_has_what_pax_reads_and_not_what_it_says():
    graph = graphs.resolve(f"{PIPELINES}:circular_7b")
    assert graphs.get(graph, "model.dtype") == jnp.float32
    assert graphs.evaluate(graph.model.vocab_size) == 32_000
    assert graphs.evaluate(graph.data.length) == 1024
    assert graph.model.block.mlp.activation.__name__ == "relu"
    assert graphs.build(graph.model.stack.schedule) == layers.Circular(repeats=4)
    assert graph.model.embedding.position.__fn_or_cls__ is layers.Sinusoids
    assert (graph.optimizer.b2, graph.optimizer.clip_norm) == (0.99, 5.0)
    schedule = graphs.build(graph.optimizer.learning_rate)
    steps = [0, 2000, 4000, 4001, 300_000, 10**6]
    expected = [0, 0.8e-4, 1.6e-4, 1.6e-4, 1.6e-5, 1.6e-5]
    np.testing.assert_allclose([schedule(step) for step in steps], expected, rtol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("reference", TABLE)
def test_every_twin_takes_two_steps_on_its_axes(reference):
    row, graph = TABLE[reference], twin(reference)
    experiment = assert_takes_two_steps(graph)
    within, across = mesh_sizes(experiment)
    assert within.keys() == row.within.keys()
    assert across.keys() == row.across.keys()
    if row.stages is not None:
        kept = graphs.build(graphs.resolve(reference).model.stack)
        assert graphs.build(graph.model.stack).schedule == kept.schedule
