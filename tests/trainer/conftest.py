"""A tiny run that several tests look at."""

import pytest

from luthier import graph as graphs
from luthier import trainer

TINY = (
    "model.dim=16",
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=32",
    "data.length=32",
    "training.steps=12",
    "training.global_batch_size=8",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "checkpoints.every.count=5",
    "evaluations.held_out.every.count=4",
    "evaluations.held_out.num_batches=None",
    "evaluations.held_out.global_batch_size=8",
    "records.console=None",
    "records.wandb=None",
)


@pytest.fixture(scope="session")
def corpus(tmp_path_factory):
    """Return the pattern of a small corpus: learnable, and quick to evaluate whole."""
    folder = tmp_path_factory.mktemp("corpus")
    line = "To be, or not to be, that is the question.\n"
    for name in ("a", "b", "c"):
        (folder / f"{name}.txt").write_text(line * 40)
    return str(folder / "*.txt")


@pytest.fixture(scope="session")
def tiny(corpus):
    """Return a function from a directory and overrides to a tiny experiment."""

    def make(directory, *overrides):
        text = f"luthier.data.TextFiles({corpus!r})"
        own = (
            f"data.source:={text}",
            f"evaluations.held_out.data.source:={text}",
            f"records.directory={directory}",
        )

        graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*TINY, *own])
        return graphs.apply(graph, overrides)

    return make


@pytest.fixture(scope="session")
def finished(tiny, tmp_path_factory):
    """Return the result of a tiny run that is over."""
    return trainer.run(tiny(tmp_path_factory.mktemp("finished") / "runs"))
