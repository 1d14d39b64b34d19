"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("1bfd66d7bc00c009", "108e8d4a029e7d29"),
    "configs.lm.bpe": ("54c03186a5c2744f", "734b12ec399ce83d"),
    "configs.lm.families": ("90bf91976575be36", "7d62b99dabe1d422"),
    "configs.lm.families:mistral": ("34d1e31b8543eaef", "6479a0be153d3001"),
    "configs.lm.families:gpt2": ("36e4e5081596ccf7", "ac03410fcd2e1cfb"),
    "configs.lm.families:gemma": ("2bef2904e0f803ec", "bef07be7900ad975"),
    "configs.lm.families:qwen": ("1ad9b9329b72a946", "f08bf19adc43e215"),
    "configs.lm.families:olmo": ("6101c151037d1c21", "4cb07f742364a1f3"),
    "configs.lm.preferences": ("f070e78f905647c3", "37f1aa8cfcde6ae2"),
    "configs.seq2seq.translation": ("75ba5d82c05ae676", "90d64be13a752306"),
    "configs.vision.digits": ("1ed7423d223f8928", "07f8aebfb14a8677"),
    "configs.vision.digits:resnet": ("7d4814c0ff26b514", "a952bc7fe3d1ec51"),
    "configs.vision.mnist5k": ("64fffc82c7e00e98", "b51a8e9012d055c3"),
    "configs.vision.mnist5k:resnet": ("c20efed59faa71aa", "2a284b04f26c3122"),
    "configs.series.forecast": ("29ebbaeb3d3a8d7d", "2ed52a0f92d3095b"),
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
