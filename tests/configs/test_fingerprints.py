"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("bde89131845f2d28", "48b17d59fc1e52c4"),
    "configs.lm.bpe": ("bdbe05fe08b3d102", "46b98d96bf649ad4"),
    "configs.lm.families": ("ce1b89baa773f0b9", "9d6640418659e099"),
    "configs.lm.families:mistral": ("a0aae16256a12425", "f72267cb7f3c97b4"),
    "configs.lm.families:gpt2": ("13b3cdaeeacdb89f", "f0351a98b4be8fc0"),
    "configs.lm.families:gemma": ("87900988ca1c9d57", "5163ee961f7c3dee"),
    "configs.lm.families:qwen": ("e7e26d86fb49bbd8", "9b0521568c266f63"),
    "configs.lm.families:olmo": ("d85a4cf3075e8a14", "f54f9ec3c5f3a300"),
    "configs.lm.preferences": ("918417ca72f2922e", "4cd24fa1f36a983c"),
    "configs.seq2seq.translation": ("557576dea255b20f", "e5062479f383064b"),
    "configs.vision.digits": ("e134287d74b56abd", "026586bd616f6420"),
    "configs.vision.digits:resnet": ("6656ef59cf200de0", "17cddbd4d1d73bec"),
    "configs.vision.mnist5k": ("270943bd03a91cec", "01e7b30a5ac1a257"),
    "configs.vision.mnist5k:resnet": ("78c65ba5a06f6b54", "c530f2a5bbaa7e36"),
    "configs.series.forecast": ("83e8cc980c56aa76", "d0b297a2bd22aa0c"),
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
