"""Frozen parameters, and state that tasks change: statistics and teachers."""

import functools
import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from luthier import graph as graphs
from luthier import layers, optim, planner
from luthier import program as programs
from luthier.errors import BadInput
from luthier.metrics import LOSS, Ratio
from luthier.tasks import Additive, Classification, LossSums

ROWS, DIM = 8, 3
DECAY = 0.75


class Model(nnx.Module):
    def __init__(self, rngs):
        self.kernel = nnx.Param(jax.random.normal(rngs.params(), (DIM,)))
        self.teacher = nnx.Variable(jnp.zeros(DIM))
        self.mean = nnx.BatchStat(jnp.zeros(DIM))


class Task:
    """Descends a square, and keeps a running mean of the inputs and a teacher."""

    reduction, loss_metrics, metrics = Additive(), (), (LOSS,)

    def loss(self, model, batch, key):
        weights = batch["weights"]
        outputs = batch["inputs"] @ (model.kernel[...] + 0.1 * model.mean[...])
        weight = weights.sum()
        mean = (batch["inputs"] * weights[:, None]).sum(0) / jnp.where(weight > 0, weight, 1)
        updates = {
            "mean": model.mean[...] + jnp.where(weight > 0, 0.1, 0) * (mean - model.mean[...]),
            "teacher": DECAY * model.teacher[...] + (1 - DECAY) * model.kernel[...],
        }
        ratio = Ratio(jnp.sum(jnp.square(outputs) * weights), weight)
        return LossSums(ratio, {}, updates)

    def evaluate(self, model, batch):
        outputs = batch["inputs"] @ (model.teacher[...] + model.mean[...])
        return {LOSS: Ratio(outputs.sum(), jnp.float32(1))}


def _experiment(accumulation=1, guard=None, trainable=None, ema=None):
    training = programs.Training(
        steps=10,
        global_batch_size=ROWS,
        accumulation=accumulation,
        guard=guard,
        trainable=trainable,
        ema=ema,
    )
    return types.SimpleNamespace(
        seed=0,
        model=Model,
        task=Task(),
        optimizer=optim.sgd(0.1, momentum=0.9),
        precision=programs.Precision(),
        training=training,
        restore=None,
    )


def _batch(seed=0):
    generator = np.random.default_rng(seed)
    return {
        "inputs": generator.standard_normal((ROWS, DIM)).astype(np.float32),
        "weights": np.array([1, 1, 0, 1, 0, 0, 1, 1], np.float32),
    }


def _run(experiment, batches):
    state = jax.jit(lambda: programs.init_state(experiment))()
    step = jax.jit(lambda state, batch: programs.train_step(experiment, state, batch)[0])
    for batch in batches:
        state = step(state, batch)
    return state


def test_updates_are_the_variables_of_the_next_step():
    batches = [_batch(seed) for seed in range(3)]
    state = _run(_experiment(), batches)
    mean = np.zeros(DIM)
    for batch in batches:
        weights = batch["weights"][:, None]
        mean += 0.1 * ((batch["inputs"] * weights).sum(0) / weights.sum() - mean)
    np.testing.assert_allclose(state["variables/mean"], mean, rtol=1e-5)


def test_a_teacher_follows_the_parameters_one_step_behind():
    experiment = _experiment()
    kernels, teacher = [], np.zeros(DIM)
    for count in range(4):
        state = _run(experiment, [_batch(seed) for seed in range(count)])
        np.testing.assert_allclose(state["variables/teacher"], teacher, rtol=1e-5)
        kernels.append(np.asarray(state["parameters/kernel"], np.float64))
        teacher = DECAY * teacher + (1 - DECAY) * kernels[-1]


@pytest.mark.parametrize("accumulation", [2, 4, 8])
def test_cutting_the_batch_changes_no_update(accumulation):
    batches = [_batch(seed) for seed in range(3)]
    whole, cut = _run(_experiment(), batches), _run(_experiment(accumulation), batches)
    for name in whole:
        np.testing.assert_allclose(cut[name], whole[name], rtol=2e-6, err_msg=name)


def test_a_refused_step_leaves_the_variables():
    experiment = _experiment(guard=optim.Guard())
    before = _run(experiment, [_batch()])
    poisoned = {**_batch(1), "inputs": np.full((ROWS, DIM), np.nan, np.float32)}
    after = _run(experiment, [_batch(), poisoned])
    for name in before:
        if name.startswith("variables/"):
            np.testing.assert_array_equal(after[name], before[name], err_msg=name)
    assert after["guard/total_skipped"] == 1
    healed = _run(experiment, [_batch(), poisoned, _batch(2)])
    assert not np.array_equal(healed["variables/mean"], before["variables/mean"])


