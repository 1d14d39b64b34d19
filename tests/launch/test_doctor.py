import dataclasses
import platform

import jax
import pytest

from luthier.errors import RunError
from luthier.launch import Examination, doctor, examine, findings
from luthier.launch.doctor import DiskRates
from luthier.parallel import distributed


def test_a_disk_is_written_and_read_and_left_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(doctor, "_BYTES", 8 << 20)
    rates = doctor.disk_rates(tmp_path / "runs" / "of" / "mine")
    assert 1e5 < rates.write < 1e12
    assert 1e5 < rates.read < 1e12
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_refuses_is_one_line(tmp_path, monkeypatch):
    def full(**_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(doctor.tempfile, "TemporaryFile", full)
    with pytest.raises(RunError) as refusal:
        doctor.disk_rates(tmp_path)
    assert str(refusal.value) == (
        f"cannot write {tmp_path}: No space left on device; free space on that disk, then rerun "
        "the same command"
    )


@pytest.fixture
def asked(monkeypatch):
    """Return what is told to the others, who are not there."""
    found = []
    monkeypatch.setattr(distributed, "is_several", lambda: True)
    monkeypatch.setattr(distributed, "gather", found.append)
    return found


def test_a_shared_folder_is_found_by_a_file_in_it(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(distributed, "from_primary", lambda make: make())
    assert doctor.is_shared(tmp_path / "runs")
    assert (asked, list(tmp_path.iterdir())) == ([None], [])


def test_a_folder_of_its_own_lacks_the_file_of_process_0(tmp_path, monkeypatch, asked):
    monkeypatch.setattr(distributed, "from_primary", lambda make: ".luthier-doctor-elsewhere")
    assert not doctor.is_shared(tmp_path)
    assert asked == [None]


def test_alone_every_folder_is_that_of_process_0(tmp_path):
    assert doctor.is_shared(tmp_path)


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(doctor, "_SECONDS", 0.01)
    monkeypatch.setattr(doctor, "_NUM_SUMS", 1)


def test_rates_of_a_device_are_those_of_a_machine():
    device = jax.devices()[0]
    assert 1e8 < doctor.matmul_flops(device) < 1e16
    assert 1e7 < doctor.memory_rate(device) < 1e14


def test_a_sum_takes_several_devices():
    rate = doctor.all_reduce_rate(jax.devices()[:2])
    assert rate is not None
    assert 1e5 < rate < 1e13
    assert doctor.all_reduce_rate(jax.devices()[:1]) is None


def test_a_call_is_repeated_and_what_it_takes_is_the_mean(monkeypatch):
    clock = iter([10.0, 10.004, 10.008, 10.012])
    monkeypatch.setattr(doctor.time, "perf_counter", lambda: next(clock))
    calls = []
    assert doctor._seconds(calls.append, 1) == pytest.approx(0.004)
    assert calls == [1] * 4


WELL = Examination(0, "n0", "8 x TPU v5e", 1.5e14, 7e11, 9e10, 5e8, 6e8, True, 0.0, 0.0)


def _host(index, **changes):
    return dataclasses.replace(WELL, process=index, host=f"n{index}", **changes)


def test_hosts_that_are_alike_are_well():
    assert findings([WELL]) == []
    assert findings([WELL, _host(1, matmul_flops=1.4e14), _host(2, disk_read_bytes=5e8)]) == []


def test_what_is_ill_is_named_with_its_figures():
    hosts = [
        WELL,
        _host(1, matmul_flops=1.0e14),
        _host(2, memory_bytes=4e11, disk_write_bytes=1e8),
        _host(3, clock_skew_seconds=-3.21, clock_uncertainty_seconds=0.1, sees_directory=False),
        _host(4, clock_skew_seconds=1.05, clock_uncertainty_seconds=0.2),
        _host(5, clock_skew_seconds=61.0, clock_uncertainty_seconds=0.2),
    ]
    assert findings(hosts) == [
        "process 1 on n1: its product of matrices is slow: 100 TFLOP/s, the others 150",
        "process 2 on n2: its memory is slow: 400 GB/s, the others 700",
        "process 2 on n2: writing to its disk is slow: 100 MB/s, the others 500",
        "process 3 on n3: the directory is on a disk of its own, not on that of process 0",
        "process 3 on n3: its clock is 3.2 s behind that of process 0",
        "process 5 on n5: its clock is 61.0 s ahead of that of process 0",
    ]


@pytest.fixture
def rates(monkeypatch):
    asked = []

    def rate(device):
        asked.append(device)
        return 100.0 - len(asked)

    monkeypatch.setattr(doctor, "matmul_flops", rate)
    monkeypatch.setattr(doctor, "memory_rate", rate)
    monkeypatch.setattr(doctor, "all_reduce_rate", lambda devices: 7.0 * len(devices))
    monkeypatch.setattr(doctor, "disk_rates", lambda place: DiskRates(1.0, 2.0))
    return asked


def test_a_host_examines_itself(rates, tmp_path):
    (found,) = examine(tmp_path)
    assert (found.process, found.host, found.devices) == (0, platform.node(), "8 x cpu")
    assert (found.matmul_flops, found.memory_bytes, found.all_reduce_bytes) == (99.0, 98.0, 56.0)
    assert (found.disk_write_bytes, found.disk_read_bytes, found.sees_directory) == (1.0, 2.0, True)
    assert len(rates) == 2, "virtual devices share the cores of one machine"


def test_all_hosts_get_what_all_found(rates, tmp_path, monkeypatch):
    monkeypatch.setattr(distributed, "is_several", lambda: True)
    monkeypatch.setattr(doctor, "is_shared", lambda place: False)
    gathered = []

    def gather(value):
        gathered.append(value)
        # Of measurements the other process has its own; of problems, as few as this one.
        return [value, {**value, "process": 1} if isinstance(value, dict) else value]

    for module in (distributed, distributed.messages):
        monkeypatch.setattr(module, "gather", gather)
        monkeypatch.setattr(module, "is_several", lambda: True)
    first, second = examine(tmp_path)
    assert (first.process, second.process) == (0, 1)
    assert not first.sees_directory
