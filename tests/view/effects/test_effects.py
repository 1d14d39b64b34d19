from __future__ import annotations

import dataclasses
import json

import jax
import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.records import Step, encode_event
from luthier.view import effects
from luthier.view.effects import checkpoint, facts_of, quantities, recompile_verdict

DEVICES = jax.devices()[:1]


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def _graph(*overrides):
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), ["model.num_layers=1", *overrides])


def _subject(title, *overrides, metrics_path=None):
    return effects.EffectSubject(title, _graph(*overrides), DEVICES, metrics_path)


@pytest.mark.full
def test_numbers_of_both_sides_are_plain_json(tmp_path):
    found = effects.effects((_subject("a"), _subject("b", "model.num_layers=2")))
    assert json.loads(json.dumps(found)) == found
    by_name = {(q["group"], q["name"]): q for q in found["quantities"]}
    blocks = by_name["parameters", "blocks"]
    assert blocks["after"] == 2 * blocks["before"]
    optimizer, parameters = by_name["state", "optimizer"], by_name["state", "parameters"]
    for side in ("before", "after"):  # two moments, and the number of updates
        assert optimizer[side] == 2 * parameters[side] + 4
    assert by_name["each device", "in all"]["note"] == "of 1 x cpu"
    kernel = by_name["arrays", "parameters/blocks.mlp.up.kernel"]
    assert (kernel["before"], kernel["after"]) == (
        "float32[1, 128, 384]",
        "float32[2, 128, 384]",
    )
    assert [verdict["name"] for verdict in found["verdicts"]] == ["checkpoint", "recompile"]


def test_schedules_and_records_are_charts(tmp_path):
    paths = []
    for number in range(2):
        path = tmp_path / f"{number}.jsonl"
        path.write_text(json.dumps(encode_event(Step(1, {"loss": 3.0 - number}), 5.0, 1)) + "\n")
        paths.append(path)
    sides = [_subject("a", metrics_path=p) for p in paths]
    charts = effects.effects((sides[0], sides[1]))["charts"]
    assert [chart["title"] for chart in charts] == ["learning rate", "loss"]
    assert [series["points"] for series in charts[1]["series"]] == [[[1, 3.0]], [[1, 2.0]]]
    assert {len(series["points"]) for series in charts[0]["series"]} == {200}
    # Metrics of one side alone have nothing to be laid over.
    (chart,) = effects.effects((sides[0], _subject("b")))["charts"]
    assert chart["title"] == "learning rate"


def test_what_a_side_lacks_is_none():
    facts = effects.facts_of(_graph(), DEVICES)
    averaged = effects.facts_of(_graph("training.ema=luthier.optim.Ema(decay=0.9)"), DEVICES)
    found = {(q.group, q.name): q for q in quantities(facts, averaged)}
    assert (found["state", "ema"].before, found["state", "ema"].after) == (
        None,
        averaged.state_bytes["ema"],
    )


def test_the_trained_parameters_have_the_masks_of_both_sides_as_a_note():
    facts = effects.facts_of(_graph(), DEVICES)
    masked = dataclasses.replace(facts, trainable="**.lora")

    def note(*sides):
        return next(q.note for q in quantities(*sides) if q.name == "trained")

    assert note(facts, facts) == ""
    assert note(facts, masked) == "all -> **.lora"
    assert note(masked, masked) == "**.lora"


def test_a_side_that_cannot_run_is_named():
    bad = _subject("other", "training.global_batch_size=0")
    with pytest.raises(BadInput) as caught:
        effects.effects((_subject("a"), bad))
    assert str(caught.value).startswith("training.global_batch_size: ")
    assert "(other)" in str(caught.value)


DEVICES_VERDICTS = jax.devices()[:1]


@pytest.fixture(scope="module")
def graph():
    return graphs.apply(graphs.resolve("configs.lm.quickstart"), ["model.num_layers=1"])


@pytest.fixture(scope="module")
def facts(graph):
    return facts_of(graph, DEVICES_VERDICTS)


