import dataclasses
import json
import platform

import pytest

from luthier.trainer import processes
from luthier.trainer.processes import HostTimes, Times, stragglers

USUAL = HostTimes(0, "n0", step_seconds=0.5, batch_seconds=0.02, device_seconds=0.004)


def _host(index, **changes):
    return dataclasses.replace(USUAL, process=index, host=f"n{index}", **changes)


def test_hosts_that_are_alike_are_not_named():
    assert stragglers([USUAL, _host(1, device_seconds=0.0045), _host(2, batch_seconds=0.1)]) == {}
    assert stragglers([USUAL, _host(1, device_seconds=None)]) == {}


def test_whoever_the_others_wait_for_is_named_with_what_it_takes():
    times = stragglers(
        [USUAL, _host(1, batch_seconds=0.48), _host(2), _host(3, device_seconds=0.01)]
    )
    assert times == {
        1: "process 1 of 4 on n1 is slow: its part of a batch takes 480 ms, that of the others "
        "20 ms, and a step 500 ms",
        3: "process 3 of 4 on n3 is slow: its devices take 10 ms for what takes the others 4 ms",
    }


@pytest.fixture
def times(tmp_path, monkeypatch):
    monkeypatch.setattr(processes, "EVERY_STEPS", 4)
    return Times(tmp_path / "hosts.jsonl")


def test_a_process_reports_its_times_every_so_many_batches(times, monkeypatch):
    clock = iter([10.0, 12.0, 13.0])
    monkeypatch.setattr(processes.time, "perf_counter", lambda: next(clock))
    times.begin(100, print)
    reports = [times.mine(seconds) for seconds in (0.1, 0.2, 0.3, 0.4, 1.0, 1.0, 1.0, 1.0)]
    assert reports[:3] == reports[4:7] == [None] * 3
    assert reports[3] == {
        "process": 0,
        "host": platform.node(),
        "step_seconds": 0.5,
        "batch_seconds": 0.25,
        "device_seconds": None,
    }
    assert (reports[7]["step_seconds"], reports[7]["batch_seconds"]) == (0.25, 1.0)


def _take_in(times, *hosts):
    for _ in range(4):
        times.mine(0.0)
    times.take_in([dataclasses.asdict(host) for host in hosts])


def test_a_straggler_is_reported_when_slow_twice_and_again_after_it_recovered(times, tmp_path):
    lines = []
    times.begin(100, lines.append)
    slow = _host(1, device_seconds=0.01)
    for hosts in [(USUAL, slow), (USUAL, _host(1)), (USUAL, slow)]:
        _take_in(times, *hosts)
    assert lines == [], "slow once is an accident"
    for _ in range(3):
        _take_in(times, USUAL, slow)
    assert len(lines) == 1
    assert lines[0].startswith("process 1 of 2 on n1 is slow: its devices take 10 ms")
    for hosts in [(USUAL, _host(1)), (USUAL, slow), (USUAL, slow)]:
        _take_in(times, *hosts)
    assert len(lines) == 2
    rows = [json.loads(line) for line in (tmp_path / "hosts.jsonl").read_text().splitlines()]
    assert [row["step"] for row in rows] == list(range(104, 137, 4))
    assert rows[0]["hosts"] == [dataclasses.asdict(USUAL), dataclasses.asdict(slow)]


@pytest.mark.full
def test_a_disk_that_refuses_is_reported_and_training_continues(tmp_path):
    lines = []
    lost = Times(tmp_path / "gone" / "hosts.jsonl")
    lost.begin(0, lines.append)
    lost.take_in([dataclasses.asdict(USUAL), dataclasses.asdict(_host(1))])
    (line,) = lines
    assert line.startswith(f"cannot write {tmp_path}/gone/hosts.jsonl: No such file or directory")
    assert line.endswith("; training continues")
