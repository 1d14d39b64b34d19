"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("4b778ae5196cc115", "a905026cab8994dd"),
    "configs.lm.bpe": ("a317461bdf18cb83", "265cd130d411e865"),
    "configs.lm.families": ("f00103a52c8abd7e", "7db410290775a4f0"),
    "configs.lm.families:mistral": ("598a57460e5fa80d", "f4c9ab995bffaa6a"),
    "configs.lm.families:gpt2": ("6e09d99c041e82ae", "912d5eedfc6be22b"),
    "configs.lm.families:gemma": ("2ad652cf0dfb8e4d", "bd1ff6b537f14c03"),
    "configs.lm.families:qwen": ("7e236d1fb036b4cf", "18f91bf4ad3def31"),
    "configs.lm.families:olmo": ("02140bc39d642c78", "09d23d67c7647251"),
    "configs.lm.preferences": ("aa3502d2ca23c040", "7cacbc18b08de350"),
    "configs.seq2seq.translation": ("c484bbd137e1f7b3", "a5d89aee4f040494"),
    "configs.vision.digits": ("8ce5b46542922632", "83efebaef749cd69"),
    "configs.vision.digits:resnet": ("12d71f6c19933c94", "b357ea704fa89923"),
    "configs.vision.mnist5k": ("45c25af4d6f38ce3", "1d6774375208009a"),
    "configs.vision.mnist5k:resnet": ("d3bb38c85dd87f44", "626fd67564b82ba6"),
    "configs.series.forecast": ("8a36e1398948210e", "a22753355ecedbff"),
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
