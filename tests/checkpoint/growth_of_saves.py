"""Save again and again in a process of its own; print what stays in memory for each save.

Command: growth_of_saves.py FOLDER NUM_ARRAYS SAVES [bare]
Prints small objects of Python, bytes of malloc and bytes of resident memory, each for one save,
after half as many saves to warm up: the median of the last quarter less that of the first.
"""

import ctypes
import gc
import os
import pathlib
import sys

import jax
import numpy as np

from luthier.checkpoint import Checkpoints, Store
from luthier.checkpoint import arrays as tensorstore_json


class _Malloc(ctypes.Structure):
    """What glibc says of its heaps: `struct mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    ]


def held() -> np.ndarray:
    """Return blocks of Python, bytes of malloc (0 without glibc), and resident bytes."""
    gc.collect()
    libc, malloced = ctypes.CDLL(None), 0
    if hasattr(libc, "mallinfo2"):
        libc.mallinfo2.restype = _Malloc
        statistics = libc.mallinfo2()
        malloced = statistics.uordblks + statistics.hblkhd
    pages = int(pathlib.Path("/proc/self/statm").read_text().split()[1])
    resident = pages * os.sysconf("SC_PAGE_SIZE")
    return np.array([sys.getallocatedblocks(), malloced, resident], np.int64)


def main(folder: str, num_arrays: int, saves: int, bare: bool) -> None:
    if bare:
        tensorstore_json.spare = lambda: None
    arrays = {f"layer_{n}/kernel": jax.device_put(np.ones(64, "f4")) for n in range(num_arrays)}
    samples = np.zeros((saves + saves // 2, 3), np.int64)
    with Store(pathlib.Path(folder), Checkpoints(keep_latest=1)) as store:
        for step in range(len(samples)):
            store.save(step, arrays, None, {"step": step})
            store.wait()
            store.committed()
            samples[step] = held()
    samples, quarter = samples[-saves:], saves // 4
    first, last = np.median(samples[:quarter], axis=0), np.median(samples[-quarter:], axis=0)
    print(*(last - first) / (saves - quarter))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), "bare" in sys.argv[4:])
