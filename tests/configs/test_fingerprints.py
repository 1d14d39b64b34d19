"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("31fa3e879dc19efe", "1749764a0463087d"),
    "configs.lm.bpe": ("2a8cfb8d553c044f", "db0856194ef7009b"),
    "configs.lm.families": ("d0427cadb10f9b34", "4400411b994cd897"),
    "configs.lm.families:mistral": ("add2cb026f9c380e", "97c7c92a6495425c"),
    "configs.lm.families:gpt2": ("b3952ea68d586545", "09b8e2ef2a8d923d"),
    "configs.lm.families:gemma": ("7b55084d3ef95967", "f7aa72ee20664cbb"),
    "configs.lm.families:qwen": ("440d3b742c7f9a9a", "26b85e49c77fb2c7"),
    "configs.lm.families:olmo": ("629146b4d3cdd620", "dc4f9f3b12f7f95a"),
    "configs.lm.preferences": ("14249bf566e16acd", "7ddcc584ad4fc461"),
    "configs.seq2seq.translation": ("82224b276758a551", "d30528668302545f"),
    "configs.vision.digits": ("7e32d793cb7c427f", "883cb8bd93c02d92"),
    "configs.vision.digits:resnet": ("b387db4069c2d4d7", "e050f48a60b23071"),
    "configs.vision.mnist5k": ("dd9109b6f317a23a", "274141d3f2f560fb"),
    "configs.vision.mnist5k:resnet": ("029e56e2b36bfea7", "2d3ba1e0f0063e3a"),
    "configs.series.forecast": ("6c5dfc53a7e9c966", "97dd2fd78f5df5f7"),
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
