"""Plans for absent chips, judged by their compilers and a measurement: a minute of a core each."""

import collections
import json
import math
import os
import re
import subprocess
import sys

import pytest

from luthier.planner import targets

KERNELS = (
    "fiddler:bf16",
    "model.stack:=luthier.layers.Unrolled()",
    "model.block.attention.core:=luthier.layers.CudnnAttention(max_documents=1)",
)
# The row "base" of tools/bench/results/gpu_hour.md, measured on one H200 with jax 0.11.2.
MEASURED_SECONDS = 0.0677
PLAN = """
import contextlib, json, sys
from jax._src.cudnn import fused_attention_stablehlo as cudnn
from luthier import graph as graphs
from luthier.planner import plan_here, planning, targets
from tools.bench.gpu_hour.experiment import experiment

is_real, *overrides = sys.argv[1] == "real", *sys.argv[2:], "evaluations={}", "checkpoints=None"
if is_real:  # traced and compiled with the kernels of cuDNN, as for the GPU itself
    planning.abstract_forms = contextlib.nullcontext
    cudnn.check_cudnn_version = lambda: 91_000
    cudnn.check_compute_capability = lambda wanted: float(wanted) <= 9.0
graph = graphs.apply(experiment("gpt2"), overrides, shelves=("luthier.recipes",))
report = plan_here(graph, targets.read("h200:1"), level="compile", packages=["tools"])
print(json.dumps(report.to_dict()))
"""
SHARDED = """
import json
from luthier import graph as graphs
from luthier.planner import plan_here, planning, targets

texts, parse = [], planning.parse
planning.parse = lambda text: texts.append(text) or parse(text)
overrides = ["training.global_batch_size=64", "fiddler:fsdp"]
graph = graphs.resolve("configs.lm.quickstart")
graph = graphs.apply(graph, overrides, shelves=("luthier.recipes",))
report = plan_here(graph, targets.read("v5e-16"), level="compile")
print(json.dumps({"collectives": report.to_dict()["collectives"], "text": texts[0]}))
"""

OVERLAPPED = """
import json
from luthier import graph as graphs
from luthier.planner import plan_here, planning, targets
from luthier.recipes import decoders

texts, parse = [], planning.parse
planning.parse = lambda text: texts.append(text) or parse(text)
graph = graphs.resolve("configs.lm.quickstart")
sizes = dict(dim=2048, num_layers=4, num_heads=16, hidden_dim=5632)
graph.model, graph.evaluations = decoders.llama(vocab_size=32_000, **sizes), {}
words = ["data.length=2048", "training.global_batch_size=32", "fiddler:fsdp", "fiddler:gpu"]
graph = graphs.apply(graph, words, shelves=("luthier.recipes",))
plan_here(graph, targets.read("h100:8"), level="compile")
print(json.dumps(texts[0]))
"""


def run(program, slice, tmp_path, *arguments):
    """Return the JSON values that a program prints, in the environment of a plan for a slice."""
    slice = targets.read(slice)
    missing = targets.missing_compiler(slice)
    if missing:
        pytest.skip(missing)
    environ = targets.environment(slice, os.environ) | {"XDG_CACHE_HOME": str(tmp_path)}
    environ["PYTHONPATH"] = os.pathsep.join(sys.path)
    command = [sys.executable, "-c", program, *arguments]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_declared_costs_of_kernels_are_those_of_the_program_with_the_kernels(tmp_path):
    words = "model.num_layers=2", *KERNELS
    plan, real = (run(PLAN, "h200:1", tmp_path, form, *words) for form in ("abstract", "real"))
    for term in ("compute", "memory"):
        seconds = [found["step"]["seconds_by_term"][term] for found in (plan, real)]
        assert seconds[0] == pytest.approx(seconds[1], rel=0.03), term
    assert plan["flops_by_dtype"] == real["flops_by_dtype"]


@pytest.mark.slow
def test_the_time_of_a_step_is_within_a_fifth_of_the_measured_one(tmp_path):
    step = run(PLAN, "h200:1", tmp_path, "abstract", "fiddler:gpu")["step"]
    assert step["step_seconds"] == pytest.approx(MEASURED_SECONDS, rel=0.2)
    assert (step["is_bound"], step["grade"]) == (False, "measured")


