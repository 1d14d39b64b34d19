"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("bde89131845f2d28", "d9f5a52837fcbb3f"),
    "configs.lm.bpe": ("bdbe05fe08b3d102", "a1d824183dee05d4"),
    "configs.lm.families": ("ce1b89baa773f0b9", "5397476952f758d5"),
    "configs.lm.families:mistral": ("a0aae16256a12425", "a81b23bd38485159"),
    "configs.lm.families:gpt2": ("13b3cdaeeacdb89f", "4c6667d89c6a5ac6"),
    "configs.lm.families:gemma": ("87900988ca1c9d57", "2e1c235d552c4046"),
    "configs.lm.families:qwen": ("e7e26d86fb49bbd8", "2954817474888026"),
    "configs.lm.families:olmo": ("d85a4cf3075e8a14", "909d5cf1a762e011"),
    "configs.lm.preferences": ("918417ca72f2922e", "7cda16fd47c5db8c"),
    "configs.seq2seq.translation": ("557576dea255b20f", "10bc8d295c5946bb"),
    "configs.vision.digits": ("e134287d74b56abd", "fdb43547ca64195c"),
    "configs.vision.digits:resnet": ("6656ef59cf200de0", "c51ab6ef07ec0eb0"),
    "configs.vision.mnist5k": ("270943bd03a91cec", "a08fac1852f47438"),
    "configs.vision.mnist5k:resnet": ("78c65ba5a06f6b54", "fc7a0c3618a50839"),
    "configs.series.forecast": ("83e8cc980c56aa76", "b11788959b41732c"),
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
