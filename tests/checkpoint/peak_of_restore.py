"""A process that restores, and prints its state and its peak above what it had before, in MiB.

Command: python peak_of_restore.py save|resume|warm|warm_bf16 DIR MEBIBYTES NUM_ARRAYS
"""

import gc
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np

from luthier.checkpoint import FromRun, Restoration, Store, Target

WIDTH = 256


def main(mode: str, folder: pathlib.Path, mebibytes: int, num_arrays: int) -> None:
    rows = mebibytes * 2**20 // 4 // num_arrays // WIDTH
    names = [f"layer_{number}.kernel" for number in range(num_arrays)]
    if mode == "save":
        _save(folder, names, rows)
        return
    # What the first array, Orbax and its threads take is no part of the state.
    small = folder.parent / "small"
    _save(small, names[:2], 4)
    _restore(mode, small, names[:2], 4)
    gc.collect()
    pathlib.Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = _status("VmRSS")
    arrays = _restore(mode, folder, names, rows)
    print(sum(array.nbytes for array in arrays.values()) / 2**20, _status("VmHWM") - before)


def _save(folder: pathlib.Path, names: list[str], rows: int) -> None:
    draw = np.random.default_rng(0)
    arrays = {
        f"parameters/{name}": jnp.asarray(draw.standard_normal((rows, WIDTH), np.float32))
        for name in names
    }
    with Store(folder) as store:
        store.save(1, arrays)


def _restore(mode: str, folder: pathlib.Path, names: list[str], rows: int) -> dict:
    here = jax.sharding.SingleDeviceSharding(jax.devices()[0])
    kind = jnp.bfloat16 if mode == "warm_bf16" else jnp.float32
    if mode == "resume":
        wanted = jax.ShapeDtypeStruct((rows, WIDTH), kind, sharding=here)
        with Store(folder) as store:
            step, _ = store.newest_whole()
            found = store.restore(step, {f"parameters/{name}": wanted for name in names})
    else:
        targets = {name: Target((rows, WIDTH), jnp.dtype(kind), here) for name in names}
        with Restoration(FromRun(str(folder)), targets, {}) as restoration:
            found = restoration.read()
    return jax.block_until_ready(found)


def _status(name: str) -> float:
    lines = pathlib.Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(name)) / 2**10


if __name__ == "__main__":
    main(sys.argv[1], pathlib.Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4]))
