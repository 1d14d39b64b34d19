import jax
import pytest

from luthier import graph as graphs
from luthier.planner import Roofline, checked_program, report, targets


@pytest.fixture(scope="module")
def outline():
    graph = graphs.apply(
        graphs.resolve("configs.lm.quickstart"),
        ["parallelism.mesh.fsdp=8", "parallelism.mesh.data=1"],
    )
    slice = targets.read("v5e-8")
    program = checked_program(graph, jax.devices()[:8])
    return report.outline(graph, program, slice, slice.chip), program


def test_shapes_give_bytes_and_rows(outline):
    fields, program = outline
    assert fields["mesh"] == {"fsdp": 8}
    assert fields["rows"] == {"per_step": 8, "per_device": 1, "accumulation": 1}
    assert fields["parameters"]["total"] == 821_376
    assert fields["parameters_by_dtype"] == {"float32": {"count": 821_376, "bytes": 4 * 821_376}}
    assert fields["limit_bytes"] == int(15.75 * 2**30)
    held = fields["bytes_per_device"]
    assert held["gradients"] == held["parameters"]
    assert 2 * held["parameters"] <= held["optimizer"] < 2 * held["parameters"] + 64
    whole = 3 * 821_376 * 4
    assert whole <= fields["checkpoint_bytes"] < whole + 100
    assert {row["name"] for row in fields["sharding"]} == {
        name.partition("/")[2] for name in program.placements if name.startswith("parameters/")
    }
    assert all(row["reason"] for row in fields["sharding"])


def test_a_step_gives_the_time_of_the_run():
    found = Roofline({"compute": 0.5, "links": 0.25})
    step = report.step_of(found, {"full": 8, "hardware": 9}, tokens=100, steps=10, peak=32.0)
    assert step["mfu"] == {"full": 0.5}
    assert (step["binding"], step["step_seconds"], step["run_seconds"]) == ("compute", 0.5, 5.0)
    assert step["tokens_per_day"] == 100 / 0.5 * 86_400


def test_scopes_are_formatted_for_readers():
    scope = "jit(step)/transpose(jvp())/while/body/closed_call/checkpoint/rematted_computation/dot"
    assert report.readable(scope) == "backward / computed again / dot"
    assert report.readable("") == ""