def test_evaluation_sees_the_updated_variables():
    experiment = _experiment()
    batch = _batch()
    state = _run(experiment, [batch])
    ratios = programs.evaluate_step(experiment, state, "parameters", batch)
    arrays = state["variables/teacher"] + state["variables/mean"]
    expected = (batch["inputs"] @ np.asarray(arrays)).sum()
    np.testing.assert_allclose(ratios[LOSS].numerator, expected, rtol=1e-5)


class Network(nnx.Module):
    """A classifier with a norm and with dropout, each from a function of `rngs`."""

    def __init__(self, norm=None, dropout=None, *, rngs):
        self.up = nnx.Linear(DIM, 4, rngs=rngs)
        self.norm = nnx.data(norm and norm(rngs))
        self.dropout = nnx.data(dropout and dropout(rngs))

    def __call__(self, inputs):
        hidden = self.up(inputs)
        hidden = hidden if self.norm is None else self.norm(hidden)
        return hidden if self.dropout is None else self.dropout(hidden)


class Observed(Network):
    """Returns the statistics that its norm has changed."""

    def observe(self, inputs, weights_B, *, dropout=None):
        is_ours = isinstance(self.norm, layers.BatchNorm)
        logits = self.norm(self.up(inputs), *[weights_B] * is_ours)
        flat = nnx.to_flat_state(nnx.state(self, nnx.BatchStat))
        return logits, {".".join(map(str, path)): v.get_value() for path, v in flat}


def flax_norm(rngs):
    return nnx.BatchNorm(4, rngs=rngs)


def frozen_norm(rngs):
    return nnx.BatchNorm(4, use_running_average=True, rngs=rngs)


def own_norm(rngs):
    return layers.BatchNorm(dim=4, rngs=rngs)


def flax_dropout(rngs):
    return nnx.Dropout(0.1, rngs=rngs)


def seeded_dropout(rngs):
    return nnx.Dropout(0.1, rngs=nnx.Rngs(0))


def _stepped(model, restore=None):
    """Trace a step of a classifier, and return the shapes of the next state."""
    experiment = _experiment()
    experiment.model, experiment.restore = model, restore
    experiment.task = Classification(input_axes=(None,))
    integers = {name: np.zeros(ROWS, np.int32) for name in ("labels", "examples")}
    state = jax.eval_shape(lambda: programs.init_state(experiment))
    step = lambda state: programs.train_step(experiment, state, _batch() | integers)[0]
    return jax.eval_shape(step, state)


@pytest.mark.parametrize(
    ("model", "parts", "what", "remedy"),
    [
        (Network, {"norm": flax_norm}, "nnx.BatchNorm in norm", "use luthier.layers.BatchNorm"),
        (Network, {"norm": frozen_norm}, "nnx.BatchNorm in norm", "use luthier.layers.BatchNorm"),
        (Network, {"norm": own_norm}, "statistics in norm", "observe()"),
        (Network, {"dropout": seeded_dropout}, "dropout of Flax in dropout", "drop(x, dropout)"),
        (Network, {"dropout": flax_dropout}, "'params' only, not 'dropout'", "drop(x, dropout)"),
    ],
)
def test_state_that_a_layer_keeps_and_no_step_updates_is_refused(model, parts, what, remedy):
    with pytest.raises(BadInput) as caught:
        _stepped(functools.partial(model, **parts))
    (problem,) = caught.value.problems
    assert problem.path == "model"
    assert what in problem.what
    assert remedy in problem.remedy


class Dropped(nnx.Module):
    """A network with dropout; `passes` says how its forward pass treats the keys."""

    def __init__(self, rate, passes, rngs):
        self.kernel = nnx.Param(jnp.zeros((DIM, 4)))
        self.drop, self.passes = layers.Dropout(rate), passes

    def __call__(self, x, *, dropout=None):
        y = x @ self.kernel[...]
        # The second call of "twice" is the fixed reference of a loss that compares.
        keys = {"none": [None], "keys": [dropout], "twice": [dropout, None]}[self.passes]
        return sum(self.drop(y, key) for key in keys)


def test_a_loss_that_passes_no_keys_to_dropout_is_refused():
    with pytest.raises(BadInput) as caught:
        _stepped(functools.partial(Dropped, 0.1, "none"))
    (problem,) = caught.value.problems
    assert (problem.path, "so that drop drops nothing" in problem.what) == ("task", True)
    assert "row_keys(key, batch)" in problem.remedy
    # Nothing is lost where the rate is 0, where keys reach a layer, and where a second call of the
    # model is meant to be fixed. Evaluation has no keys.
    _stepped(functools.partial(Dropped, 0.0, "none"))
    _stepped(functools.partial(Dropped, 0.1, "keys"))
    _stepped(functools.partial(Dropped, 0.1, "twice"))


