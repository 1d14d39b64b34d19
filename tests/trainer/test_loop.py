import math

import pytest

from luthier import trainer
from luthier.durations import Progress
from luthier.trainer import Patience, Position, Rise
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
