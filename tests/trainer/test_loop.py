import math
import time

import pytest

from luthier import planner, trainer
from luthier.durations import Progress
from luthier.records import read_metrics
from luthier.trainer import (
    CompiledStep,
    Patience,
    Position,
    Request,
    Rise,
    Watcher,
    open_session,
)
from luthier.trainer.loop import _Memory


def test_a_position_survives_a_checkpoint():
    for position in (
        Position(),
        Position(Progress(3, 4, 0.5, 6.0), Patience(1.0, 2, 3), Rise(2.0, 1.0, 3, 4), "over", True),
    ):
        again = Position.from_dict(position.to_dict())
        assert again.to_dict() == position.to_dict()
        assert math.isnan(again.patience.best) == math.isnan(position.patience.best)


@pytest.mark.full
def test_a_rhythm_in_seconds_is_kept(tiny, tmp_path):
    often = "checkpoints.every:=luthier.durations.Seconds(1e-6)"
    more = ("training.steps=6", "optimizer.learning_rate.warmup_steps=1", "evaluations:={}")
    result = trainer.run(tiny(tmp_path, often, "checkpoints.keep_latest=10", *more))
    saved = sorted(
        int(path.parent.name) for path in result.directory.glob("checkpoints/*/commit.json")
    )
    # What the first step took is known two steps later, and counts from the next one on.
    assert saved == [4, 5, 6]


@pytest.mark.full
def test_steps_that_are_read_together_have_the_time_that_they_took(tiny, tmp_path):
    graph = tiny(tmp_path)  # evaluated at steps 4, 8, 12, saved at 5 and 10: steps wait for none
    plan = planner.make(graph)

    class Slow(CompiledStep):
        def __call__(self, state, batch):
            time.sleep(0.03)  # the host is the bottleneck: the step itself takes a millisecond
            return super().__call__(state, batch)

    request = Request(directory=tmp_path / "run")
    with open_session(graph, plan, Slow(plan.program), request, Watcher()) as session:
        session.run()
    steps = read_metrics(tmp_path / "run" / "metrics.jsonl")
    assert len(steps) == 12
    assert min(row["step_seconds"] for row in steps) >= 0.03
    assert max(row["steps_per_second"] for row in steps) <= 1 / 0.03


def test_memory_is_read_now_and_then():
    class Device:
        asked = 0

        def memory_stats(self):
            self.asked += 1
            return {"peak_bytes_in_use": 1000 * self.asked}

    device = Device()
    memory = _Memory([device, Device()])
    found = [memory.peak_bytes(now) for now in (5.0, 5.01, 5.05, 5.2, 5.25, 9.0)]
    assert found == [1000, 1000, 1000, 2000, 2000, 3000]
    assert device.asked == 3
