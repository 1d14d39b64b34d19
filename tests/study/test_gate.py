"""A space in which a third cannot run: none of those ever occupies a slice."""

import io
import itertools
import json

import jax
import pytest

from luthier import graph as graphs
from luthier import planner
from luthier.errors import BadInput, RunError
from luthier.study import ShapeGate, SliceInfo
from luthier.study.gate import (
    memory_problem,
    serve,
    shape_problem,
    step_bytes,
    too_large,
)

TINY = (
    "model.num_layers=1",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "data.length=16",
    "records.wandb=None",
)
SLICE = SliceInfo(0, "0", 2)


def _graph(*overrides):
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), [*TINY, *overrides])


def _space():
    """Return every point of {mesh, width, batch}, and whether it can run on two devices."""
    meshes = {"parallelism.mesh.tensor=1": 2, "parallelism.mesh.tensor=2": 1}
    for (mesh, on_batch), width, batch in itertools.product(
        meshes.items(), (16, 32, 256), (4, 6, 3)
    ):
        overrides = (
            mesh,
            f"model.dim={width}",
            f"model.block.mlp.hidden_dim={2 * width}",
            f"training.global_batch_size={batch}",
            "evaluations.held_out.global_batch_size=4",
        )
        yield overrides, batch % on_batch == 0 and width < 256


@pytest.mark.full
def test_what_cannot_run_is_refused_with_its_reason_before_a_slice_is_occupied():
    gate, limit = ShapeGate(), 2 * 2**20
    refused = {}
    try:
        for overrides, can_run in _space():
            info = SliceInfo(0, "0", 2, "cpu", limit)
            reason = gate(_graph(*overrides), info)
            assert bool(reason) == (not can_run), (overrides, reason)
            if reason:
                refused[overrides] = reason
    finally:
        gate.close()
    assert len(refused) >= 6
    assert any("3 rows cannot be divided over 2 devices" in reason for reason in refused.values())
    assert any("the state needs" in reason for reason in refused.values())
    assert gate._processes == {}


@pytest.mark.full
def test_the_gates_process_has_as_many_devices_as_the_slice_and_this_one_keeps_its_own():
    before = len(jax.devices())
    gate = ShapeGate()
    try:
        assert gate(_graph("parallelism.mesh.fsdp=2"), SLICE) == ""
        reason = gate(_graph("parallelism.mesh.fsdp=3"), SLICE)
        assert "parallelism.mesh" in reason
    finally:
        gate.close()
    assert len(jax.devices()) == before


@pytest.mark.full
def test_a_gate_whose_process_dies_says_so():
    gate = ShapeGate()
    gate(_graph(), SLICE)
    gate._processes[2].kill()
    with pytest.raises(RunError, match="the gate's process ended"):
        gate(_graph(), SLICE)
    gate.close()


def test_questions_are_answered_line_by_line():
    same = {"devices": jax.device_count(), "compiles": False}
    asked = {"graph": graphs.to_json(_graph()), "memory_bytes": 10, **same}
    broken = {"graph": "{", "memory_bytes": None, **same}
    answers = io.StringIO()
    serve(io.StringIO("".join(json.dumps(x) + "\n" for x in (asked, broken))), answers, ())
    first, second = [json.loads(line) for line in answers.getvalue().splitlines()]
    assert first.startswith("the state needs ")
    assert first.endswith("on each device, which has 0.0 MiB")
    assert "is not readable as JSON" in second


def test_what_the_command_line_refuses_is_refused_here():
    assert "training.steps" in shape_problem(_graph("training.steps=0"), jax.devices()[:1], None)
    assert shape_problem(_graph(), jax.devices()[:1], None) == ""


@pytest.mark.full
def test_the_compiled_program_is_looked_at_where_the_state_fits():
    plan = planner.make(_graph("model.dim=16", "model.block.mlp.hidden_dim=32"), jax.devices()[:1])
    needed = step_bytes(plan)
    held = sum(p.bytes_per_device for p in plan.program.placements.values())
    assert needed > held
    assert memory_problem(plan, None) is None
    assert memory_problem(plan, needed) is None
    assert str(memory_problem(plan, needed - 1)).startswith("the compiled step needs ")
    assert str(memory_problem(plan, held - 1)).startswith("the state needs ")


@pytest.mark.slow
def test_a_gate_that_compiles_refuses_what_fits_with_rematerialization_only():
    words = ("model.num_layers=2", "model.dim=32", "evaluations={}", "fiddler:quick_compile")
    whole, saved = (
        _graph(*words, f"model.stack.remat={name}()") for name in ("NoRemat", "FullRemat")
    )
    limit = step_bytes(planner.make(saved, jax.devices()[:1]))
    assert shape_problem(whole, jax.devices()[:1], limit) == ""
    info = SliceInfo(0, "0", 1, "cpu", limit)
    gate = ShapeGate(level="compile")
    try:
        assert gate(whole, info).startswith("the compiled step needs ")
        assert gate(saved, info) == ""
        # Only its own compiler knows what a step needs on another kind of device.
        assert gate(whole, SliceInfo(0, "0", 1, "NVIDIA H100", limit)) == ""
    finally:
        gate.close()


def test_a_level_that_does_not_exist_is_refused():
    with pytest.raises(BadInput, match=r"^gate\.level: there is no level 'full'; write shapes or"):
        ShapeGate(level="full")


def test_a_refusal_names_both_sizes():
    problem = too_large("the state", 3 * 2**20, 2**20)
    assert str(problem) == "the state needs 3.0 MiB on each device, which has 1.0 MiB"
    assert too_large("the state", 5, 5) is None
