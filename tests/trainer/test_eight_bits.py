"""Training and planning in eight bits, whose backward products have factors of two formats."""

import jax
import pytest

import luthier
from luthier import graph as graphs
from luthier import trainer
from luthier.planner import flops_by_dtype, plan_here
from luthier.planner.targets import CHIPS, read

PRECISION = ("luthier.recipes.bf16", "luthier.recipes.fp8")


@pytest.mark.full
def test_float8_trains_and_its_products_are_planned_at_their_own_peak(tiny, tmp_path):
    graph = graphs.apply(
        tiny(tmp_path / "runs", "training.steps=3"), [f"fiddler:{n}" for n in PRECISION]
    )
    result = trainer.run(graph)
    assert result.exit_code == 0
    assert result.step == 3
    flops, wider = (
        flops_by_dtype(luthier.plan(one, jax.devices()[:1]).program.traced_step.jaxpr)
        for one in (graph, graphs.apply(tiny(tmp_path / "other"), [f"fiddler:{PRECISION[0]}"]))
    )
    # Linear maps are in eight bits; attention and logits, most of so small a model, are not.
    assert flops["float8"] > 0
    assert flops["float8"] + flops["bfloat16"] == wider["bfloat16"]
    assert set(wider) == {"bfloat16"}
    chip = CHIPS["h100"]
    assert chip.peak("float8") > 1.9 * chip.peak("bfloat16")
    report = plan_here(graph, read("h100:1"), level="shapes")
    seconds = sum(n / chip.peak(kind) for kind, n in report.flops_by_dtype.items())
    assert report.flops_by_dtype["float8"] > 0
    assert report.step["seconds_by_term"]["compute"] == pytest.approx(seconds)
