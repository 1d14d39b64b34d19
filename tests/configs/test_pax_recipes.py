"""Pax's decoders of C4, of GPT-3, for clouds, across slices and for GPUs: what its tables say.

`PUBLISHED` is what Paxml 1.4.0 has; billions are L (4 D N H + 2 D F) + V D, with positions.
"""

from __future__ import annotations

import dataclasses
import json
import math
import subprocess
import sys
import types
from pathlib import Path

import jax.numpy as jnp
import pytest

from luthier import graph as graphs
from luthier import layers
from luthier.cli import find_experiment
from tests.configs.pax_twins import mesh_sizes, num_devices, num_parameters

ROOT = Path(__file__).resolve().parents[2]
BF16, F32 = jnp.bfloat16, jnp.float32
FOREVER = 10_000_000


@dataclasses.dataclass(frozen=True)
class Row:
    """What Pax says of a configuration.

    Args:
      billions: Parameters.
      sizes: L, D, N, H, V; F is 4 D.
      rows: Of a global batch.
      within: Devices along the axes in use, in a slice.
      across: Slices along the axes in use.
      length: Tokens of a row.
      dtype: What is computed in.
      steps: Of the run.
      positions: Learned ones: a GPT; 0 is base model A.
    """

    billions: float
    sizes: tuple[int, ...]
    rows: int
    within: dict[str, int]
    across: dict[str, int] = dataclasses.field(default_factory=dict)
    length: int = 1024
    dtype: object = BF16
    steps: int = FOREVER
    positions: int = 0

    @property
    def parameters(self) -> int:
        """The closed form, with biases and norms, and rows that make the table divisible."""
        L, D, N, H, V = self.sizes
        matrices, mlp_biases, norms = 4 * D * N * H + 8 * D * D, 5 * D, 4 * D
        if not self.positions:
            return L * (matrices + mlp_biases + norms + H) + V * D + V + 2 * D
        shards = self.within.get("tensor", 1)
        rows = -(-V // shards) * shards + self.positions
        return L * (matrices + mlp_biases + norms + 3 * N * H + D) + rows * D + 2 * D


def gpt3(rows, within, *, billions=174.8, sizes=(96, 12_288, 96, 128, 51_200), **other):
    return Row(billions, sizes, rows, within, **{"length": 2048, "positions": 16_384} | other)


def slices(count, row, **other):
    return dataclasses.replace(row, rows=row.rows * count, across={"replica": count}, **other)


ONE_B = Row(1.10, (13, 2560, 20, 128, 32_000), 128, {"fsdp": 4})
B22 = Row(21.9, (48, 6144, 24, 256, 32_768), 1024, {"fsdp": 64})
B25 = Row(24.8, (24, 9216, 24, 384, 32_768), 1920, {"fsdp": 192})
B1 = Row(0.87, (16, 2048, 8, 256, 32_768), 64, {"fsdp": 4})
V5 = Row(32.5, (40, 8192, 32, 256, 32_768), 256, {"fsdp": 128}, length=2048)
CLOUD_2B = (18, 3072, 24, 128, 32_000)
TWO_LAYERS = Row(0.166, (2, 2048, 16, 128, 32_000), 128, {"fsdp": 4, "tensor": 2}, dtype=F32)
ORIGINAL = (96, 12_288, 96, 128, 50_257)
A126 = Row(
    0.1253,
    (12, 768, 12, 64, 50_304),
    256,
    {"replica": 8},
    {"replica": 8},
    length=2048,
    steps=600_000,
    positions=2048,
)
A5 = Row(
    5.05,
    (24, 4096, 32, 128, 50_304),
    2048,
    {"fsdp": 8},
    {"fsdp": 32},
    length=2048,
    steps=75_000,
    positions=2048,
)
A175 = dataclasses.replace(A5, billions=174.6, sizes=ORIGINAL, rows=1536)


def pipeline(rows, stage, fsdp, tensor, **other):
    return gpt3(rows, {"stage": stage, "fsdp": fsdp, "tensor": tensor}, **{"dtype": F32} | other)


MLPERF = "C4SpmdPipelineGpt3AdamMLPerfHP"
PUBLISHED = {
    "C4SpmdAdam": Row(1.27, (24, 2048, 32, 64, 32_128), 8, {"fsdp": 4, "tensor": 2}, dtype=F32),
    "C4Spmd1BAdam4Replicas": ONE_B,
    "C4Spmd1BAdam4ReplicasLimitSteps": dataclasses.replace(ONE_B, steps=15_000),
    "C4Spmd2BAdam4Replicas": Row(2.14, CLOUD_2B, 128, {"fsdp": 4}),
    "C4Spmd16BAdam32Replicas": Row(
        16.5, (36, 6144, 48, 128, 32_000), 512, {"fsdp": 16, "tensor": 2}
    ),
    "C4Spmd32BAdam64Replicas": Row(
        32.5, (40, 8192, 64, 128, 32_000), 512, {"fsdp": 16, "tensor": 4}
    ),
    "LmCloudSpmdAdam": TWO_LAYERS,
    "LmCloudSpmdAdamLimitSteps": dataclasses.replace(TWO_LAYERS, steps=4000),
    "C4SpmdGpt3AdamOrgHP": gpt3(8, {"fsdp": 4, "tensor": 2}, sizes=ORIGINAL, dtype=F32),
    "C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas": gpt3(1536, {"fsdp": 64, "tensor": 24}, dtype=F32),
    "C4SpmdGpt3L16AdamOrgHP": gpt3(
        192, {"fsdp": 16, "tensor": 4}, billions=29.8, sizes=(16, *ORIGINAL[1:])
    ),
    "C4SpmdPipelineGpt3AdamOrgHP": pipeline(8, 2, 2, 2, sizes=ORIGINAL),
    "C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas": pipeline(1536, 8, 8, 12),
    f"{MLPERF}BS1p5k768Replicas": pipeline(1536, 8, 8, 12),
    f"{MLPERF}BS2k512Replicas": pipeline(2048, 8, 8, 8),
    f"{MLPERF}BS3k768Replicas": pipeline(3072, 4, 16, 12),
    f"{MLPERF}BS4k1024Replicas": pipeline(4096, 8, 8, 16),
    f"{MLPERF}BS8k1024Replicas": pipeline(8192, 4, 16, 16),
    "C4SpmdPipelineGpt3SmallAdam8Replicas": pipeline(
        512, 2, 2, 2, billions=2.93, sizes=(24, 3072, 24, 128, 51_200), dtype=BF16
    ),
    "C4Spmd22BAdam1xv4_128": B22,
    "C4Spmd22BAdam2xv4_128": slices(2, B22),
    "C4Spmd22BAdam4xv4_128": slices(4, B22),
    "C4Spmd22BAdam1xv4_128LimitSteps": dataclasses.replace(B22, steps=300),
    "C4Spmd22BAdam2xv4_128LimitSteps": slices(2, B22, steps=300),
    "C4Spmd22BAdam4xv4_128LimitSteps": slices(4, B22, steps=300),
    "C4Spmd22BAdam1xv4_384": B25,
    "C4Spmd22BAdam2xv4_384": slices(2, B25),
    "C4Spmd22BAdam1xv4_8": B1,
    "C4Spmd22BAdam2xv4_8": slices(2, B1),
    "C4Spmd22BAdam4xv4_8": slices(4, B1),
    "C4Spmd22BAdam1xv4_8LimitSteps": dataclasses.replace(B1, steps=300),
    "C4Spmd22BAdam2xv4_8LimitSteps": slices(2, B1, steps=300),
    "C4Spmd22BAdam4xv4_8LimitSteps": slices(4, B1, steps=300),
    "C4Spmd32BAdam1xv5_256": V5,
    "C4Spmd32BAdam2xv5_256": slices(2, V5),
    "C4SpmdGpt3AdamDataParallel2x16x16": gpt3(
        256, {"fsdp": 16, "tensor": 16}, across={"replica": 2}, sizes=ORIGINAL, steps=100
    ),
    "LmCloudSpmd2B": Row(2.14, CLOUD_2B, 32, {"fsdp": 4}),
    "LmCloudSpmd2BLimitSteps": Row(2.14, CLOUD_2B, 32, {"fsdp": 4}, steps=300),
    "LmCloudSpmd32B": Row(32.5, (40, 8192, 64, 128, 32_000), 512, {"fsdp": 16, "tensor": 4}),
    "LmCloudSpmd64B": Row(64.5, (51, 10_240, 80, 128, 32_000), 512, {"fsdp": 16, "tensor": 8}),
    "LmCloudSpmd128B": Row(129.0, (71, 12_288, 96, 128, 32_000), 1024, {"fsdp": 64, "tensor": 4}),
    "LmCloudSpmd256B": Row(258.2, (80, 16_384, 128, 128, 32_000), 2048, {"fsdp": 64, "tensor": 8}),
    "LmCloudSpmd512B": Row(
        514.0, (102, 20_480, 160, 128, 32_000), 4096, {"fsdp": 64, "tensor": 16}
    ),
    "LmCloudSpmd1024B": Row(
        1030.0, (142, 24_576, 192, 128, 32_000), 4096, {"fsdp": 256, "tensor": 8}
    ),
    "LmCloudSpmdTest": Row(0.00218, (2, 64, 8, 8, 32_000), 4, {}),
    "LmCloudSpmdPipeline9B": Row(
        9.79, (48, 4096, 32, 128, 32_000), 512, {"stage": 16, "replica": 4}, dtype=F32
    ),
    "LmCloudSpmdPipeline175B": Row(
        174.3, (96, 12_288, 96, 128, 32_000), 96, {"tensor": 16}, {"stage": 8}, length=2048
    ),
    "LmCloudSpmdMultislice2B": Row(2.14, CLOUD_2B, 128, {"fsdp": 4}, {"replica": 2}),
    "LmCloudSpmdPipelineMultislice2B": Row(2.14, CLOUD_2B, 128, {"replica": 4}, {"stage": 2}),
    "LmCloudSpmdPipelineMultislice2BCircular": Row(
        2.14, CLOUD_2B, 128, {"replica": 4}, {"stage": 2}
    ),
    "GPT126M": A126,
    "Pile126M": A126,
    "GPT5B": A5,
    "Pile5B": A5,
    "GPT175B": A175,
    "Pile175B": A175,
}

# Rows of a microbatch, and how often each stage is visited.
MICROBATCHES = {
    "C4SpmdPipelineGpt3AdamOrgHP": (2, 1),
    "C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas": (8, 1),  # 2 in Pax, by a misspelling
    f"{MLPERF}BS1p5k768Replicas": (8, 1),
    f"{MLPERF}BS2k512Replicas": (8, 1),
    f"{MLPERF}BS3k768Replicas": (16, 1),
    f"{MLPERF}BS4k1024Replicas": (8, 1),
    f"{MLPERF}BS8k1024Replicas": (16, 1),
    "C4SpmdPipelineGpt3SmallAdam8Replicas": (8, 1),
    "LmCloudSpmdPipeline9B": (4, 1),
    "LmCloudSpmdPipeline175B": (2, 1),
    "LmCloudSpmdPipelineMultislice2B": (4, 1),
    "LmCloudSpmdPipelineMultislice2BCircular": (8, 3),
}

# Steps from one evaluation to the next, and from one checkpoint to the next, and how many are kept.
CADENCES = {
    "C4SpmdAdam": (100, 1000, 10),
    "C4Spmd1BAdam4Replicas": (100, 1000, 10),
    "C4Spmd22BAdam4xv4_128": (100, 1000, 10),
    "C4SpmdGpt3AdamOrgHP": (100, 100, 10),
    "C4SpmdGpt3AdamOrgHPBS1p5k1536Replicas": (25, 100, 100),
    "C4SpmdGpt3L16AdamOrgHP": (25_000, 100, 10),
    "C4SpmdPipelineGpt3AdamOrgHPBS1p5k768Replicas": (25, 50, 100),
    f"{MLPERF}BS1p5k768Replicas": (16, 32, 100),
    f"{MLPERF}BS2k512Replicas": (12, 24, 100),
    f"{MLPERF}BS3k768Replicas": (8, 16, 100),
    f"{MLPERF}BS4k1024Replicas": (6, 12, 100),
    f"{MLPERF}BS8k1024Replicas": (3, 6, 100),
    "C4SpmdPipelineGpt3SmallAdam8Replicas": (10, 200, 1000),
    "C4SpmdGpt3AdamDataParallel2x16x16": (100, 2000, 20),
    "GPT126M": (100, 5000, 10),
    "GPT5B": (100, 250, 10),
    "GPT175B": (100, 100, 10),
}

SAVED = ["query", "key", "value", "attention_context", "attention_output"]
REMAT = {
    "C4SpmdAdam": layers.SaveNamed(SAVED),
    "C4Spmd1BAdam4Replicas": layers.FullRemat(),
    "C4SpmdGpt3AdamOrgHP": layers.FullRemat(),
    "LmCloudSpmd2B": layers.FullRemat(),
    "LmCloudSpmd32B": layers.SaveNamed(SAVED[3:]),
    "LmCloudSpmd64B": layers.SaveNamed(SAVED[3:]),
    "GPT126M": layers.NoRemat(),
    "GPT5B": layers.SaveProjections(),
}


@pytest.fixture(scope="module")
def graph_of():
    made = {}

    def make(name):
        if name not in made:
            made[name] = graphs.resolve(find_experiment(name))
        return made[name]

    return make


@pytest.fixture(scope="module")
def count(graph_of):
    """Return a function that counts parameters, once for each model that differs."""
    counted = {}

    def find(name):
        model = graph_of(name).model
        key = graphs.to_json(model)
        if key not in counted:
            counted[key] = num_parameters(model)
        return counted[key]

    return find


@pytest.mark.parametrize("name", PUBLISHED)
def test_sizes_batch_and_mesh_are_those_of_the_table(name, graph_of, count):
    graph, row = graph_of(name), PUBLISHED[name]
    graphs.validate(graph)
    assert count(name) == row.parameters
    assert row.parameters / 1e9 == pytest.approx(row.billions, rel=0.005)
    training, model, rows = graph.training, graph.model, graph.training.global_batch_size
    parallelism = graphs.build(graph.parallelism)
    experiment = types.SimpleNamespace(parallelism=parallelism)
    assert mesh_sizes(experiment) == (row.within, {a: n for a, n in row.across.items() if n > 1})
    assert num_devices(experiment) == math.prod([*row.within.values(), *row.across.values()])
    assert graphs.evaluate(rows) == row.rows
    assert graphs.evaluate(training.steps) == row.steps
    assert graphs.evaluate(graph.data.length) == row.length
    assert model.dtype is row.dtype
    L, D, N, H, V = row.sizes
    attention, mlp = model.block.attention, model.block.mlp
    found = (model.num_layers, model.dim, attention.num_heads, attention.head_dim, model.vocab_size)
    assert tuple(map(graphs.evaluate, found)) == (L, D, N, H, V)
    assert graphs.evaluate(mlp.hidden_dim) == 4 * D


@pytest.mark.parametrize("name", MICROBATCHES)
def test_pipelines_are_those_of_the_table(name, graph_of):
    graph, row = graph_of(name), PUBLISHED[name]
    stack = graphs.build(graph.model.stack)
    rows, repeats = MICROBATCHES[name]
    assert (stack.microbatches, stack.schedule.repeats) == (row.rows // rows, repeats)
    assert (stack.remat, stack.stage_remat) == (layers.NoRemat(), layers.FullRemat())
    stages = (row.within | row.across)["stage"]
    problems = stack.problems(row.sizes[0], 1, row.rows, stages)
    assert problems == []


def test_all_that_have_stages_are_pipelines(graph_of):
    piped = [
        n for n in PUBLISHED if type(graphs.build(graph_of(n).model.stack)) is layers.Pipelined
    ]
    assert piped == list(MICROBATCHES)


@pytest.mark.parametrize("name", CADENCES)
def test_evaluations_and_checkpoints_come_as_in_the_table(name, graph_of):
    graph = graph_of(name)
    found = (
        graph.evaluations["validation"].every.count,
        graph.checkpoints.every.count,
        graph.checkpoints.keep_latest,
    )
    assert found == CADENCES[name]


@pytest.mark.parametrize("name", REMAT)
def test_what_is_kept_for_the_backward_pass(name, graph_of):
    assert graphs.build(graph_of(name).model.stack.remat) == REMAT[name]


def test_nothing_of_the_table_is_missing_and_nothing_is_besides():
    from luthier.cli import find_experiments as find

    own = ("c4", "gpt3", "cloud", "multislice", "gpu")
    found = [
        alias.name
        for listed in find(ROOT / "configs")
        for alias in listed.aliases
        if listed.reference.removeprefix("configs.pax.").startswith(own)
    ]
    assert sorted(found) == sorted(PUBLISHED)


_PLAN = """
import json, sys
import jax
jax.config.update("jax_num_cpu_devices", 2048)
from luthier import data, graph as graphs, planner
from luthier.cli import find_experiment
import fiddle as fdl
for name, devices in json.loads(sys.argv[1]).items():
    graph = graphs.resolve(find_experiment(name))
    length = graphs.evaluate(graph.data.length)
    graph.data = fdl.Config(data.Synthetic, vocab_size=512, length=length)
    graph.evaluations = {}
    plan = planner.make(graph, jax.devices()[:devices])
    print(json.dumps([name, plan.parameters, dict(plan.program.sizes)]))
"""


@pytest.mark.slow
def test_all_of_them_can_be_planned_on_their_devices():
    devices = {
        name: math.prod([*row.within.values(), *row.across.values()])
        for name, row in PUBLISHED.items()
    }
    command = [sys.executable, "-c", _PLAN, json.dumps(devices)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-3000:]
    planned = [json.loads(line) for line in done.stdout.splitlines()]
    assert [name for name, *_ in planned] == list(PUBLISHED)
    for name, parameters, sizes in planned:
        row = PUBLISHED[name]
        whole = {a: row.within.get(a, 1) * row.across.get(a, 1) for a in sizes}
        assert (parameters, sizes) == (row.parameters, whole), name
