import math

import pytest

from luthier import trainer
from luthier.errors import TrainingStopped
from luthier.program import Divergence
from luthier.trainer import Rise

RULE = Divergence(rise=1.0, patience_steps=4)


def steps_until_diverged(losses, rise):
    for step, loss in enumerate(losses, start=1):
        if rise.observe(RULE, step, loss):
            return step
    return None


def test_a_loss_that_rises_for_good_is_found_once_it_has_been_high_for_a_while():
    rise = Rise()
    losses = [5.0, 4.0, 3.0, 2.0, 2.0, 2.0, 2.0, 2.0] + [9.0] * 10
    assert steps_until_diverged(losses, rise) == 12, "four steps after the first at 9"
    assert rise.describe(RULE, 12) == (
        "step 12: the loss (6.959, smoothed) has been more than 1 above its best (2.549 at step 8) "
        "for 4 steps. Go back to a checkpoint of before step 8, with a lower "
        "optimizer.learning_rate"
    )


def test_a_spike_and_what_is_not_finite_are_none():
    rise = Rise()
    losses = [2.0] * 20 + [9.0] + [2.0] * 20 + [math.nan, math.inf] * 20 + [2.0] * 5
    assert steps_until_diverged(losses, rise) is None
    assert math.isfinite(rise.smoothed)


@pytest.mark.full
def test_it_survives_a_checkpoint():
    for rise in (Rise(), Rise(2.0, 1.5, 7, 3)):
        again = Rise.from_dict(rise.to_dict())
        assert again.to_dict() == rise.to_dict()
    whole, first = Rise(), Rise()
    losses = [3.0, 2.0, 1.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    for step, loss in enumerate(losses):
        whole.observe(RULE, step, loss)
        first = Rise.from_dict(first.to_dict())
        first.observe(RULE, step, loss)
    assert first == whole


@pytest.mark.slow
def test_a_run_ends_when_its_loss_has_risen_and_again_at_the_same_step(tiny, tmp_path):
    diverging = (
        "optimizer.learning_rate.peak=3.0",
        "training.divergence:=luthier.program.Divergence(rise=0.01, patience_steps=3)",
        "checkpoints.every.count=2",
        "evaluations:={}",
    )
    messages = []
    for _ in range(2):
        with pytest.raises(TrainingStopped, match=r"above its best .* for 3 steps") as error:
            trainer.run(tiny(tmp_path, *diverging))
        messages.append(str(error.value))
    assert messages[0] == messages[1], "the run that goes on from its checkpoint comes to the same"
