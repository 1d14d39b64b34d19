"""Thirty faults of an experiment, each told by shapes alone, with its path and its remedy."""

import time

import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.plan import plan_here
from luthier.plan.targets import read

PIPELINED = "model.stack=luthier.layers.Pipelined(microbatches={})"

# What is wrong: overrides. What the line about it must hold: its path, and its remedy.
FAULTS = {
    "parallelism.mesh.fsdp=3": ("parallelism.mesh: ", "set parallelism.mesh.fsdp=2"),
    "parallelism.mesh.tensor=16": ("parallelism.mesh: ", "set parallelism.mesh.tensor=8"),
    "parallelism.mesh.sequence=3": ("parallelism.mesh: ", "set parallelism.mesh.sequence=2"),
    "parallelism.mesh.fsdp=-1": ("parallelism.mesh: ", "for example parallelism.mesh.fsdp=1"),
    "parallelism.mesh.fsdp=0": ("parallelism.mesh.fsdp: ", "give 1 or more, or -1"),
    "parallelism.mesh.across_slices.data=3": (
        "parallelism.mesh.across_slices: ",
        "use a multiple of 3 devices",
    ),
    "training.global_batch_size=12": ("training.global_batch_size: ", "use a multiple of 8"),
    "training.global_batch_size=0": ("training.global_batch_size: ", "1 <= global_batch_size"),
    "training.global_batch_size=16 training.accumulation=3": (
        "training: ",
        "global_batch_size % accumulation == 0",
    ),
    "training.global_batch_size=16 training.accumulation=4": (
        "training.global_batch_size: ",
        "use a multiple of 32",
    ),
    "evaluations.held_out.global_batch_size=60": (
        "evaluations.held_out.global_batch_size: ",
        "use a multiple of 8",
    ),
    "training.steps=0": ("training.steps: ", "Training needs 1 <= steps"),
    "model.vocab_size=100": ("model.vocab_size: ", "set model.vocab_size=258"),
    "model.vocab_size=259 model.embedding.pad_to_multiple=1 parallelism.mesh.tensor=2": (
        "embedding.table: ",
        "set its pad_to_multiple=2",
    ),
    "model.block.attention.num_heads=7 parallelism.mesh.tensor=4": (
        "model.block.attention: ",
        "set head_dim, or change dim or num_heads",
    ),
    "parallelism.mesh.tensor=4": (
        "blocks.attention.key.kernel: ",
        "make kv_heads a multiple of 4, parallelism.mesh.tensor=2",
    ),
    "model.block.attention.num_kv_heads=3": (
        "model.block.attention: ",
        "set num_kv_heads to a divisor of num_heads",
    ),
    "parallelism.rules.parameters.embed=('fdsp',)": (
        "parallelism.rules.parameters.embed: ",
        "did you mean fsdp?",
    ),
    "parallelism.rules.activations.batch=('rows',)": (
        "parallelism.rules.activations.batch: ",
        "it has stage, replica, data, fsdp, expert, sequence, tensor",
    ),
    "evaluations.held_out.weights=EMA": (
        "evaluations.held_out.weights: ",
        "set training.ema=Ema(decay=0.999), or weights=PARAMETERS",
    ),
    "checkpoints.keep_best:=luthier.metrics.Selector('held_in','loss')": (
        "checkpoints.keep_best.evaluation: ",
        "did you mean held_out?",
    ),
    "model.dims=3": ("model.dims: ", "did you mean model.dim?"),
    "model.block=None": ("model.block: ", "set one of its fields"),
    "model.block.mlp=luthier.layers.GatedMpl()": (
        "model.block.mlp: ",
        "did you mean luthier.layers.GatedMlp?",
    ),
    "model.stack=luthier.layers.Scanned(remat=luthier.layers.SaveNamed(names=['mlp_upp']))": (
        "model.stack.remat.names: ",
        "did you mean mlp_up or mlp_output?",
    ),
    "optimizer.b2=1.5": ("optimizer.b2: ", "adamw needs 0 <= b2 < 1"),
    "name=model-7b": ("name: ", "change the name or the model"),
    "training.trainable=luthier.optim.Matching('nothing')": (
        "training.trainable: ",
        "there are: blocks.attention.key.kernel",
    ),
    "task=luthier.tasks.Classification()": ("data: ", "it has inputs, targets"),
    f"{PIPELINED.format(2)} parallelism.mesh.stage=8 parallelism.mesh.data=1": (
        "model.num_layers: ",
        "use a multiple of 8 layers, or fewer stages",
    ),
    f"{PIPELINED.format(3)} parallelism.mesh.stage=4 parallelism.mesh.data=2": (
        "model.stack.microbatches: ",
        "set microbatches=4",
    ),
}


@pytest.fixture(scope="module")
def graph():
    return graphs.resolve("configs.lm.quickstart")


@pytest.mark.parametrize("words", FAULTS)
def test_a_fault_is_told_with_its_path_and_its_remedy(graph, words):
    start = time.process_time()
    with pytest.raises(BadInput) as caught:
        plan_here(graphs.apply(graph, words.split(" ")), read("v5e-8"), level="shapes")
    assert time.process_time() - start < 3
    path, remedy = FAULTS[words]
    lines = str(caught.value).splitlines()
    assert [line for line in lines if line.startswith(path) and remedy in line], lines


def test_there_are_thirty():
    assert len(FAULTS) >= 30
