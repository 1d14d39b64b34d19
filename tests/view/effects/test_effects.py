from __future__ import annotations

import json

import jax
import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.records.events import Step
from luthier.records.metrics_file import encode_event
from luthier.view import effects
from luthier.view.effects.effects import quantities

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


def test_a_side_that_cannot_run_is_named():
    bad = _subject("other", "training.global_batch_size=0")
    with pytest.raises(BadInput) as caught:
        effects.effects((_subject("a"), bad))
    assert str(caught.value).startswith("training.global_batch_size: ")
    assert "(other)" in str(caught.value)
