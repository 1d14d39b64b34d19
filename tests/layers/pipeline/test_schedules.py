import numpy as np
import pytest

from luthier.layers import Circular, GPipe, bubble_fraction, num_ticks

CASES = [
    (GPipe(), 2, 2),
    (GPipe(), 4, 8),
    (Circular(1), 4, 8),
    (Circular(2), 2, 4),
    (Circular(3), 4, 4),
    (Circular(4), 4, 12),
]


def visits(schedule, stages, microbatches):
    """Return {(microbatch, repeat, stage): tick} of all work."""
    found = {}
    for tick in range(num_ticks(schedule, stages, microbatches)):
        for stage in range(stages):
            microbatch, repeat = schedule.work(tick - stage, stages)
            if tick >= stage and microbatch < microbatches:
                assert (microbatch, repeat, stage) not in found
                found[microbatch, repeat, stage] = tick
    return found


@pytest.mark.parametrize(("schedule", "stages", "microbatches"), CASES)
def test_every_microbatch_visits_every_block_in_order(schedule, stages, microbatches):
    found = visits(schedule, stages, microbatches)
    assert len(found) == microbatches * schedule.repeats * stages
    for microbatch in range(microbatches):
        ticks = [
            found[microbatch, repeat, stage]
            for repeat in range(schedule.repeats)
            for stage in range(stages)
        ]
        assert np.diff(ticks).tolist() == [1] * (len(ticks) - 1), "never waits, is never early"


@pytest.mark.parametrize(("schedule", "stages", "microbatches"), CASES)
def test_the_bubble_is_what_no_stage_works_in(schedule, stages, microbatches):
    busy = len(visits(schedule, stages, microbatches))
    places = num_ticks(schedule, stages, microbatches) * stages
    assert bubble_fraction(schedule, stages, microbatches) == pytest.approx(1 - busy / places)


def test_published_bubbles():
    # Huang et al. 2018, section 2.3: (K - 1) / (M + K - 1), small for M >= 4 K.
    assert bubble_fraction(GPipe(), 4, 16) == pytest.approx(3 / 19)
    # Narayanan et al. 2021, section 2.2: v rounds make the idle time over the ideal v times less.
    plain, rounds = (bubble_fraction(s, 8, 32) for s in (GPipe(), Circular(4)))
    assert plain / (1 - plain) == pytest.approx(4 * rounds / (1 - rounds))
    assert bubble_fraction(GPipe(), 1, 8) == 0


def test_work_of_arrays_of_ticks():
    microbatch, repeat = Circular(2).work(np.arange(8), 2)
    assert microbatch.tolist() == [0, 1, 0, 1, 2, 3, 2, 3]
    assert repeat.tolist() == [0, 0, 1, 1, 0, 0, 1, 1]
