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


def test_kernels_of_a_gpu_run_one_after_the_other_at_the_rates_that_programs_reach():
    """As of GPT-2 (124M) on one H200: FLOPs and bytes of the compiled step; 79.8 ms measured."""
    chip, flops = targets.CHIPS["h200"], {"bfloat16": 21 * 10**12, "float32": 5 * 10**12}
    moved = {"traffic": 145 * 10**9, "product_traffic": 61 * 10**9}
    found = roofline(chip, 1, flops, **moved)
    compute, memory = found.seconds_by_term["compute"], found.seconds_by_term["memory"]
    assert compute == pytest.approx((21e12 / 989.4e12 + 5e12 / 494.7e12) / 0.66)
    assert memory == pytest.approx(145e9 / 4800e9 / 0.84)
    assert found.step_seconds == pytest.approx(compute + 84e9 / 4800e9 / 0.84)
    assert found.step_seconds == pytest.approx(0.0798, rel=0.2)
    assert (found.binding, found.is_bound, found.grade) == ("compute", False, "measured")
    assert [(row["of"], row["runs_as"]) for row in found.ceilings] == [
        ("bfloat16", "bfloat16"),
        ("float32", "tfloat32"),
        ("memory", "memory"),
    ]
    # Products that are small are bound by memory, too.
    small = roofline(chip, 1, {"bfloat16": 10**9}, **moved)
    assert small.step_seconds == pytest.approx(memory)
    assert roofline(targets.CHIPS["h100"], 1, flops, **moved).grade == "derived"


def test_a_time_is_a_bound_where_products_alone_decide_at_their_peak():
    gpu, tpu = targets.CHIPS["h200"], targets.CHIPS["v5e"]
    flops = {"bfloat16": 10**14}
    assert roofline(gpu, 1, flops).is_bound
    assert roofline(gpu, 1, flops).grade == "published"
    assert not roofline(gpu, 1, flops, traffic=1, product_traffic=1).is_bound
    assert roofline(tpu, 1, flops, traffic=1).is_bound
    assert not roofline(tpu, 1, flops, traffic=10**13).is_bound
