"""How much memory a restore takes beside the state itself."""

import ctypes
import pathlib
import subprocess
import sys

import jax
import numpy as np
import pytest

from luthier.checkpoint import arrays

SCRIPT = pathlib.Path(__file__).with_name("peak_of_restore.py")
MEBIBYTES, NUM_ARRAYS = 256, 32
CONSTANT = 16  # MiB: threads, and what Python itself takes


def _run(*arguments):
    command = [sys.executable, str(SCRIPT), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    return [float(word) for word in done.stdout.split()]


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("peak") / "checkpoints"
    _run("save", folder, MEBIBYTES, NUM_ARRAYS)
    return folder


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("mode", ["resume", "warm", "warm_bf16"])
def test_a_restore_takes_the_state_once(saved, mode):
    state, peak = _run(mode, saved, MEBIBYTES, NUM_ARRAYS)
    assert state == (MEBIBYTES if mode != "warm_bf16" else MEBIBYTES / 2)
    assert 0.9 * state < peak <= 1.15 * state + CONSTANT


def _array(*shape, sharding=None):
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    return jax.ShapeDtypeStruct(shape, np.dtype("float32"), sharding=sharding or here)


def test_a_sixteenth_is_on_the_way_and_any_array_of_its_own():
    assert arrays.on_the_way([_array(8)] * 64) == 8 * 64 * 4 // 16 + 1
    assert arrays.on_the_way([_array(8), _array(256)]) == 256 * 4 + 1


def test_what_other_processes_hold_does_not_count():
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:2]), ("a",))
    spec = jax.sharding.PartitionSpec
    shared = jax.sharding.NamedSharding(mesh, spec("a"))
    repeated = jax.sharding.NamedSharding(mesh, spec())
    assert arrays.on_the_way([_array(8, sharding=shared)] * 64) == 8 * 64 * 4 // 16 + 1
    assert arrays.on_the_way([_array(8, sharding=repeated)] * 64) == 2 * 8 * 64 * 4 // 16 + 1


# In a process of its own: what others left free in this one would be filled first.
FREED = """
import pathlib
import numpy as np
from luthier.checkpoint import arrays
def resident():
    return int(pathlib.Path("/proc/self/statm").read_text().split()[1]) * 4096 >> 20
with arrays.returned():
    before = resident()
    buffers = [np.ones(1 << 20, np.uint8) for _ in range(64)]
    print(resident() - before)
    del buffers[1::2]
    print(resident() - before)
"""


@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "malloc_trim"), reason="glibc alone keeps them")
def test_freed_buffers_go_back_to_the_system_at_once():
    command = [sys.executable, "-c", FREED]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    held, left = map(int, done.stdout.split())
    assert held > 60
    assert left < 40


def test_an_error_inside_goes_through():
    with pytest.raises(KeyError), arrays.returned():
        raise KeyError
