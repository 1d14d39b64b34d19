import pytest

from luthier.planner import GpuChip, TpuChip, targets


def test_every_row_has_a_source_and_plausible_numbers():
    for name, chip in targets.CHIPS.items():
        assert name == chip.name
        assert chip.source
        assert 2**32 < chip.memory_bytes < 2**39
        assert 1e11 < chip.memory_bandwidth < 1e13
        assert 1e13 < chip.peak_flops["bfloat16"] < 1e16
        assert chip.network_bandwidth < chip.link_bandwidth < chip.memory_bandwidth
        assert 0.7 < chip.usable <= 1
        assert isinstance(chip, TpuChip | GpuChip)


def test_the_limit_is_what_a_program_can_have():
    assert targets.CHIPS["v5e"].limit_bytes == int(15.75 * 2**30)
    assert targets.CHIPS["h100"].limit_bytes == 84_942_979_072 * 3 // 4


@pytest.mark.parametrize(
    ("chip", "dtype", "precision", "expected"),
    [
        ("v4", "bfloat16", "default", 275e12),
        ("v4", "float32", "default", 275e12),
        ("v4", "float32", "highest", 275e12 / 6),
        ("v4", "int8", "default", 275e12),
        ("h100", "float32", "default", 494.7e12),
        ("h100", "float32", "highest", 66.9e12),
        ("h100", "float16", "default", 989.4e12),
        ("h100", "float64", "default", 66.9e12),
    ],
)
def test_the_peak_depends_on_type_and_precision(chip, dtype, precision, expected):
    assert targets.CHIPS[chip].peak(dtype, precision) == pytest.approx(expected)
