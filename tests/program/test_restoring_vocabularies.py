"""Warm starts of models with a larger or a smaller vocabulary."""

import dataclasses

import fiddle as fdl
import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.checkpoint import FromRun, Resize, Store, Take
from luthier.errors import CheckpointError
from luthier.program import WarmStart, materialize

GPT = (
    "configs.lm.quickstart",
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=1",
    "model.block.mlp.hidden_dim=16",
    "data.length=16",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "evaluations={}",
)
UNTIED = (*GPT, "model.unembedding:=partial:luthier.layers.Unembedding(pad_to_multiple=8)")
T5 = (
    "configs.seq2seq.translation",
    "model.dim=16",
    "evaluations={}",
    "data.input_length=16",
    "data.target_length=16",
)
T5_TIED = (*T5, "model.unembedding:=partial:luthier.layers.ScaledTiedUnembedding")
MODELS = {
    "gpt tied": (GPT, {"embedding.table": 0}),
    "gpt untied": (UNTIED, {"embedding.table": 0, "unembedding.kernel": 1}),
    "t5 untied": (T5, {"embedding.table": 0, "unembedding.kernel": 1}),
    "t5 tied": (T5_TIED, {"embedding.table": 0}),
}
KV = "parallelism.rules.parameters.kv_heads=()"  # one head is not split
SIZE = 258  # of the run that is started from


def _program(model, devices=1, *more):
    reference, *words = MODELS[model][0]
    return programs.make(
        graphs.apply(graphs.resolve(reference), [*words, *more]), jax.devices()[:devices]
    )


SLOW = [
    pytest.param(name, marks=pytest.mark.slow) for name in ("gpt untied", "t5 untied", "t5 tied")
]


@pytest.fixture(scope="module", params=["gpt tied", *SLOW])
def saved(request, tmp_path_factory):
    """The checkpoint of a run whose parameters are not as its seed has them."""
    program = _program(request.param)
    state = program.named(program.init(program.values()))
    trained = {
        name: array * 2 if name.startswith("parameters/") else array
        for name, array in state.items()
    }
    folder = tmp_path_factory.mktemp("run")
    with Store(folder) as store:
        store.save(3, trained)
    return request.param, str(folder), {n: np.asarray(a) for n, a in trained.items()}


def _start(saved, size, devices=1, more=(), rules=None):
    """Return the state that a warm start makes, one of a fresh initialisation, and the table."""
    model, folder, _ = saved
    program = _program(model, devices, f"model.vocab_size={size}", *more)
    fresh = program.named(program.init(program.values()))
    graph = graphs.copy_graph(program.graph)
    rules = rules or [Resize(r"embedding\.(table|kernel)$", size=SIZE), Take()]
    graph.restore = fdl.Config(FromRun, folder, rules=rules)
    warm = programs.make(graph, jax.devices()[:devices])
    with WarmStart(warm) as opened:
        restoration = opened.open()
        leaves = materialize(warm, warm.values(), restoration=restoration)
        return warm.named(leaves), fresh, restoration


def _first(array, axis, count):
    return np.moveaxis(np.asarray(array), axis, 0)[:count]


def _rest(array, axis, count):
    return np.moveaxis(np.asarray(array), axis, 0)[count:]


