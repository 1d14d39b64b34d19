import pytest

from luthier.planner import targets
from luthier.planner.roofline import roofline


def test_the_longest_term_binds():
    chip = targets.CHIPS["v5e"]
    found = roofline(
        chip,
        16,
        {"bfloat16": int(16 * 197e12)},
        traffic=int(2 * 819e9),
        link_bytes=int(0.5 * 90e9),
        network_bytes=0,
    )
    assert found.seconds_by_term == pytest.approx(
        {"compute": 1.0, "memory": 2.0, "links": 0.5, "network": 0.0}
    )
    assert (found.binding, found.step_seconds) == ("memory", pytest.approx(2.0))
    assert found.serial_seconds == pytest.approx(3.5)


def test_what_is_unknown_is_left_out():
    found = roofline(targets.CHIPS["h100"], 8, {"float32": 1, "bfloat16": 1})
    assert list(found.seconds_by_term) == ["compute"]
    assert found.step_seconds == pytest.approx(1 / 494.7e12 / 8 + 1 / 989.4e12 / 8)


def test_types_have_peaks_of_their_own():
    chip = targets.CHIPS["h100"]
    slow = roofline(chip, 1, {"float32": 10**12}, precision="highest").step_seconds
    assert slow == pytest.approx(1e12 / 66.9e12)
