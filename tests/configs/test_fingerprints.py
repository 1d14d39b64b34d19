"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("465c5b233a6b6337", "0b970d488542f0da"),
    "configs.lm.bpe": ("1d636f96d0bdcaed", "9cf7ced98a881edd"),
    "configs.lm.families": ("d2f2dcd63a0c003f", "1ad5515e4b61d531"),
    "configs.lm.families:mistral": ("a465b40529718a4d", "0abe5d13aeaf7400"),
    "configs.lm.families:gpt2": ("3a64ba7cebdaa444", "24c5f8231b7a8b33"),
    "configs.lm.families:gemma": ("20d83bb9e894b082", "a018e5f04740e2a1"),
    "configs.lm.families:qwen": ("959ae4efee82ae7c", "225ee427590aba69"),
    "configs.lm.families:olmo": ("8bb7b9a8cedccfa3", "34d72a6ed9c5d098"),
    "configs.lm.preferences": ("d3f7b933496a2c6c", "34c396f6a5eaedfb"),
    "configs.seq2seq.translation": ("632249e2f9d6b8d6", "2e61e7cfadaca3df"),
    "configs.vision.digits": ("5274565d1414343b", "06ff524ded0a5656"),
    "configs.vision.digits:resnet": ("12d71f6c19933c94", "b357ea704fa89923"),
    "configs.vision.mnist5k": ("d31497416a46b99b", "c6b2c7430ac3dc48"),
    "configs.vision.mnist5k:resnet": ("d3bb38c85dd87f44", "626fd67564b82ba6"),
    "configs.series.forecast": ("ea29c211fb125937", "2246cb931e00e613"),
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
