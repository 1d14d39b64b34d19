import dataclasses

import jax

from luthier.planner import cpu_chip, device_facts
from luthier.planner.device_facts import PEAK_FLOPS


@dataclasses.dataclass
class Device:
    device_kind: str
    platform: str


def test_a_known_device_has_its_data_sheet():
    facts = device_facts(Device("NVIDIA H100 80GB HBM3", "gpu"), 8)
    assert (facts.peak_flops, facts.source) == (989.4e12, "data sheet")


def test_an_unknown_device_says_so():
    facts = device_facts(Device("Abacus 3000", "gpu"), 1)
    assert (facts.peak_flops, facts.source) == (None, "unknown")


def test_virtual_cpu_devices_share_the_measured_peak():
    one, eight = (device_facts(jax.devices()[0], n) for n in (1, 8))
    assert one.source == "measured"
    assert 1e8 < one.peak_flops < 1e14
    assert eight.peak_flops == one.peak_flops / 8


def test_the_table_is_in_flops_per_second():
    assert all(1e13 < peak < 1e16 for peak in PEAK_FLOPS.values())


def test_a_virtual_device_of_the_cpu_is_a_chip():
    chip = cpu_chip(8)
    assert chip.peak("float32") == device_facts(jax.devices()[0], 8).peak_flops
    assert chip.platform == "cpu"
    assert 2**20 < chip.limit_bytes < 2**45
