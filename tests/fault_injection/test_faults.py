"""Every fault that can be staged here is found, costs no more than it must, and is got over."""

import pytest
from injecting import Unstageable, injections
from staging import Stage

CASES = [(injection, count) for injection in injections() for count in injection.processes]


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("injection", "processes"),
    CASES,
    ids=[f"{injection.name}-{count}" for injection, count in CASES],
)
def test_fault(machine, truths, tmp_path, injection, processes):
    try:
        outcome = injection.play(Stage(machine, tmp_path / "stage", processes), truths)
    except Unstageable as reason:
        pytest.skip(str(reason))
    assert outcome.lost >= 0


def test_there_are_enough_drills_and_each_has_a_name_of_its_own():
    known = list(dict.fromkeys(injection for injection, _ in CASES))
    assert len(known) >= 25
    assert (
        len({injection.name for injection in known})
        == len({injection.fault for injection in known})
        == len(known)
    )
    assert {count for _, count in CASES} == {1, 2, 4}
