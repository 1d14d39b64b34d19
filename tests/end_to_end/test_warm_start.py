"""Runs that start from the weights of others, or of another run."""

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import train
from luthier.errors import BadInput

HELD = (
    "optimizer.learning_rate:=luthier.optim.Constant(0.0)",
    "training.steps=1",
    "evaluations={}",
)

TWO = ("training.steps=2", "optimizer.learning_rate.warmup_steps=1", "evaluations={}")


def _parameters(result):
    trained = train.load_run(str(result.directory))
    state = trained.program.named(trained.leaves)
    return {n: np.asarray(a) for n, a in state.items() if n.startswith(("parameters/", "ema/"))}


@pytest.fixture(scope="module")
def base(shrunk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    graph = shrunk(*TWO, directory=folder / "runs")
    result = train.run(graph)
    exported = train.export_run(str(result.directory), folder / "weights")[1]
    return result, exported


@pytest.mark.parametrize("source", ["safetensors", "run"])
def test_parameters_come_back_to_the_last_bit_and_averages_start_from_them(
    source, base, shrunk, tmp_path
):
    result, exported = base
    place = exported.directory if source == "safetensors" else result.directory
    graph = shrunk(
        *HELD,
        f"restore={source}:{place}",
        "training.ema:=luthier.optim.Ema(decay=0.5)",
        "parallelism.mesh.fsdp=2",
        directory=tmp_path / "runs",
    )
    warm = train.run(graph)
    found, expected = _parameters(warm), _parameters(result)
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        np.testing.assert_array_equal(found[name.replace("parameters/", "ema/")], array)
    assert {row.parameter for row in warm.restored} == {
        name.removeprefix("parameters/") for name in expected
    }
    text = (warm.directory / "restored.txt").read_text()
    assert str(place) in text
    assert all(row.parameter in text for row in warm.restored)


def test_a_run_that_goes_on_reads_its_own_checkpoint(base, shrunk, tmp_path):
    result, _ = base
    graph = shrunk(
        *TWO,
        f"restore=run:{result.directory}",
        directory=tmp_path / "runs",
    )
    first = train.run(graphs.apply(graph, ["training.stop:=luthier.durations.Steps(1)"]))
    before = _parameters(first)
    again = train.run(graph, run=str(first.directory), extend=True)
    assert again.directory == first.directory
    assert not again.restored
    changed = graphs.apply(graph, [f"restore=run:{first.directory}"])
    with pytest.raises(BadInput, match="read once, when a run starts"):
        train.run(changed, run=str(first.directory))
    assert any((before[name] != array).any() for name, array in _parameters(again).items())


def test_what_does_not_fit_is_all_told_and_nothing_is_written(base, shrunk, tmp_path):
    _, exported = base
    graph = shrunk(
        *HELD,
        "model.block.mlp.hidden_dim=24",
        "model.num_layers=3",
        f"restore=safetensors:{exported.directory}",
        directory=tmp_path / "runs",
    )
    with pytest.raises(BadInput) as caught:
        train.run(graph)
    lines = [str(problem) for problem in caught.value.problems]
    # Nine tensors of a third layer, and three that have another size in two layers.
    assert len(lines) == 9 + 6
    assert all(line.startswith("restore: ") for line in lines)
    assert not (tmp_path / "runs").exists()
