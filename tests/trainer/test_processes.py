"""Agreement of processes at every batch, checks between them, and slow hosts."""

import dataclasses
import json
import platform
import threading
import time

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from luthier import graph as graphs
from luthier.parallel import distributed
from luthier.trainer import (
    Agreed,
    Agreeing,
    HostTimes,
    Probe,
    Times,
    check_devices,
    check_same,
    stragglers,
)


@pytest.fixture
def times(tmp_path):
    return Times(tmp_path / "hosts.jsonl")


def test_alone_it_says_what_it_knows(times):
    agreeing = Agreeing(lambda: "interrupted", times)
    agreeing.seconds = 2.5
    assert agreeing(7, lambda: False) == Agreed(7, 2.5, "interrupted")
    assert agreeing.batches == 1


def test_tokens_are_added_the_clock_is_the_primarys_and_any_process_may_stop(monkeypatch, times):
    def exchange(self, mine, decide, give_up):
        assert not give_up()
        others = [(5, None, None, ""), (6, "preempted", None, ""), (7, "interrupted", None, "")]
        return decide([mine, *others])

    agreeing = Agreeing(lambda: None, times)
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    agreeing.seconds = 1.5
    assert agreeing(4, threading.Event().is_set) == Agreed(22, 1.5, "preempted")


def test_times_travel_with_the_batches(monkeypatch, times):
    def exchange(self, mine, decide, give_up):
        return decide([mine, (5, None, None if mine[2] is None else {"process": 1}, "")])

    taken = []
    agreeing = Agreeing(lambda: None, times)
    monkeypatch.setattr(distributed.Rounds, "exchange", exchange)
    monkeypatch.setattr(times, "mine", lambda seconds: {"took": seconds} if seconds else None)
    monkeypatch.setattr(times, "take_in", taken.append)
    for seconds in (0.0, 0.25, 0.0):
        agreeing(4, lambda: False, seconds)
    assert taken == [[{"took": 0.25}, {"process": 1}]]


@pytest.fixture
def compared(monkeypatch):
    """Return what is compared, as in several processes."""
    compared = []
    monkeypatch.setattr(distributed, "is_several", lambda: True)
    monkeypatch.setattr(distributed, "agree", lambda facts: compared.append(dict(facts)))
    return compared


def test_the_experiment_the_versions_and_the_source_are_compared(compared, tiny, tmp_path):
    graph = tiny(tmp_path)
    check_same(graph, ["configs"])
    (facts,) = compared
    hashes = [graphs.fingerprint(graph, kind=kind)[:12] for kind in ("record", "program")]
    assert facts["the experiment"] == "{} (program {})".format(*hashes)
    assert {"the version of jax", "the version of luthier", "the version of Python"} <= set(facts)
    assert {"the source of luthier", "the source of configs"} <= set(facts)
    check_same(graphs.apply(graph, ["checkpoints.every.count=6"]))
    assert compared[1]["the experiment"] != facts["the experiment"]


def test_devices_are_compared(compared):
    check_devices()
    assert compared == [{"its devices": "8 x cpu"}]


@pytest.mark.full
def test_one_process_has_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(distributed, "agree", lambda facts: pytest.fail("compared"))
    monkeypatch.setattr(
        "luthier.trainer.processes.read_facts", lambda packages: pytest.fail("read")
    )
    check_same(None)
    check_devices()


@pytest.fixture
def vector():
    mesh = Mesh(np.asarray(jax.devices()[:2]), ("data",))
    return jax.device_put(jnp.ones(5), NamedSharding(mesh, PartitionSpec()))


def _until(condition):
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def test_the_first_step_only_compiles_and_later_ones_are_timed(vector):
    found = []
    probe = Probe(found.append)
    probe.start(vector)
    _until(lambda: not probe._busy)
    assert found == []
    for number in (1, 2):
        probe.start(vector)
        _until(lambda: not probe._busy)
        assert len(found) == number
    assert all(0 < seconds < 30 for seconds in found)
    probe.close()
    assert "luthier-probe" not in {thread.name for thread in threading.enumerate()}


@pytest.mark.full
def test_nobody_waits_for_a_probe_that_is_still_being_timed(vector):
    found, go_on = [], threading.Event()

    def slow(seconds):
        found.append(seconds)
        go_on.wait(30)

    probe = Probe(slow)
    probe.start(vector)
    _until(lambda: not probe._busy)
    for _ in range(3):
        probe.start(vector)
    _until(lambda: found)
    assert len(found) == 1
    go_on.set()
    probe.close()
    assert len(found) == 1


@pytest.mark.full
def test_a_probe_that_never_began_ends_at_once():
    Probe(print).close()


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
        1: "process 1 of 4 on n1 is slow: preparing its part of a batch takes 480 ms, and "
        "20 ms on the others; a step takes 500 ms",
        3: "process 3 of 4 on n3 is slow: a small computation takes 10 ms on its devices, "
        "and 4 ms on the others",
    }


@pytest.fixture
def reporting(tmp_path, monkeypatch):
    monkeypatch.setattr("luthier.trainer.processes.EVERY_STEPS", 4)
    return Times(tmp_path / "hosts.jsonl")


def test_a_process_reports_its_times_every_so_many_batches(reporting, monkeypatch):
    clock = iter([10.0, 12.0, 13.0])
    monkeypatch.setattr("luthier.trainer.processes.time.perf_counter", lambda: next(clock))
    reporting.begin(100, print)
    reports = [reporting.mine(seconds) for seconds in (0.1, 0.2, 0.3, 0.4, 1.0, 1.0, 1.0, 1.0)]
    assert reports[:3] == reports[4:7] == [None] * 3
    assert reports[3] == {
        "process": 0,
        "host": platform.node(),
        "step_seconds": 0.5,
        "batch_seconds": 0.25,
        "device_seconds": None,
    }
    assert (reports[7]["step_seconds"], reports[7]["batch_seconds"]) == (0.25, 1.0)


def _take_in(reporting, *hosts):
    for _ in range(4):
        reporting.mine(0.0)
    reporting.take_in([dataclasses.asdict(host) for host in hosts])


def test_a_straggler_is_reported_when_slow_twice_and_again_after_it_recovered(reporting, tmp_path):
    lines = []
    reporting.begin(100, lines.append)
    slow = _host(1, device_seconds=0.01)
    for hosts in [(USUAL, slow), (USUAL, _host(1)), (USUAL, slow)]:
        _take_in(reporting, *hosts)
    assert lines == [], "slow once is an accident"
    for _ in range(3):
        _take_in(reporting, USUAL, slow)
    assert len(lines) == 1
    assert lines[0].startswith("process 1 of 2 on n1 is slow: a small computation takes 10 ms")
    for hosts in [(USUAL, _host(1)), (USUAL, slow), (USUAL, slow)]:
        _take_in(reporting, *hosts)
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
