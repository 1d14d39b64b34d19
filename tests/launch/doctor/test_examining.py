import platform

import pytest

from luthier.launch import doctor
from luthier.launch.doctor import DiskRates, examine
from luthier.parallel import distributed


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
        return [value, {**value, "process": 1}] if value else [[], []]

    for module in (distributed, distributed.messages):
        monkeypatch.setattr(module, "gather", gather)
        monkeypatch.setattr(module, "is_several", lambda: True)
    first, second = examine(tmp_path)
    assert (first.process, second.process) == (0, 1)
    assert not first.sees_directory
