"""Sets up a process before it imports JAX.

These things can be set at the start only:

* Large pages. XLA's CPU client allocates the temporary memory of a step anew at every step; the C
  library maps such blocks from the system and gives them back, so that each step touches all of its
  pages for the first time. With pages of 4 KiB that is a fault for each, which cost a quarter of
  the step of a small language model (`tools/bench/peers.py`). The GNU C Library asks for large
  pages where `GLIBC_TUNABLES` holds `glibc.malloc.hugetlb=1`.
* What is compiled is kept on the disk, so that a second start of the same program does not compile
  it again.
* Native crashes leave the stacks of all threads.
* Whose process it is: one that computes an answer for another ends with it.
* The collector of cycles, which by default looks for them at every 700 new objects, walked through
  what imports and traces had made again and again: a tenth of a start (`tools/bench/shapes.py`).

Source: the manual of the GNU C Library, "Memory Allocation Tunables"; the kernel's
  Documentation/admin-guide/mm/transhuge.rst; JAX, "Persistent compilation cache".
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import hashlib
import os
import platform
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path

TUNABLES = "GLIBC_TUNABLES"
LARGE_PAGES = "glibc.malloc.hugetlb"
CACHE = "JAX_COMPILATION_CACHE_DIR"
MOST_BYTES = 8 * 2**30
"""The limit for compiled programs on the disk; beyond it the oldest are dropped at a start."""

NEW_OBJECTS = 200_000
"""After so many, cycles are looked for among them; older ones in the usual proportion."""

_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PROCESSOR = Path("/proc/cpuinfo")
_POLL_SECONDS = 0.5
_FIRST_VERSION = (2, 35)  # of the GNU C Library, that knows the tunable


_native = {"reported": False}


def report_native_crashes() -> None:
    """Have this process write the stacks of all threads when native code fails in it.

    They go to the standard error; a run sends them to a file of its own.
    """
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr
        faulthandler.enable(all_threads=True)
        _native["reported"] = True


def reports_native_crashes() -> bool:
    """Return whether `report_native_crashes` set this process up, and nobody else did."""
    return _native["reported"]


def forget_terminal() -> None:
    """Let output to a terminal that is gone go nowhere: writing to it would be an error."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if os.isatty(number := stream.fileno()):
                gone = os.open(os.devnull, os.O_WRONLY)
                os.dup2(gone, number)
                os.close(gone)


def end_with(parent: int) -> None:
    """End this process, whatever it does, soon after the one that asked for its work has ended.

    What it computes may take minutes and all of the memory, and nobody would read the answer.

    Args:
      parent: The id of the process that started this one.
    """

    def follow() -> None:
        # A child of a process that has ended is adopted by another one, so that its parent's id
        # changes; this works on every Unix, and for a parent that was killed.
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=follow, name="luthier-end-with", daemon=True).start()


def large_pages(
    environment: Mapping[str, str],
    modes: str | None = None,
    c_library: tuple[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables that ask for large pages; none where it is no use, or decided already.

    Args:
      environment: Of the process. Whoever has set the tunable, to whatever, is obeyed.
      modes: What the kernel says of large pages; the mode in brackets holds. With `always` they
        come without being asked for, with `never` asking is in vain. None asks the kernel.
      c_library: Its name and version; None asks it.
    """
    if modes is None:
        modes = _MODES.read_text(encoding="utf-8") if _MODES.exists() else ""
    held = environment.get(TUNABLES, "")
    if "[madvise]" not in modes or LARGE_PAGES in held:
        return {}
    name, version = platform.libc_ver() if c_library is None else c_library
    numbers = tuple(int(part) for part in version.split(".")[:2] if part.isdecimal())
    if name != "glibc" or numbers < _FIRST_VERSION:
        return {}
    return {TUNABLES: ":".join(part for part in (held, f"{LARGE_PAGES}=1") if part)}


def kept_programs(environment: Mapping[str, str], shortest: float) -> dict[str, str]:
    """Return the variables that make JAX keep what it compiles below the user's cache folder.

    Programs for a CPU are made for its very kind, and homes are shared by machines: each kind has
    a folder of its own.

    Args:
      environment: Of the process. A folder that is set, also to nothing, is left as it is.
      shortest: Seconds of compiling from which on a program is kept.
    """
    if CACHE in environment:
        return {}
    home = Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return {
        CACHE: str(home / "luthier" / "compiled" / _kind_of_processor()),
        "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": str(shortest),
        "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "0",
    }


def collect_rarely() -> None:
    """Look for cycles of dead objects after more new ones than Python does by default.

    A collector that is off stays off.
    """
    newest, *others = gc.get_threshold()
    if newest:
        gc.set_threshold(NEW_OBJECTS, *others)


def drop_oldest(folder: str, most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files of a folder until the others take at most so many bytes.

    A program that is gone is compiled again. What another process deletes meanwhile is no error.

    Args:
      folder: With files only; it need not be there.
      most_bytes: That may stay.
    """
    found = []
    with contextlib.suppress(OSError), os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):
                status = entry.stat()
                found.append((status.st_mtime, status.st_size, entry.path))
    left = sum(size for _, size, _ in found)
    for _, size, path in sorted(found):
        if left <= most_bytes:
            return
        left -= size
        with contextlib.suppress(OSError):
            os.unlink(path)


def _kind_of_processor() -> str:
    """Return a name of what machine code may use here."""
    flags = ""
    if _PROCESSOR.exists():
        # The flags, and not the model's name: machine code may use an instruction set or not, and
        # containers can hide some of them.
        lines = _PROCESSOR.read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    told = hashlib.sha256(flags.encode()).hexdigest()[:8]
    return f"{platform.machine()}-{told}"
