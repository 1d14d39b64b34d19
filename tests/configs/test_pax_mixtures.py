"""Pax's mixtures against the table that was read from Pax, and their small twins."""

import dataclasses

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import layers
from tests.configs.pax_twins import (
    assert_takes_two_steps,
    mesh_sizes,
    num_devices,
    num_parameters,
    pax_names,
    twin,
)

MIXTURES, GROK = "configs.pax.mixtures", "configs.pax.grok"


def moe_large():
    """26.8 billion, as Pax's comment says: attention and two kernels of 16 experts by layer."""
    L, D, F, E, V, P, K = 12, 4096, 16_384, 16, 51_200, 2048, 128
    layer = 4 * D * D + K + E * 2 * D * F + D * E + 4 * D
    return L * layer + V * D + V + P * D + 2 * D


def glam(experts):
    """143 billion of 64 experts, as Pax's docstring says; with 8 it says so, too, and is wrong."""
    pairs, D, F, V, N, buckets = 4, 8192, 32_768, 51_200, 64, 32
    attention = 4 * D * D + buckets * N
    pair = 2 * (attention + 2 * D) + experts * 2 * D * F + D * experts + 3 * D * F
    return pairs * pair + V * D + D


def grok(num_layers):
    """The checkpoint of xAI has 3 kernels [8, 6144, 32768]; Pax adds biases to the attention."""
    D, F, E, V, K, N, G = 6144, 32_768, 8, 131_072, 128, 48, 8
    attention = 2 * D * N * K + 2 * D * G * K + N * K + 2 * G * K + D
    return num_layers * (attention + E * 3 * D * F + D * E + 2 * D) + V * D + D


@dataclasses.dataclass(frozen=True)
class Row:
    """A row of the table.

    Args:
      pax: The name in Pax.
      parameters: By a closed form.
      billions: As Pax, or the table, has it; None where nobody does.
      rows: The global batch.
      per_device: The same as Pax has it.
      within: Mesh axes within a slice, or a machine.
      across: Mesh axes across them.
      balance: Weight of the load balance.
      z_loss: Weight of the logits' z-loss.
    """

    pax: str
    parameters: int
    billions: float | None
    rows: int
    per_device: int
    within: dict
    across: dict
    balance: float = 0.01
    z_loss: float = 1e-4


EXPERT = {"expert": 8}

TABLE = {
    MIXTURES: Row(
        "MoELarge", moe_large(), 26.8, 128, 4, {"fsdp": 16}, {"fsdp": 2}, balance=1.0, z_loss=0.0
    ),
    f"{MIXTURES}:glam_143b": Row("GLaM64B64EProxy", glam(64), 143, 512, 4, {"fsdp": 128}, {}),
    f"{MIXTURES}:glam_23b": Row(
        "GLaM64B64EProxy_EP", glam(8), None, 512, 4, {"fsdp": 16, "expert": 8}, {}
    ),
    GROK: Row("Grok", grok(64), 314, 256, 1, EXPERT, {"fsdp": 32}),
    f"{GROK}:grok_80b": Row("Grok_Proxy", grok(16), None, 64, 1, EXPERT, {"fsdp": 8}),
    f"{GROK}:stages_316b": Row("Grok_PP", grok(64), 314, 512, 1, EXPERT, {"stage": 8, "fsdp": 8}),
    f"{GROK}:stages_80b": Row(
        "Grok_Proxy_PP", grok(16), None, 512, 1, EXPERT, {"stage": 8, "fsdp": 8}
    ),
}


@pytest.mark.parametrize("reference", TABLE)
def test_sizes_batch_and_mesh_are_those_of_the_table(reference):
    row, graph = TABLE[reference], graphs.resolve(reference)
    graphs.validate(graph)
    assert num_parameters(graph.model) == row.parameters
    if row.billions is not None:
        # The 314 of Grok is 316 by the shapes of its checkpoint.
        assert row.parameters / 1e9 == pytest.approx(row.billions, rel=0.006)
    experiment = graphs.build(graph)
    assert mesh_sizes(experiment) == (row.within, row.across)
    rows = experiment.training.global_batch_size
    assert rows == row.rows == row.per_device * num_devices(experiment)
    assert pax_names(reference) == [row.pax]
    task = experiment.task
    assert (task.load_balance, task.router_z, task.task.z_loss) == (row.balance, None, row.z_loss)


@pytest.mark.parametrize("reference", TABLE)
def test_an_expert_has_the_places_that_pax_gives_it(reference):
    """Pax has int(2 S / E) places for S tokens, here C = ceil(factor k L / E) for a row of L."""
    graph = graphs.resolve(reference)
    block = graph.model.block
    mlp = (block[0] if isinstance(block, list) else block).mlp
    experts = graphs.evaluate(mlp.num_experts)
    length = graphs.evaluate(graph.data.length)
    dispatch = graphs.build(mlp.dispatch)
    assert isinstance(dispatch, layers.Capacity)
    assert mlp.router.k == 2
    assert np.ceil(dispatch.factor * 2 * length / experts) == int(2.0 * length / experts)


@pytest.mark.parametrize("reference", [GROK, f"{GROK}:stages_316b"])
def test_grok_keeps_the_output_of_attention_alone(reference):
    graph = graphs.resolve(reference)
    stack = graphs.build(graph.model.stack)
    kept = layers.SaveNamed(names=("attention_output",))
    assert (stack.remat if reference == GROK else stack.stage_remat) == kept
    assert graphs.evaluate(graph.training.steps) == 10
    assert graphs.evaluate(graph.data.length) == 8192
    if reference != GROK:
        assert stack.microbatches == 32
        assert not stack.problems(64, 1, 512, 8)


def test_what_is_of_no_expert_is_shared_out_over_their_devices_too():
    experiment = graphs.build(graphs.resolve(f"{MIXTURES}:glam_23b"))
    assert experiment.parallelism.rules.parameters["embed"] == ("fsdp", "expert")
    assert experiment.parallelism.rules.parameters["experts"] == ("expert",)


@pytest.mark.parametrize("reference", [f"{MIXTURES}:glam_23b"])
def test_its_twin_takes_two_steps(reference):
    assert_takes_two_steps(twin(reference))


@pytest.mark.slow
@pytest.mark.parametrize("reference", [name for name in TABLE if not name.endswith("glam_23b")])
def test_every_twin_takes_two_steps_on_its_axes(reference):
    row = TABLE[reference]
    within, across = mesh_sizes(assert_takes_two_steps(twin(reference)))
    assert (within.keys(), across.keys()) == (row.within.keys(), row.across.keys())
