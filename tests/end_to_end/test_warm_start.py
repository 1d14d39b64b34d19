"""Runs that start from the weights of others, or of another run."""

import json
import shutil

import numpy as np
import pytest

from luthier import graph as graphs
from luthier import trainer
from luthier.cli import main
from luthier.errors import BadInput
from tests.end_to_end.conftest import SHRUNK

HELD = (
    "optimizer.learning_rate:=luthier.optim.Constant(0.0)",
    "training.steps=1",
    "evaluations={}",
)

TWO = ("training.steps=2", "optimizer.learning_rate.warmup_steps=1", "evaluations={}")


def _parameters(result):
    trained = trainer.load_run(str(result.directory))
    state = trained.program.named(trained.leaves)
    return {n: np.asarray(a) for n, a in state.items() if n.startswith(("parameters/", "ema/"))}


@pytest.fixture(scope="module")
def base(shrunk, tmp_path_factory):
    folder = tmp_path_factory.mktemp("base")
    graph = shrunk(*TWO, directory=folder / "runs")
    result = trainer.run(graph)
    exported = trainer.export_run(str(result.directory), folder / "weights")[1]
    return result, exported


@pytest.mark.full
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
    warm = trainer.run(graph)
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


@pytest.mark.full
def test_a_run_that_goes_on_reads_its_own_checkpoint(base, shrunk, tmp_path):
    result, _ = base
    graph = shrunk(
        *TWO,
        f"restore=run:{result.directory}",
        directory=tmp_path / "runs",
    )
    first = trainer.run(graphs.apply(graph, ["training.stop:=luthier.durations.Steps(1)"]))
    before = _parameters(first)
    again = trainer.run(graph, run=str(first.directory), extend=True)
    assert again.directory == first.directory
    assert not again.restored
    changed = graphs.apply(graph, [f"restore=run:{first.directory}"])
    with pytest.raises(BadInput, match="read once, when a run starts"):
        trainer.run(changed, run=str(first.directory))
    assert any((before[name] != array).any() for name, array in _parameters(again).items())


def test_all_mismatches_are_reported_and_nothing_is_written(base, shrunk, tmp_path):
    _, exported = base
    graph = shrunk(
        *HELD,
        "model.block.mlp.hidden_dim=24",
        "model.num_layers=3",
        f"restore=safetensors:{exported.directory}",
        directory=tmp_path / "runs",
    )
    with pytest.raises(BadInput) as caught:
        trainer.run(graph)
    lines = [str(problem) for problem in caught.value.problems]
    # Nine tensors of a third layer, and three that have another size in two layers.
    assert len(lines) == 9 + 6
    assert all(line.startswith("restore: ") for line in lines)
    assert not (tmp_path / "runs").exists()


@pytest.mark.full
def test_a_model_that_its_config_json_contradicts_is_refused_before_anything_is_written(
    base, shrunk, tmp_path, capsys
):
    folder = tmp_path / "weights"
    shutil.copytree(base[1].directory, folder)
    config = json.loads((folder / "config.json").read_text())
    del config["rope_parameters"], config["rope_scaling"]
    config |= {"rope_theta": 77.0, "rms_norm_eps": 0.25, "num_attention_heads": 8, "head_dim": 4}
    (folder / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    restore = f"restore=safetensors:{folder}"
    graph = shrunk(*HELD, restore, directory=tmp_path / "runs")
    with pytest.raises(BadInput) as caught:
        trainer.run(graph)
    keys = [line.split(": ")[1].split(" is ")[0] for line in str(caught.value).splitlines()]
    assert sorted(keys) == [
        *("num_attention_heads", "num_key_value_heads", "rms_norm_eps", "rope_theta")
    ]
    words = ["train", "configs.lm.quickstart", *SHRUNK, *HELD, restore, "--dry-run"]
    words += [f"records.directory={tmp_path / 'runs'}"]
    assert main(words) == 2
    err = capsys.readouterr().err
    assert "rope_theta is 77 in config.json" in err
    assert "set class:Rotary.base=77" in err
    assert not (tmp_path / "runs").exists()
    agreeing = ["class:Rotary.base=77", "class:RMSNorm.epsilon=0.25"]
    agreeing += ["model.block.attention.num_heads=8", "model.block.attention.num_kv_heads=4"]
    assert main([*words, *agreeing]) == 0
    capsys.readouterr()
    waived = 'restore.differing=["rope_theta", "rms_norm_eps", "num_"]'
    assert main([*words, waived]) == 0
    assert "# meant to differ from config.json: rope_theta" in capsys.readouterr().out


@pytest.mark.full
def test_other_fields_of_config_json_leave_with_the_tuned_weights(base, shrunk, tmp_path):
    folder = tmp_path / "weights"
    shutil.copytree(base[1].directory, folder)
    config = json.loads((folder / "config.json").read_text())
    more = {"max_position_embeddings": 4096, "pad_token_id": 7, "initializer_range": 0.01}
    more |= {"eos_token_id": [config["eos_token_id"], 9], "made_by": "someone"}
    (folder / "config.json").write_text(json.dumps(config | more | {"torch_dtype": "bfloat16"}))
    (folder / "generation_config.json").write_text('{"temperature": 0.6}')
    directory = tmp_path / "runs"
    tuned = trainer.run(shrunk(*HELD, f"restore=safetensors:{folder}", directory=directory))
    assert "# config.json, not looked at: made_by" in (tuned.directory / "restored.txt").read_text()
    again = trainer.run(shrunk(*HELD, f"restore=run:{tuned.directory}", directory=directory))
    for run in (tuned, again):
        exported = trainer.export_run(str(run.directory), tmp_path / f"out_{run.directory.name}")[1]
        found = json.loads((exported.directory / "config.json").read_text())
        assert found == config | more
        generation = json.loads((exported.directory / "generation_config.json").read_text())
        assert generation == {"temperature": 0.6}
        assert "generation_config.json" in exported.files
    # Rows that are longer than what the weights were made for make a model that reads them.
    record = again.directory / "restored.json"
    record.write_text(record.read_text().replace("4096", "16"))
    longer = trainer.export_run(str(again.directory), tmp_path / "longer")[1]
    found = json.loads((longer.directory / "config.json").read_text())
    assert found["max_position_embeddings"] == 32
