import json
import os
import subprocess
import sys

import pytest

from luthier.study import Reported, SliceInfo, TrialEnded, TrialTrained, Work
from luthier.study.engines import Close, decode, encode

COMMAND = [sys.executable, "-m", "luthier.study.engines.worker", "--slice", "3", "--name", "left"]


@pytest.mark.full
def test_what_is_printed_never_mixes_with_the_protocol(tiny, write_trial, tmp_path):
    """A console that prints to standard output, and a driver that reads nothing but messages."""
    graph = tiny("records.console:=luthier.records.Console()", "training.steps=3")
    work = Work([write_trial(tmp_path, 0, graph)])
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=2",
    }
    cores = ["--cores", str(min(os.sched_getaffinity(0)))]
    with subprocess.Popen(
        [*COMMAND, *cores, "--memory-bytes", str(2**40)],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as worker:
        ready = decode(worker.stdout.readline())
        assert ready == SliceInfo(3, "left", 2, "cpu", 2**40)
        worker.stdin.write(encode(work))
        worker.stdin.flush()
        report, trained, ended = (decode(worker.stdout.readline()) for _ in range(3))
        assert isinstance(report, Reported)
        assert isinstance(trained, TrialTrained)
        assert isinstance(ended, TrialEnded)
        assert (ended.slice, ended.outcome, ended.result["steps"]) == (3, "complete", 3)
        worker.stdin.write(encode(Close()))
        rest, printed = worker.communicate(timeout=60)
    assert worker.returncode == 0
    assert rest == b""
    assert b"quickstart" in printed
    status = json.loads((tmp_path / "trials" / "0000" / "run" / "status.json").read_text())
    assert status["status"] == "finished"
