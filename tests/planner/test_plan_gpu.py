"""Plans for a GPU, judged by its own compiler and by a measurement. A minute of a core in all."""

import json
import os
import subprocess
import sys

import pytest

from luthier.planner import targets

# The experiment that was measured on one H200 with jax 0.11.2 (2026-11-26): 79.8 ms a step.
MEASURED_SECONDS = 0.0798
PLAN = """
import contextlib, json, sys
import fiddle as fdl
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from luthier import layers
from luthier.planner import plan_here, planning, targets
from tools.bench.gpu_hour.experiment import experiment

num_layers, is_real = int(sys.argv[1]), sys.argv[2] == "real"
if is_real:  # traced and compiled with the kernels of cuDNN, as for the GPU itself
    planning.abstract_forms = contextlib.nullcontext
    cudnn.check_cudnn_version = lambda: 91_000
    cudnn.check_compute_capability = lambda wanted: float(wanted) <= 9.0
overrides = [f"model.num_layers={num_layers}", "model.stack:=luthier.layers.Unrolled()"]
overrides += ["model.block.attention.core:=luthier.layers.CudnnAttention(max_documents=1)"]
overrides += ["fiddler:bf16", "evaluations={}", "checkpoints=None"]
from luthier import graph as graphs
graph = graphs.apply(experiment("gpt2"), overrides, shelves=("luthier.recipes",))
report = plan_here(graph, targets.read("h200:1"), level="compile", packages=["tools"])
print(json.dumps(report.to_dict()))
"""


def planned(num_layers, form, tmp_path):
    """Return a plan, as JSON values, with the kernels' abstract forms or with the real ones."""
    slice = targets.read("h200:1")
    missing = targets.missing_compiler(slice)
    if missing:
        pytest.skip(missing)
    environ = targets.environment(slice, os.environ) | {"XDG_CACHE_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", PLAN, str(num_layers), form]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_declared_costs_of_kernels_are_those_of_the_program_with_the_kernels(tmp_path):
    plan, real = (planned(2, form, tmp_path) for form in ("abstract", "real"))
    for term in ("compute", "memory"):
        seconds = [found["step"]["seconds_by_term"][term] for found in (plan, real)]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.03), term
    assert plan["flops_by_dtype"] == real["flops_by_dtype"]


@pytest.mark.slow
def test_the_time_of_a_step_is_within_a_fifth_of_the_measured_one(tmp_path):
    step = planned(12, "abstract", tmp_path)["step"]
    assert step["step_seconds"] == pytest.approx(MEASURED_SECONDS, rel=0.2)
    assert (step["is_bound"], step["grade"]) == (False, "measured")
