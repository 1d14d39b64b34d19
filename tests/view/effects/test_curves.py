from __future__ import annotations

import math

import pytest

from luthier import optim
from luthier.records.events import Evaluation, Step
from luthier.records.metrics_file import encode_event
from luthier.view.effects import facts


def _optimizer(schedule, **others):
    return optim.Optimizer(None, schedule, others)


def test_every_step_of_a_short_run_is_a_point():
    schedule = optim.WarmupLinear(peak=1.0, warmup_steps=2, total_steps=4)
    found = facts.learning_rates(_optimizer(schedule), 4)
    assert found == {"learning rate": [(0, 0.0), (1, 0.5), (2, 1.0), (3, 0.5)]}


def test_a_long_run_has_both_ends_and_a_number_is_constant():
    found = facts.learning_rates(_optimizer(optim.Constant(0.5), head=optim.Constant(0.25)), 10**6)
    assert set(found) == {"learning rate", "head"}
    steps = [step for step, _ in found["head"]]
    assert (steps[0], steps[-1], len(steps)) == (0, 10**6 - 1, facts.NUM_POINTS)
    assert {value for _, value in found["head"]} == {0.25}


def _write(path, events):
    import json

    lines = [json.dumps(encode_event(event, 5.0, event.step)) for event in events]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_what_was_recorded_is_read_by_name(tmp_path):
    path = _write(
        tmp_path / "metrics.jsonl",
        [
            Step(1, {"loss": 3.0, "mfu": 0.4, "tokens": 8, "learning_rate": 0.1}),
            Step(2, {"loss": math.nan}),
            Evaluation(2, "held_out", {"loss": 2.5}),
            Step(3, {"loss": 2.0}),
        ],
    )
    assert facts.metrics(path) == {"loss": [(1, 3.0), (3, 2.0)], "held_out/loss": [(2, 2.5)]}
    assert facts.metrics(tmp_path / "nothing") == {}


def test_many_points_become_means_of_stretches(tmp_path):
    count = 20 * facts.NUM_POINTS
    events = [Step(step, {"loss": float(step % 2)}) for step in range(1, count + 1)]
    points = facts.metrics(_write(tmp_path / "metrics.jsonl", events))["loss"]
    assert len(points) == 2 * facts.NUM_POINTS
    assert points[-1] == (count, pytest.approx(0.5))


def test_curves_of_both_sides_stand_under_one_name():
    found = facts.overlaid([{"a": [(0, 1.0)], "b": [(0, 2.0)]}, {"a": [(0, 3.0)]}])
    assert found == {
        "a": [
            {"side": 0, "name": "a", "points": [[0, 1.0]]},
            {"side": 1, "name": "a", "points": [[0, 3.0]]},
        ],
        "b": [{"side": 0, "name": "b", "points": [[0, 2.0]]}],
    }
