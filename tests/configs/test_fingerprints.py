"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("eb2da9040103d3de", "1d4de831f77885f1"),
    "configs.lm.bpe": ("0223498c7d43f32f", "a1bac41bf14b34ad"),
    "configs.lm.families": ("75f3f6683c72971a", "22dbdfb5e5d8d1a2"),
    "configs.lm.families:mistral": ("635079b5a52309d7", "2a4a3e4cc0669dbb"),
    "configs.lm.families:gpt2": ("410f63d739296e61", "1af18e49d3279b14"),
    "configs.lm.families:gemma": ("990064d88662d194", "a3416d74fb947b66"),
    "configs.lm.families:qwen": ("1dd1502c02607dae", "320eddbdbedb4413"),
    "configs.lm.families:olmo": ("47bc89d3ac31943a", "43a5944cfd3da605"),
    "configs.lm.preferences": ("72f88e3ee42d0a0a", "13cb2bbce62c700a"),
    "configs.seq2seq.translation": ("fbb1ee8745af1ff1", "8ed54eccfaac7a58"),
    "configs.vision.digits": ("e52aa69b78c8d983", "a562ed7c81cd6d60"),
    "configs.vision.digits:resnet": ("31b78fefd3ae28e3", "fcdaa364959aad57"),
    "configs.vision.mnist5k": ("cb6b7dd8d552dadd", "a53c5f18670cae81"),
    "configs.vision.mnist5k:resnet": ("a30e44574177ba9a", "e8e460afd5cb2aa7"),
    "configs.series.forecast": ("918c968d024f00e6", "65bc8f25bfdcf0f1"),
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
