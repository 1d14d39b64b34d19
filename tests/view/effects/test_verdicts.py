from __future__ import annotations

import jax
import pytest

from luthier import graph as graphs
from luthier.view.effects import facts_of
from luthier.view.effects.effects import checkpoint, recompile_verdict

DEVICES = jax.devices()[:1]


@pytest.fixture(scope="module")
def graph():
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), ["model.num_layers=1"])


@pytest.fixture(scope="module")
def facts(graph):
    return facts_of(graph, DEVICES)


def _judged(graph, facts, *overrides):
    other = graphs.apply(graph, overrides)
    both, of_both = (graph, other), (facts, facts_of(other, DEVICES))
    return checkpoint(both, of_both), recompile_verdict(both, of_both, DEVICES)


@pytest.mark.full
def test_names_and_records_change_nothing(graph, facts):
    checkpoint, recompile = _judged(graph, facts, "name=other", "records.wandb=None")
    assert (checkpoint.severity, recompile.severity) == ("ok", "ok")
    assert checkpoint.text == "yes: a run of the first can go on with the second"
    assert recompile.text == "no: both compile to the same step"


def test_a_hyperparameter_is_trained_with_from_there_on_and_can_be_hoisted(graph, facts):
    checkpoint, recompile = _judged(graph, facts, "optimizer.b2=0.9")
    assert checkpoint.severity == "ok"
    assert checkpoint.text.splitlines()[1].startswith("- ~ optimizer.b2: 0.98 -> 0.9")
    assert (recompile.severity, recompile.text) == (
        "ok",
        "yes; but in a sweep one step serves both, because these enter as arguments:\n"
        "- optimizer.b2",
    )


def test_another_size_fits_no_checkpoint_and_is_another_program(graph, facts):
    checkpoint, recompile = _judged(graph, facts, "model.num_layers=2")
    assert (checkpoint.severity, recompile.severity) == ("warn", "warn")
    first, second, *_, last = checkpoint.text.splitlines()
    assert first == "no: a checkpoint of the first does not fit the second:"
    assert second == (
        "- parameters/blocks.attention.key.kernel: is float32[1, 128, 2, 32] before, "
        "float32[2, 128, 2, 32] after"
    )
    assert last == "- and 24 more"
    assert recompile.text.splitlines()[0] == "yes: the step is of other shapes:"


def test_another_seed_cannot_be_continued_with(graph, facts):
    checkpoint, _ = _judged(graph, facts, "seed=7")
    assert checkpoint.severity == "warn"
    assert "the random streams would change" in checkpoint.text


def test_another_function_is_a_constant_of_the_step(graph, facts):
    _, recompile = _judged(graph, facts, "model.block.mlp.activation=jax.nn.relu", "name=other")
    assert recompile.text == ("yes: these are constants of the step:\n- model.block.mlp.activation")


def test_another_batch_is_of_other_shapes(graph, facts):
    _, recompile = _judged(graph, facts, "training.global_batch_size=16")
    assert "- batch inputs: int32[8, 128] before, int32[16, 128] after" in recompile.text


@pytest.mark.full
def test_steps_reshape_schedules(graph, facts):
    checkpoint, _ = _judged(graph, facts, "training.steps=90")
    assert "with --extend" in checkpoint.text
    assert "optimizer.learning_rate.total_steps (900 -> 90)" in checkpoint.text
