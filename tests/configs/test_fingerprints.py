"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("8fef6a00a8cbb554", "58f4031c152b1fd0"),
    "configs.lm.bpe": ("66921cf6ba72529f", "6833d56088e45aa1"),
    "configs.lm.families": ("a39d3139d558c29f", "f1aabe71acc47e79"),
    "configs.lm.families:mistral": ("6cf014c4cb041ee5", "3ca11395473116d0"),
    "configs.lm.families:gpt2": ("a919b2f44db5b333", "0080b1b5db1cab37"),
    "configs.lm.families:gemma": ("4067893dbebe7c14", "f5674a3b3d93f8c2"),
    "configs.lm.families:qwen": ("50aa9f892ed21dd5", "6e08c32dd558d4f1"),
    "configs.lm.families:olmo": ("06548adf900e8850", "9d7c629073d28dc5"),
    "configs.lm.preferences": ("62932cdff7447e4f", "a086082f776f6f15"),
    "configs.seq2seq.translation": ("e6dc6b69f66f35a3", "13b683a808b34a59"),
    "configs.vision.digits": ("65f8e4ac694dcb29", "8e451618f4a8a5c0"),
    "configs.vision.digits:resnet": ("f827cc9a54701a1e", "df442fd9d199527a"),
    "configs.vision.mnist5k": ("1b9f6eea139634f0", "6b7fa554241c114d"),
    "configs.vision.mnist5k:resnet": ("a26dd5e7b50948a7", "35aec4e22bc9bf13"),
    "configs.series.forecast": ("89da029c60deefe5", "89dda8ecf1ff5375"),
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
