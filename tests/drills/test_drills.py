"""Every fault that can be staged here is found, costs no more than it must, and is got over."""

import pytest
from drilling import Unstageable, drills
from staging import Stage

CASES = [(drill, count) for drill in drills() for count in drill.processes]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("drill", "processes"), CASES, ids=[f"{drill.name}-{count}" for drill, count in CASES]
)
def test_drill(machine, truths, tmp_path, drill, processes):
    try:
        outcome = drill.play(Stage(machine, tmp_path / "stage", processes), truths)
    except Unstageable as reason:
        pytest.skip(str(reason))
    assert outcome.lost >= 0


def test_there_are_enough_drills_and_each_has_a_name_of_its_own():
    known = list(dict.fromkeys(drill for drill, _ in CASES))
    assert len(known) >= 25
    assert (
        len({drill.name for drill in known}) == len({drill.fault for drill in known}) == len(known)
    )
    assert {count for _, count in CASES} == {1, 2, 4}
