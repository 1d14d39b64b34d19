"""The plan of a model with experts tells what one token meets from what there is."""

import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier import layers, planner, tasks
from luthier.cli.showing import print_parameters

DIM, HIDDEN, LAYERS, EXPERTS, CHOICES = 16, 32, 1, 4, 2
SMALL = (
    f"model.dim={DIM}",
    f"model.num_layers={LAYERS}",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "data.length=16",
    "training.global_batch_size=4",
)


def _graph():
    graph = graphs.resolve("configs.lm.quickstart")
    graph.model.block.mlp = fdl.Partial(
        layers.Experts,
        num_experts=EXPERTS,
        router=fdl.Partial(layers.TopK, k=CHOICES),
        expert=fdl.Partial(layers.GatedMlp, hidden_dim=HIDDEN),
        dispatch=fdl.Config(layers.AllExperts),
    )
    graph.task = fdl.Config(tasks.Routed, task=graph.task)
    return graphs.apply(graph, SMALL)


@pytest.mark.full
def test_active_parameters_and_flops_are_distinguished_from_all(capsys):
    graph = _graph()
    found = planner.make(graph, jax.devices()[:1])
    idle = LAYERS * (EXPERTS - CHOICES) * 3 * DIM * HIDDEN
    assert found.parameters - found.active_parameters == idle
    assert found.to_dict()["active_parameters"] == found.active_parameters
    assert found.model_flops.six_n == 6 * found.active_parameters * found.tokens_per_step
    # Each of three passes computes all experts for every token.
    assert (
        found.hardware_flops - found.model_flops.full >= 3 * 2 * idle * found.tokens_per_step * 0.9
    )
    print_parameters(graph, jax.devices()[:1], as_json=False)
    summary = f"{found.parameters:,} scalars ({found.active_parameters:,} active)"
    assert summary in capsys.readouterr().out.splitlines()[-1]
