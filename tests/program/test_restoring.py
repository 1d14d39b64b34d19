"""Warm starts of programs; whole runs are in tests/trainer/test_warm_start.py."""

import copy

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.checkpoint import FromRun, Store, Take
from luthier.models import WithCopy
from luthier.program import WarmStart
from luthier.program.materialize import abstract_model, init_with, limits, targets

SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=16",
    "data.length=16",
    "training.global_batch_size=8",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "evaluations={}",
)


@pytest.fixture(scope="module")
def program():
    graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), SMALL)
    return programs.make(graph, jax.devices()[:1])


def test_targets_are_the_parameters_and_know_what_is_stacked(program):
    found = targets(program)
    assert found["blocks.mlp.up.kernel"].is_stacked
    assert not found["embedding.table"].is_stacked
    assert found["embedding.table"].shape == (264, 16)
    assert limits(abstract_model(program.experiment)) == {"vocab": 258}


def test_what_is_given_replaces_what_would_be_made_and_averages_follow(program):
    values = program.values()
    own = program.named(program.init(values))
    given = {"norm.scale": jnp.full(16, 7.0)}
    state = program.named(init_with(program, values, given))
    assert set(state) == set(own)
    for name, array in state.items():
        expected = np.full(16, 7.0) if name.endswith("/norm.scale") else own[name]
        if name.startswith("optimizer/"):
            expected = own[name]
        np.testing.assert_array_equal(array, expected)


def test_nothing_to_restore_is_nothing_to_open(program):
    with WarmStart(program) as warm:
        assert warm.open() is None


@pytest.mark.parametrize("kind", ["same form", "other dtype"])
def test_a_model_and_its_copy_both_start_from_one_run(program, kind, tmp_path):
    state = program.named(program.init(program.values()))
    # A run's parameters are not as its seed has them: otherwise nothing would be seen.
    state = {name: array + array.dtype.type(1) for name, array in state.items()}
    with Store(tmp_path) as store:
        store.save(3, state)
    graph = copy.deepcopy(program.graph)
    graph.model = fdl.Partial(WithCopy, model=graph.model)
    if kind == "other dtype":
        graph.model.model.param_dtype = jnp.bfloat16
    rules = [fdl.Config(Take, r"^(trained|copy)\.", "")]
    graph.restore = fdl.Config(FromRun, str(tmp_path), rules=rules)
    with_copy = programs.make(graph, jax.devices()[:2])
    with WarmStart(with_copy) as warm:
        arrays = warm.open().read()
    found = with_copy.named(init_with(with_copy, with_copy.values(), arrays))
    parameters = [n.removeprefix("parameters/") for n in state if n.startswith("parameters/")]
    assert parameters
    for name in parameters:
        expected = np.asarray(state[f"parameters/{name}"]).astype(
            found[f"parameters/trained.{name}"].dtype
        )
        np.testing.assert_array_equal(found[f"parameters/trained.{name}"], expected)
        np.testing.assert_array_equal(found[f"variables/copy.{name}"], expected)
