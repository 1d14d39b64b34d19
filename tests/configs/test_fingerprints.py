"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("7c1c7b2980d601f1", "2cba2800e0fcec33"),
    "configs.lm.bpe": ("36d92b9ccde933ad", "fc281108ad5eed80"),
    "configs.lm.families": ("d15551c01d345093", "bb6ee04dacdd36d5"),
    "configs.lm.families:mistral": ("a268673ebb1095c2", "034818df7aec2091"),
    "configs.lm.families:gpt2": ("09860ded53a14e15", "43d3a4c829754fb7"),
    "configs.lm.families:gemma": ("de11563adefd45e0", "d643cad716ddae0f"),
    "configs.lm.families:qwen": ("1e0d9604c9545ea8", "0c1bb619ebc1f8c5"),
    "configs.lm.families:olmo": ("7f86c9207b4b5cad", "806fe465795ea46a"),
    "configs.lm.preferences": ("e175a26fc92a5c5c", "2216cbb6a9714f6b"),
    "configs.seq2seq.translation": ("b0fca1f87f1de2d9", "c26864c9f27bb939"),
    "configs.vision.digits": ("c1c6f33ffc3659be", "f3131cb4bb859011"),
    "configs.vision.digits:resnet": ("31b78fefd3ae28e3", "fcdaa364959aad57"),
    "configs.vision.mnist5k": ("e12fb9dc5a5d2ff0", "241cd10e040b181d"),
    "configs.vision.mnist5k:resnet": ("a30e44574177ba9a", "e8e460afd5cb2aa7"),
    "configs.series.forecast": ("67631f9f3c84455e", "bed876309925623e"),
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
