import dataclasses
import threading
import types

import jax
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import BadInput, ShardingError, ValidationError

SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=8",
)


def _graph(*overrides):
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, *overrides])


def _make(*overrides, num_devices=1, hoist=()):
    return programs.make(_graph(*overrides), jax.devices()[:num_devices], hoist)


def test_making_a_program_makes_no_array(monkeypatch):
    created = []
    original = nnx.Param.__init__

    def spy(self, value, **metadata):
        created.append(value)
        original(self, value, **metadata)

    monkeypatch.setattr(nnx.Param, "__init__", spy)
    before = len(jax.live_arrays())
    program = _make()
    assert created
    assert all(isinstance(value, jax.core.Tracer) for value in created)
    assert len(jax.live_arrays()) == before
    assert program.names == tuple(sorted(program.names))


def test_a_model_of_billions_is_planned_in_no_memory():
    program = _make("model.dim=8192", "model.num_layers=96", "model.block.mlp.hidden_dim=32768")
    parameters = [p for n, p in program.placements.items() if n.startswith("parameters/")]
    assert sum(np.prod(p.shape, dtype=np.int64) for p in parameters) > 1e10


def test_optimizer_state_and_average_lie_where_their_parameter_lies():
    overrides = (
        "parallelism.mesh.fsdp=4",
        "parallelism.mesh.tensor=2",
        "training.ema:=luthier.optim.Ema(0.9)",
    )
    placements = _make(*overrides, num_devices=8).placements
    own = {n.partition("/")[2]: p for n, p in placements.items() if n.startswith("parameters/")}
    sharded = 0
    for name, placement in placements.items():
        parameter = own.get(name.rpartition("/")[2])
        if parameter is not None and name.startswith(("optimizer/", "ema/")):
            assert placement.spec == parameter.spec, name
            sharded += any(placement.spec)
    assert sharded >= 10


def test_a_batch_that_cannot_be_divided_names_the_multiple():
    with pytest.raises(ValidationError) as caught:
        _make("training.global_batch_size=12", num_devices=8)
    assert "training.global_batch_size: 12 rows cannot be divided over 8 devices" in str(
        caught.value
    )
    assert "use a multiple of 8" in str(caught.value)
    with pytest.raises(ValidationError, match="use a multiple of 16"):
        _make("training.global_batch_size=8", "training.accumulation=2", num_devices=8)


def test_inputs_of_another_rank_name_the_axes_to_write():
    graph = graphs.apply(graphs.resolve("digits"), ["task.input_axes=[None]"])
    with pytest.raises(ValidationError) as caught:
        programs.make(graph, jax.devices()[:1])
    assert "(64, 8, 8, 1), and the task reads it as (batch, None)" in str(caught.value)
    assert "set task.input_axes=[None, None, None], an axis for each" in str(caught.value)


def test_a_parameter_that_cannot_be_divided_is_named_with_its_rule():
    with pytest.raises(ShardingError, match=r"blocks.*heads.*tensor"):
        _make("parallelism.mesh.tensor=4", num_devices=4)


def test_a_model_that_cannot_be_built_is_one_line_at_its_path():
    with pytest.raises(BadInput) as caught:
        _make("model.block.mlp.activation=jax.numpy.concatenate").traced_step  # noqa: B018
    assert "Traceback" not in str(caught.value)


@pytest.mark.full
def test_scalars_have_names_and_the_state_is_donated():
    program = _make()
    step = program.compile_step()
    leaves = program.init(program.values())
    data = program.experiment.data.iterator(global_batch_size=8, seed=0)
    batch = {n: jax.device_put(x, program.batch[n].sharding) for n, x in next(data).items()}
    after, vector = step(program.values(), leaves, batch)
    assert {"loss", "gradient_norm", "learning_rate", "skipped"} <= set(program.scalar_names)
    assert vector.shape == (len(program.scalar_names),)
    donated = dict(zip(program.names, (leaf.is_deleted() for leaf in leaves), strict=True))
    kept = [name for name, gone in donated.items() if not gone]
    assert not [name for name in kept if name.startswith(("parameters/", "optimizer/1", "ema/"))]
    assert int(program.named(after)["step"]) == 1


@pytest.mark.full
def test_a_graph_with_other_hoisted_leaves_shares_all_that_is_compiled():
    program = _make(hoist=("optimizer.learning_rate.peak",))
    step = program.compile_step()
    other = program.of(_graph("optimizer.learning_rate.peak=0.5", "name=other"))
    assert other.compile_step() is step
    assert other.traced_step is program.traced_step
    assert other.experiment.data is program.experiment.data
    assert (other.experiment.name, program.experiment.name) == ("other", "quickstart")
    assert float(other.values()[0]) == 0.5
    assert float(program.values()[0]) != 0.5
    batch = program.batch
    assert other.compile_evaluation(batch, "parameters") is program.compile_evaluation(
        batch, "parameters"
    )
    assert _make().compiled == {}


@pytest.mark.full
def test_the_step_compiles_beside_other_work(monkeypatch):
    program = _make()
    compiled, threads, let_go = type(program.traced_step.lower()).compile, [], threading.Event()

    def waiting(self, options):
        threads.append(threading.current_thread())
        assert let_go.wait(60)
        return compiled(self, options)

    monkeypatch.setattr(type(program.traced_step.lower()), "compile", waiting)
    program.begin_step()
    program.begin_step()
    values = program.values()
    leaves = program.init(values)  # while the other thread has not compiled anything
    let_go.set()
    step = program.compile_step()
    assert program.compile_step() is step
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()
    batch = {name: np.zeros(x.shape, x.dtype) for name, x in program.batch.items()}
    (after, _) = step(values, leaves, batch)
    program.begin_step()  # there is nothing left to begin
    assert program.compile_step() is step
    monkeypatch.undo()
    alone = _make()
    (expected, _) = alone.compile_step()(values, alone.init(values), batch)
    for ours, theirs in zip(after, expected, strict=True):
        assert (np.asarray(ours) == np.asarray(theirs)).all()


def test_a_failed_compilation_is_raised_where_it_is_awaited(monkeypatch):
    program = _make()

    def failing(self, options):
        raise ValueError("no room")

    monkeypatch.setattr(type(program.traced_step.lower()), "compile", failing)
    program.begin_step()
    with pytest.raises(ValueError, match="no room"):
        program.compile_step()


def test_beside_a_compiler_that_measures_nothing_runs():
    program = _make()
    gpu = types.SimpleNamespace(platform="gpu")
    program = dataclasses.replace(program, mesh=types.SimpleNamespace(devices=np.array([gpu])))
    program.begin_step()
    assert not program.compiled