# Independent of the parser of `luthier.planner.compiled`: lines of text, and nothing else.
COLLECTIVE = re.compile(
    r"= (?P<shapes>.*?) (?P<kind>all-gather|all-reduce)\(.*channel_id=(?P<channel>\d+)"
)
ITEM_BYTES = {"f32": 4, "bf16": 2, "s32": 4, "u32": 4, "pred": 1}


def computations(text):
    """Return the lines of each computation by its name, and the name of the entry."""
    lines, name, entry = collections.defaultdict(list), "", ""
    for line in text.splitlines():
        if head := re.match(r"(ENTRY )?%?([^\s(]+) \(.*\{$", line):
            name = head[2]
            entry = name if head[1] else entry
        lines[name].append(line)
    return lines, entry


def num_bytes(shapes):
    """Return the bytes of arrays, given as `f32[2,3]`."""
    return sum(
        ITEM_BYTES[dtype] * math.prod(int(s) for s in sides.split(",") if s)
        for dtype, sides in re.findall(r"(\w+)\[([\d,]*)\]", shapes)
    )


def counted(text, num_turns):
    """Return count and bytes by kind: of each channel one, as often as its loop turns."""
    (lines, entry), times = computations(text), collections.Counter()

    def enter(name, turns):
        times[name] += turns
        for line in lines[name]:
            for role, called in re.findall(r"\b(calls|body)=%?([\w.\-]+)", line):
                enter(called, turns * (num_turns if role == "body" else 1))

    enter(entry, 1)
    found = {}
    for name, body in lines.items():
        for match in filter(None, map(COLLECTIVE.search, body)):
            key = match["kind"], match["channel"]
            found[key] = max(found.get(key, (0, 0)), (times[name], num_bytes(match["shapes"])))
    sums = collections.defaultdict(lambda: (0, 0))
    for (kind, _), (turns, size) in found.items():
        sums[kind] = sums[kind][0] + turns, sums[kind][1] + turns * size
    return dict(sums)


@pytest.mark.slow
def test_collectives_of_a_tpu_program_are_those_of_an_independent_count(tmp_path):
    """The quickstart under FSDP, whose loops over layers are the only ones: four turns."""
    found = run(SHARDED, "v5e-16", tmp_path)
    rows = {c["kind"]: (c["count"], c["num_bytes"]) for c in found["collectives"]}
    assert rows == counted(found["text"], num_turns=4)
    assert rows["all-gather"][0] > 0


PRODUCT = re.compile(r"__cublas|__cudnn| dot\(| convolution\(")
START = re.compile(
    r"%?(?P<name>[\w.\-]+) = (?P<shapes>.*?) (?P<kind>all-gather|reduce-scatter|all-reduce)-start\("
)


def large_collectives(text):
    """Return the kind, and the number of products until it ends, of those over 1 MB."""
    bodies, _ = computations(text)
    fused = {name for name, lines in bodies.items() if any(map(PRODUCT.search, lines))}

    def is_product(line):
        called = re.search(r"(calls|to_apply)=%?([\w.\-]+)", line)
        return bool(PRODUCT.search(line) or (called and called[2] in fused))

    found = []
    for lines in bodies.values():
        for i, line in enumerate(lines):
            if not (match := START.search(line)):
                continue
            done = re.compile(rf"-done\(.*%{re.escape(match['name'])}[^\w.]")
            (end,) = [j for j in range(i, len(lines)) if done.search(lines[j])]
            products = sum(map(is_product, lines[i + 1 : end]))
            if num_bytes(match["shapes"]) > 2**20:
                found.append((match["kind"], products))
    return found


@pytest.mark.slow
def test_unrolled_layers_exchange_beside_products(tmp_path):
    """Llama layers over eight H100s under FSDP."""
    found = large_collectives(run(OVERLAPPED, "h100:8", tmp_path))
    alone = [kind for kind, products in found if not products]
    # Nothing can run beside the first layer's parameters and the gradient of the embedding, which
    # is the last product of a step.
    assert sorted(alone) == sorted(set(alone)), "one of a kind"
    assert len(found) >= 10
    # Gradients that are combined into one or two collectives wait for the last of them.
    assert [kind for kind, _ in found].count("reduce-scatter") >= 4
