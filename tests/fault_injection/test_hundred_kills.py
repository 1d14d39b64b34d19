"""One run that is killed a hundred times ends in the very state of a run that is not."""

import random
import signal
import time

import pytest
from staging import EVERY, Stage, compare

KILLS = 100
STEPS = "training.steps=3000"


@pytest.mark.slow
@pytest.mark.timeout(5400)
def test_a_hundred_random_kills(machine, truths, tmp_path, record_property):
    truth = truths.of(1, STEPS)
    stage = Stage(machine, tmp_path / "killed")
    rng = random.Random()
    lost, inside_saves, while_starting, seconds_to_start = [], 0, 0, 5.0
    for kill in range(KILLS):
        before = stage.last_step()
        newest = max(stage.saved(), default=0)
        started = stage.start(STEPS)
        if kill % 5 == 4:
            # At any moment, which may be that of reading the checkpoint or of mending the record.
            started.ended.wait(rng.uniform(0, seconds_to_start))
        else:
            # Steps that a restart takes again stand in the record once, so the file shrinks first.
            stage.until(lambda: max(stage.saved(), default=0) > newest, started)  # noqa: B023
            seconds_to_start = time.monotonic() - started.began_at
            started.ended.wait(rng.uniform(0, 0.5))
        committed = max(stage.saved(), default=0)
        started.send(signal.SIGKILL)
        assert started.wait() == -signal.SIGKILL, f"kill {kill + 1}: it ended by itself"
        after = max(stage.saved(), default=0)
        assert after >= committed, "a kill costs no committed checkpoint"
        while_starting += stage.last_step() == before
        lost.append(stage.last_step() - after)
        folders = stage.folder.glob("runs/drilled/*/checkpoints/*")
        inside_saves += any(not (path / "commit.json").exists() for path in folders)
    reached = max(stage.saved())
    assert reached < 3000, "all kills came before the end"
    stage.train(STEPS, seconds=1200)
    assert stage.began() == reached
    assert compare(stage, truth) == "bit-identical"
    assert max(lost) <= 2 * EVERY, (
        "an interval, and what was trained while the next save was under way"
    )
    summary = {
        "kills inside a save": inside_saves,
        "kills before the first new step": while_starting,
        "restarts that trained": len(stage.rows("header")),
        "most steps lost": max(lost),
        "mean steps lost": sum(lost) / KILLS,
    }
    print(summary)
    for name, value in summary.items():
        record_property(name, value)