def _judged(graph, facts, *overrides):
    other = graphs.apply(graph, overrides)
    both, of_both = (graph, other), (facts, facts_of(other, DEVICES_VERDICTS))
    return checkpoint(both, of_both), recompile_verdict(both, of_both, DEVICES_VERDICTS)


@pytest.mark.full
def test_names_and_records_change_nothing(graph, facts):
    checkpoint, recompile = _judged(graph, facts, "name=other", "records.wandb=None")
    assert (checkpoint.severity, recompile.severity) == ("ok", "ok")
    assert checkpoint.text == "yes: a run of the first can continue with the second"
    assert recompile.text == "no: both compile to the same step"


def test_a_hyperparameter_is_trained_with_from_there_on_and_can_be_hoisted(graph, facts):
    checkpoint, recompile = _judged(graph, facts, "optimizer.b2=0.9")
    assert checkpoint.severity == "ok"
    assert checkpoint.text.splitlines()[1].startswith("- ~ optimizer.b2: 0.98 -> 0.9")
    assert (recompile.severity, recompile.text) == (
        "ok",
        "yes; but in a sweep one step serves both, because these enter as arguments:\n"
        "- optimizer.b2",
    )


def test_another_size_fits_no_checkpoint_and_is_another_program(graph, facts):
    checkpoint, recompile = _judged(graph, facts, "model.num_layers=2")
    assert (checkpoint.severity, recompile.severity) == ("warn", "warn")
    first, second, *_, last = checkpoint.text.splitlines()
    assert first == "no: a checkpoint of the first does not fit the second:"
    assert second == (
        "- parameters/blocks.attention.key.kernel: is float32[1, 128, 2, 32] in the first, "
        "float32[2, 128, 2, 32] in the second"
    )
    assert last == "- and 24 more"
    assert recompile.text.splitlines()[0] == "yes: the shapes in the step differ:"


def test_an_array_of_one_side_is_listed_with_the_name_of_that_side(graph, facts):
    more = {"parameters/extra": {"shape": [2], "dtype": "float32", "spec": ""}}
    wider = dataclasses.replace(facts, arrays={**facts.arrays, **more})
    text = checkpoint((graph, graph), (facts, wider), ("lm.small", "lm.wide")).text
    assert text.splitlines()[1:] == ["- parameters/extra: is only in lm.wide"]


def test_another_seed_cannot_be_continued_with(graph, facts):
    checkpoint, _ = _judged(graph, facts, "seed=7")
    assert checkpoint.severity == "warn"
    assert "the random streams would change" in checkpoint.text


def test_another_function_is_a_constant_of_the_step(graph, facts):
    _, recompile = _judged(graph, facts, "model.block.mlp.activation=jax.nn.relu", "name=other")
    assert recompile.text == ("yes: these are constants of the step:\n- model.block.mlp.activation")


def test_a_number_that_a_step_cannot_take_as_an_argument_is_a_constant_with_the_reason(graph):
    path = "model.bias.buckets.max_distance"  # of whose logarithm Python takes part
    graph = graphs.apply(graph, ["model.bias=RelativeBias(4, PastBuckets())"])
    _, recompile = _judged(graph, facts_of(graph, DEVICES_VERDICTS), f"{path}=64")
    assert recompile.severity == "warn"
    first, line = recompile.text.splitlines()
    assert first == "yes: these are constants of the step:"
    assert line.startswith(f"- {path}: TracerBoolConversionError: ")


def test_another_batch_is_of_other_shapes(graph, facts):
    _, recompile = _judged(graph, facts, "training.global_batch_size=16")
    assert "- batch inputs: int32[8, 128] before, int32[16, 128] after" in recompile.text


@pytest.mark.full
def test_steps_reshape_schedules(graph, facts):
    checkpoint, _ = _judged(graph, facts, "training.steps=90")
    assert "with --extend" in checkpoint.text
    assert "optimizer.learning_rate.total_steps (900 -> 90)" in checkpoint.text
