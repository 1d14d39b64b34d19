import pytest

from luthier import graph as graphs
from luthier import optim, parallel, program, records
from luthier.durations import Seconds
from luthier.errors import ValidationError


@pytest.fixture(scope="module")
def graph():
    return graphs.resolve("configs.lm.quickstart")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.steps=0", "training.steps"),
        ("training.accumulation=3", "accumulation"),
        ("seed=-1", "seed"),
        ("evaluations.held_out.global_batch_size=0", "evaluations.held_out.global_batch_size"),
    ],
)
def test_values_out_of_range_are_named(graph, override, message):
    with pytest.raises(ValidationError, match=message):
        graphs.validate(graphs.apply(graph, [override]))


@pytest.mark.parametrize(
    ("field", "value", "shown"),
    [
        ("evaluations.held_out.weights", "ema", "EMA"),
        ("evaluations.held_out.weights", "EMA", "EMA"),
        ("precision.matmul", "highest", "HIGHEST"),
    ],
)
def test_choices_are_enums_by_name_or_value(graph, field, value, shown):
    changed = graphs.apply(graph, [f"{field}={value}"])
    assert graphs.get(changed, field).name == shown


def test_the_quickstart_is_valid_as_it_stands(graph):
    graphs.validate(graph)
    experiment = graphs.build(graph)
    assert experiment.training.steps == experiment.optimizer.learning_rate.total_steps


def test_what_need_not_be_written_is_on():
    """A short config saves, records, guards its steps, and shards by rules."""
    known = graphs.signatures.arguments(program.Experiment).defaults
    assert known["checkpoints"].every == Seconds(15 * 60)
    assert known["records"].console == records.Console()
    rules = known["parallelism"].rules
    assert rules.parameters == parallel.parameter_rules()
    assert rules.activations == parallel.activation_rules_table()
    known = graphs.signatures.arguments(program.Training).defaults
    assert known["guard"] == optim.Guard()
    assert known["divergence"] == program.Divergence()
