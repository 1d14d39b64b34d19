"""The experiments that most people open keep their fingerprints, however they are written."""

import fiddle as fdl
import pytest

from luthier import graph as graphs
from luthier import optim, parallel, records

# The first digits of the fingerprints of the program, by which runs are found again, and of the
# record, where the defaults of `with_defaults` are written out.
FINGERPRINTS = {
    "configs.lm.quickstart": ("713bcedb97c2c6f9", "7b901f2b3325a3b3"),
    "configs.lm.bpe": ("4ee947f1f055540b", "5fe4a995edc09859"),
    "configs.lm.families": ("18a24afe454273d4", "86b039670ddde7c6"),
    "configs.lm.families:mistral": ("0e6f9d23db848b60", "c4dc5dc0a0a40548"),
    "configs.lm.families:gpt2": ("a5793f3f12e05136", "385ec22f15adfa47"),
    "configs.lm.families:gemma": ("2901a616fb9fec3d", "e00bd7051e4de0bf"),
    "configs.lm.families:qwen": ("7c9f8edde4f81575", "76b2eab8f7dd3c41"),
    "configs.lm.families:olmo": ("daed3c20d8675b65", "0d198590966c0e06"),
    "configs.lm.preferences": ("0785cb57513e8611", "48f4b2f96a85e2d0"),
    "configs.seq2seq.translation": ("428a4d5a4504086e", "015ac4cbd70e8759"),
    "configs.vision.digits": ("6e23759cdc5ce511", "433fa01f54580302"),
    "configs.vision.digits:resnet": ("7b360acce166b9e5", "dfdff41e001d6230"),
    "configs.vision.mnist5k": ("b3c373ea75f88cfc", "da1ec0f9257e55ed"),
    "configs.vision.mnist5k:resnet": ("62618274c64fb207", "6fe7ec866fe85316"),
    "configs.series.forecast": ("c97466005d0e382e", "ca44947f9f92ae48"),
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