@pytest.mark.parametrize(
    "size", [300, pytest.param(200, marks=pytest.mark.slow)], ids=["larger", "smaller"]
)
def test_old_rows_are_the_runs_and_new_ones_those_of_a_new_model(saved, size):
    model, folder, trained = saved
    state, fresh, restoration = _start(saved, size)
    both = min(size, SIZE)
    resized = MODELS[model][1]
    for name, axis in resized.items():
        there = trained[f"parameters/{name}"]
        for kind in ("parameters", "ema") if "gpt" in model else ("parameters",):
            here = state[f"{kind}/{name}"]
            np.testing.assert_array_equal(_first(here, axis, both), _first(there, axis, both))
            own = fresh[f"parameters/{name}"]
            np.testing.assert_array_equal(_rest(here, axis, both), _rest(own, axis, both))
        new = _rest(state[f"parameters/{name}"], axis, both)
        assert np.any(new[: size - both]) == (size > SIZE)
    for name, array in fresh.items():
        kind, _, own = name.partition("/")
        if kind == "optimizer":
            np.testing.assert_array_equal(state[name], array)
        elif kind == "parameters" and own not in resized:
            np.testing.assert_array_equal(state[name], trained[name])
    rows = {row.parameter: row.source for row in restoration.table}
    assert rows["embedding.table"] == f"embedding.table[:{both}]" + " + init" * (size > SIZE)
    if len(resized) == 2:
        assert rows["unembedding.kernel"].startswith(f"unembedding.kernel[:, :{both}]")
    part = f", {len(resized)} of them in part" if size > SIZE else ""
    assert restoration.summary == f"{len(rows)} parameters from {folder} (step 3){part}"


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["gpt untied"], indirect=True)
@pytest.mark.parametrize("axis", ["fsdp", "tensor"])
def test_a_mesh_changes_nothing(saved, axis):
    alone, _, _ = _start(saved, 300)
    shared, fresh, _ = _start(saved, 300, 2, [f"parallelism.mesh.{axis}=2", KV])
    assert len(shared["parameters/embedding.table"].sharding.device_set) == 2
    for name, array in alone.items():
        np.testing.assert_array_equal(shared[name], array)
        assert shared[name].sharding == fresh[name].sharding


def _without_origin(error):
    """Return the message of a single problem, which names the line that set `restore`."""
    (problem,) = error.problems
    assert problem.origin.startswith("tests/program/test_restoring_vocabularies.py:")
    return str(dataclasses.replace(problem, origin=""))


@pytest.mark.parametrize("saved", ["gpt tied"], indirect=True)
def test_another_size_is_refused_where_no_rule_says_what_to_do(saved):
    _, folder, _ = saved
    with pytest.raises(CheckpointError) as caught:
        _start(saved, 300, rules=[Take()])
    assert _without_origin(caught.value) == (
        "restore: embedding.table is [304, 16] here, and embedding.table [264, 16] in"
        f" {folder} (step 3); pad it with new entries, or cut it: Resize(pattern)"
    )


@pytest.mark.full
@pytest.mark.parametrize("saved", ["gpt tied"], indirect=True)
def test_padding_of_the_source_is_no_row_of_it(saved):
    _, folder, _ = saved
    with pytest.raises(CheckpointError) as caught:
        _start(saved, 300, rules=[Resize("embedding"), Take()])
    assert _without_origin(caught.value) == (
        f"restore: embedding.table of {folder} (step 3) ends in 6 entries of zeros, as padding"
        " does; state how many are not padding: Resize(pattern, size=258)"
    )
    cut, _, _ = _start(saved, 200, rules=[Resize()])
    assert cut["parameters/embedding.table"].shape == (200, 16)


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["gpt tied"], indirect=True)
def test_new_rows_within_the_same_padding_are_new(saved):
    state, fresh, _ = _start(saved, 262)
    table, own = state["parameters/embedding.table"], fresh["parameters/embedding.table"]
    assert table.shape == (264, 16)
    np.testing.assert_array_equal(table[SIZE:], own[SIZE:])
    assert np.all(np.any(np.asarray(table[SIZE:262]), axis=1))


@pytest.mark.slow
@pytest.mark.parametrize("saved", ["gpt tied"], indirect=True)
def test_masters_of_another_dtype_are_resized_too(saved):
    _, _, trained = saved
    state, fresh, _ = _start(saved, 300, more=["fiddler:luthier.recipes.bf16_masters"])
    name = "optimizer/masters/embedding.table"
    there = trained["parameters/embedding.table"]
    np.testing.assert_array_equal(state[name][:SIZE], there[:SIZE])
    np.testing.assert_array_equal(state[name][SIZE:], fresh[name][SIZE:])
    assert state["parameters/embedding.table"].dtype == "bfloat16"
