import dataclasses
import json
import sys
import time
import types

import jax
import pytest

from luthier.planner import cpu_chip, device_facts
from luthier.planner.device_facts import PEAK_FLOPS

# The facade has a function of the module's name.
module = sys.modules["luthier.planner.device_facts"]


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


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache folder, and a process that has not measured anything yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    module._measured_cpu_peak.cache_clear()
    yield tmp_path / "luthier" / "devices"
    module._measured_cpu_peak.cache_clear()


def test_a_cpu_is_measured_once_per_machine(cache, monkeypatch):
    first = cpu_chip(1).peak("float32")
    (file,) = cache.iterdir()
    record = json.loads(file.read_text())
    assert record["float32_flops_per_second"] == first
    assert record["how"].startswith("best of at most 5 products")
    assert record["load_average"] >= 0
    module._measured_cpu_peak.cache_clear()  # as another process
    monkeypatch.setattr(module, "_measure_cpu", lambda: 1.0)
    assert cpu_chip(1).peak("float32") == first


@pytest.mark.parametrize("text", ["", "{}", '{"float32_flops_per_second": -1}', "[]"])
def test_a_damaged_measurement_is_made_again(cache, monkeypatch, text):
    monkeypatch.setattr(module, "_measure_cpu", lambda: 3e9)
    assert cpu_chip(1).peak("float32") == 3e9
    (file,) = cache.iterdir()
    file.write_text(text)
    module._measured_cpu_peak.cache_clear()
    monkeypatch.setattr(module, "_measure_cpu", lambda: 4e9)
    assert cpu_chip(1).peak("float32") == 4e9
    assert json.loads(file.read_text())["float32_flops_per_second"] == 4e9


def test_a_busy_machine_does_not_make_a_cpu_slower(cache, monkeypatch):
    """Others have them for 90 % of the time: 10 s by the clock, and 2 x 1 s of processor time."""
    clock, processor = iter(range(0, 1000, 10)), iter(range(0, 200, 2))
    fake = types.SimpleNamespace(
        perf_counter=lambda: float(next(clock)),
        process_time=lambda: float(next(processor)),
        strftime=time.strftime,
    )
    monkeypatch.setattr(module, "time", fake)
    monkeypatch.setattr(module, "_num_cores", lambda: 2)
    assert cpu_chip(1).peak("float32") == 2 * 1024**3 / 1.0
