"""Planning beside a training that goes on: it touches neither its backend nor a network."""

import shutil
import subprocess
import sys

import jax
import numpy as np
import pytest

import luthier
from luthier import graph as graphs
from luthier.planner import plan_apart, targets
from luthier.program import materialize
from tests.compiling import quick_step

SMALL = ("fiddler:debug", "training.global_batch_size=4", "model.num_layers=1")
BLOCKER = """
import socket
def refuse(*_, **__):
    open({path!r}, "w").close()
    raise OSError("there is no network")
for name in ("connect", "connect_ex", "bind", "sendto"):
    setattr(socket.socket, name, refuse)
socket.getaddrinfo = socket.create_connection = refuse
"""


@pytest.fixture
def graph(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    found = graphs.apply(
        graphs.resolve("configs.lm.quickstart"), SMALL, shelves=("luthier.recipes",)
    )
    for evaluation in found.evaluations.values():
        evaluation.global_batch_size = 4
    return found


def _batch(program):
    return {
        name: jax.device_put(np.ones(entry.shape, entry.dtype), entry.sharding)
        for name, entry in program.batch.items()
    }


@pytest.mark.full
def test_a_training_goes_on_beside_a_plan_bit_for_bit(graph, tmp_path, monkeypatch):
    touched = tmp_path / "touched"
    (tmp_path / "sitecustomize.py").write_text(BLOCKER.format(path=str(touched)))
    program = luthier.plan(graph, jax.devices()[:2]).program
    step, values = quick_step(program), program.values()

    def trained(between):
        leaves, batch = materialize(program, values), _batch(program)
        for _ in range(2):
            leaves, _ = step(values, leaves, batch)
            between()
        return [np.asarray(jax.random.key_data(x) if _is_key(x) else x) for x in leaves]

    alone = trained(lambda: None)
    devices, live = jax.devices(), len(jax.live_arrays())
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    reports = []

    def plan():
        if not reports:
            reports.append(plan_apart(graph, "cpu:4"))

    beside = trained(plan)
    assert (reports[0].subject.level, reports[0].subject.devices["count"]) == ("compile", 4)
    for one, other in zip(alone, beside, strict=True):
        np.testing.assert_array_equal(one, other)
    assert jax.devices() == devices
    assert len(jax.live_arrays()) == live
    assert not touched.exists()
    # Or the module that refuses would not have been there.
    code = "import socket; socket.create_connection(('localhost', 1))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 1
    assert touched.exists()


def _is_key(x):
    return jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key)


@pytest.mark.slow
@pytest.mark.parametrize("text", ["cpu:4", "v5e-4", "h100:4"])
def test_a_plan_needs_no_network_at_all(graph, text, monkeypatch, tmp_path):
    """In a network of its own, which has no device but an unreachable loopback."""
    missing = targets.missing_compiler(targets.read(text))
    unshare = shutil.which("unshare")
    if unshare is None or subprocess.run([unshare, "-rn", "true"], check=False).returncode:
        pytest.skip("a process cannot have a network of its own here")
    if missing:
        pytest.skip(missing)
    alone = tmp_path / "python"
    alone.write_text(f'#!/bin/sh\nexec {unshare} -rn {sys.executable} "$@"\n')
    alone.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(alone))
    assert plan_apart(graph, text).subject.level == "compile"
