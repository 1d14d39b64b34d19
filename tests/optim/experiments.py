"""A small experiment with an optimizer of choice."""

from luthier import graph as graphs


def small_graph(optimizer, *overrides):
    """Return the quickstart, shrunk, with the optimizer that the expression makes."""
    small = (
        "model.dim=16",
        "model.num_layers=2",
        "model.block.attention.num_heads=2",
        "model.block.attention.num_kv_heads=2",
        "model.block.mlp.hidden_dim=32",
        "data.length=16",
        "training.global_batch_size=8",
        "precision.matmul=HIGHEST",
    )
    graph = graphs.resolve("configs.lm.quickstart")
    return graphs.apply(graph, [*small, f"optimizer:={optimizer}", *overrides])
