"""Numbers of steps that are written in epochs."""

import types

import pytest

from luthier import graph as graphs
from luthier.errors import ValidationError
from luthier.program import with_known_steps

DATA = "data:=luthier.data.Synthetic(vocab_size=258, length=32, num_rows=1000)"
STEPS = "training.steps"
TOTAL = "optimizer.learning_rate.total_steps"


def made(*overrides):
    graph = graphs.resolve("configs.lm.quickstart")
    return graphs.apply(graph, [DATA, "training.global_batch_size=8", *overrides])


def numbers(graph, *paths):
    return [graphs.evaluate(graphs.get(graph, path)) for path in paths]


@pytest.mark.parametrize(
    ("epochs", "steps"), [("3", 375), ("0.1", 13), ("1e-3", 1), ("2.0008", 251), ("2", 250)]
)
def test_steps_are_the_first_after_which_the_epochs_have_been_read(epochs, steps):
    graph = made(f"training.steps=Epochs({epochs})", "optimizer.learning_rate.warmup_steps:=0")
    graphs.validate(graph)
    assert numbers(with_known_steps(graph), STEPS, TOTAL) == [steps, steps]


def test_schedules_that_share_the_steps_follow_and_parts_of_them_may_be_in_epochs():
    graph = made("training.steps=Epochs(3)")
    graphs.validate(graph)
    warmup = "optimizer.learning_rate.warmup_steps"
    assert numbers(with_known_steps(graph), STEPS, TOTAL, warmup) == [375, 375, 31]
    graph = graphs.apply(graph, [f"{warmup}:=Epochs(0.5)"])
    assert numbers(with_known_steps(graph), STEPS, warmup) == [375, 63]
    graph = graphs.apply(graph, ["training.global_batch_size=16"])
    assert numbers(with_known_steps(graph), STEPS, warmup) == [188, 32]


def test_the_config_its_record_and_its_fingerprint_keep_what_was_written():
    graph = made("training.steps=Epochs(3)")
    before = graphs.to_json(graph)
    assert with_known_steps(graph) is not graph
    assert graphs.to_json(graph) == before
    assert graphs.equal(graphs.from_json(before), graph)
    more = graphs.apply(graph, ["data.num_rows=2000"])
    assert numbers(with_known_steps(more), STEPS) == [750]
    assert graphs.render(graph).count("Epochs(3) (shared as steps)") == 2
    plain = made("training.steps=375")
    assert with_known_steps(plain) is plain
    assert graphs.fingerprint(plain) != graphs.fingerprint(graph)


def test_a_duration_stays_a_duration():
    graph = made("training.stop=Epochs(2)", "checkpoints.every=Epochs(1)")
    assert with_known_steps(graph) is graph


def test_a_number_replaces_epochs_and_epochs_a_number_that_is_not_shared():
    graph = made("training.steps:=2000", "training.steps=Epochs(8)")
    assert numbers(with_known_steps(graph), STEPS, TOTAL) == [1000, 900]
    graph = graphs.apply(graph, ["training.steps=7"])
    assert numbers(graph, STEPS) == [7]


def test_what_does_not_go_with_the_data_is_refused_in_one_line():
    with pytest.raises(ValidationError) as caught:
        with_known_steps(
            made("training.steps=Epochs(2)"), types.SimpleNamespace(num_rows=float("inf"))
        )
    line = "training.steps: Epochs(2) cannot be counted in steps: the data has no end"
    assert str(caught.value).startswith(f"{line} [set by argument 3: training.steps=Epochs(2)]")
    short = made("training.steps=Epochs(0.1)", "optimizer.learning_rate.warmup_steps=20")
    graphs.validate(short)
    with pytest.raises(ValidationError, match="warmup_steps < total_steps, and total_steps = 13"):
        with_known_steps(short)
    with pytest.raises(ValidationError, match=r"training\.steps: Epochs needs a finite count > 0"):
        with_known_steps(made("training.steps=Epochs(-1)"))


@pytest.mark.parametrize("fiddler", ["debug", "tiny"])
def test_smoke_test_configs_of_it_take_a_few_steps(fiddler):
    graph = made("training.steps=Epochs(3)", "optimizer.learning_rate.warmup_steps:=60")
    small = graphs.apply(graph, [f"fiddler:{fiddler}"], shelves=["luthier.recipes"])
    graphs.validate(small)
    steps, total, warmup = numbers(small, STEPS, TOTAL, "optimizer.learning_rate.warmup_steps")
    assert warmup < total == steps <= 20
