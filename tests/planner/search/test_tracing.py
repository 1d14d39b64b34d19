import jax
import pytest

from luthier import graph as graphs
from luthier.planner import checked_program
from luthier.planner.search import trace

REMAT = "model.stack=luthier.layers.Scanned(remat=luthier.layers.FullRemat())"


def traced(*overrides, platform="cpu"):
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), list(overrides))
    return trace(checked_program(graph, jax.devices()[:8]), platform)


def test_recomputation_is_counted():
    once, again = (sum(traced(*words).flops.values()) for words in ([], [REMAT]))
    assert again == pytest.approx(4 / 3 * once, rel=0.1)


def test_a_policy_saves_nothing_on_gpus_where_no_loop_is():
    plain = traced(platform="gpu")
    unrolled = "model.stack=luthier.layers.Scanned(unroll=4, remat=luthier.layers.FullRemat())"
    assert traced(unrolled, platform="gpu") == plain
    assert traced(REMAT, platform="gpu") != plain
    # Elsewhere it is as it says.
    assert traced(unrolled) == traced(REMAT)


@pytest.mark.full
def test_accumulation_and_the_mesh_are_left_to_the_layout():
    own = traced(REMAT)
    for words in (
        ["training.accumulation=2", "training.global_batch_size=16"],
        [
            "parallelism.mesh.data=1",
            "parallelism.mesh.tensor=8",
            "model.block.attention.num_heads=8",
            "model.block.attention.num_kv_heads=8",
        ],
    ):
        assert len(traced(REMAT, *words).activity.residuals) == len(own.activity.residuals)


def test_what_layers_keep_grows_with_the_batch():
    sizes = [
        sum(b.size for b in traced(REMAT, f"training.global_batch_size={n}").activity.residuals)
        for n in (8, 16)
    ]
    assert sizes[1] == 2 * sizes[0] > 0