@pytest.mark.parametrize("norm", [flax_norm, own_norm])
def test_statistics_that_the_model_returns_are_updated(norm):
    assert "variables/norm.mean" in _stepped(functools.partial(Observed, norm=norm))


def test_pretrained_statistics_may_be_frozen_but_not_lost():
    _stepped(functools.partial(Network, norm=frozen_norm), restore="weights")
    _stepped(functools.partial(Network, norm=own_norm), restore="weights")
    with pytest.raises(BadInput, match="nothing updates"):
        _stepped(functools.partial(Network, norm=flax_norm), restore="weights")


SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=8",
    "training.ema:=luthier.optim.Ema(0.9)",
)
ONLY_MLP = "training.trainable:=luthier.optim.Matching('mlp')"


def _program(*overrides, num_devices=1):
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, *overrides])
    return programs.make(graph, jax.devices()[:num_devices])


def _trained(program, num_steps):
    data = program.experiment.data.iterator(global_batch_size=8, seed=0)
    leaves, step, values = program.init(program.values()), program.compile_step(), program.values()
    before = {name: np.asarray(x) for name, x in program.named(leaves).items()}
    for _ in range(num_steps):
        batch = {n: jax.device_put(x, program.batch[n].sharding) for n, x in next(data).items()}
        leaves, _ = step(values, leaves, batch)
    return before, program.named(leaves)


@pytest.mark.full
@pytest.mark.parametrize("overrides", [(), ("training.accumulation=2",)])
def test_frozen_parameters_stay_to_the_last_bit_and_have_no_state(overrides):
    program = _program(ONLY_MLP, *overrides)
    names = [n for n in program.names if n.startswith("parameters/")]
    frozen = [n.partition("/")[2] for n in names if "mlp" not in n]
    assert frozen
    assert len(frozen) < len(names)
    for name in program.names:
        if not name.startswith(("parameters/", "variables/")):
            assert name.rpartition("/")[2] not in frozen, name
    before, after = _trained(program, 3)
    for name in names:
        same = np.array_equal(before[name], after[name])
        assert same == (name.partition("/")[2] in frozen), name


@pytest.mark.full
def test_trained_parameters_move_as_they_do_when_all_are_trained():
    """The first step of descent: each parameter's gradient is the same, frozen others or not."""
    descent = "optimizer:=luthier.optim.sgd(luthier.optim.Constant(0.5), momentum=0.0)"
    _, some = _trained(_program(ONLY_MLP, descent), 1)
    _, all_of_them = _trained(_program(descent), 1)
    for name in some:
        if name.startswith("parameters/") and ".mlp." in name:
            np.testing.assert_allclose(some[name], all_of_them[name], rtol=1e-5, atol=1e-7)


@pytest.mark.full
def test_an_average_is_evaluated_with_the_frozen_parameters():
    program = _program(ONLY_MLP)
    state = _trained(program, 2)[1]
    averaged_names = sorted(n.removeprefix("ema/") for n in state if n.startswith("ema/"))
    parameters = [n.removeprefix("parameters/") for n in state if n.startswith("parameters/")]
    assert averaged_names == sorted(n for n in parameters if "mlp" in n)
    batch = next(program.experiment.data.iterator(global_batch_size=8, seed=1))
    arrays = {n: jax.device_put(x, program.batch[n].sharding) for n, x in batch.items()}
    evaluate = program.compile_evaluation(program.batch, "ema")
    found = evaluate(program.values(), tuple(state.values()), arrays)
    averaged = {f"parameters/{n}": state[f"ema/{n}"] for n in averaged_names}
    other = program.compile_evaluation(program.batch, "parameters")
    expected = other(program.values(), tuple((state | averaged).values()), arrays)
    assert found.ratios()[LOSS] == expected.ratios()[LOSS]


def test_a_mask_that_matches_nothing_is_one_clear_error():
    with pytest.raises(BadInput) as caught:
        _program("training.trainable:=luthier.optim.Matching('lora')")
    (problem,) = caught.value.problems
    assert problem.path == "training.trainable"
    assert "blocks.mlp.up.kernel" in problem.remedy


def test_a_plan_counts_trained_and_all_parameters():
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), [*SMALL, ONLY_MLP])
    plan = planner.make(graph, jax.devices()[:1])
    assert plan.trained_parameters == 2 * 16 * (3 * 32 + 1)
    assert plan.parameters > plan.trained_parameters
    assert plan.bytes_per_device["gradients"] == 4 * plan.trained_parameters
    assert plan.to_dict()["trained_parameters"] == plan.trained_parameters
