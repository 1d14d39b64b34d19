"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("6f968b14c0274cc3", "2ae7e63787b53cb9"),
    "configs.lm.bpe": ("fa85ab8bb41e6d41", "289f47741d9e554b"),
    "configs.lm.families": ("477641f7b61396b8", "bf20c99264b77599"),
    "configs.lm.families:mistral": ("8968a02e8a161a8f", "7260ecb9d77d69ad"),
    "configs.lm.families:gpt2": ("cab6f7d76c6a99ef", "64194e773da98a8c"),
    "configs.lm.families:gemma": ("602c6935ec0d3be6", "5aa8e92bf2398743"),
    "configs.lm.families:qwen": ("5ed0978d80411f77", "784b36a41782b1b9"),
    "configs.lm.families:olmo": ("cc94be8deba68d7e", "1c0296dd5e9bc1a2"),
    "configs.lm.preferences": ("350bbc9de05033a0", "560cf070c5d3ef12"),
    "configs.seq2seq.translation": ("72b167bc26f3a7e2", "37c980e40ffd8fd3"),
    "configs.vision.digits": ("74d8620de9233a5c", "cd013c29266c0a3d"),
    "configs.vision.digits:resnet": ("b387db4069c2d4d7", "e050f48a60b23071"),
    "configs.vision.mnist5k": ("b27bb7f8fcdc0142", "8eb05a29f07d27a6"),
    "configs.vision.mnist5k:resnet": ("029e56e2b36bfea7", "2d3ba1e0f0063e3a"),
    "configs.series.forecast": ("b0fa30d77b8273ce", "474be826cc840bbc"),
}


WITH_RULES = ("configs.lm.quickstart", "configs.lm.bpe", "configs.lm.families")


def with_defaults(graph, reference):
    """Set what need not be written: parallelism, guard, console."""
    rules = fdl.Config(
        parallel.Rules,
        parameters=parallel.parameter_rules(),
        activations=parallel.activation_rules_table(),
    )
    mesh = fdl.Config(parallel.Mesh)
    graph.parallelism = fdl.Config(parallel.Parallelism, mesh=mesh)
    if reference.startswith(WITH_RULES):
        graph.parallelism.rules = rules
    graph.training.guard = fdl.Config(optim.Guard)
    graph.records.console = fdl.Config(records.Console)
    graph.records.wandb.project = "luthier"
    return graph


@pytest.mark.parametrize("reference", FINGERPRINTS)
def test_the_fingerprints_are_those_of_the_written_out_form(reference):
    graph = graphs.resolve(reference)
    program, record = FINGERPRINTS[reference]
    assert graphs.fingerprint(graph, "program").startswith(program)
    assert graphs.fingerprint(with_defaults(graph, reference)).startswith(record)
