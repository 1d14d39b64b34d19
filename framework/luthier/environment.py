"""Sets up a process before it imports JAX.

These settings take effect only at the start of a process:

* Large pages. XLA's CPU client allocates the temporary memory of a step anew at every step; the C
  library maps such blocks from the system and gives them back, so that each step touches all of its
  pages for the first time. With pages of 4 KiB that is a fault for each, which cost a quarter of
  the step of a small language model (`tools/bench/peers.py`). The GNU C Library asks for large
  pages where `GLIBC_TUNABLES` holds `glibc.malloc.hugetlb=1`.
* JAX's persistent compilation cache, so that a second start of the same program does not compile
  it again.
* Stack traces of all threads at a native crash.
* The parent process: a process that computes an answer for another one ends with it.
* The threshold of the garbage collector. By default it looks for cycles after every 700 new
  objects, and walked through the objects of imports and traces again and again: a tenth of the
  start-up time (`tools/bench/shapes.py`). At the end it would do so once more.

Source: the manual of the GNU C Library, "Memory Allocation Tunables"; the kernel's
  Documentation/admin-guide/mm/transhuge.rst; JAX, "Persistent compilation cache".
"""

from __future__ import annotations

import atexit
import contextlib
import faulthandler
import gc
import hashlib
import math
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
"""Size limit of the compilation cache; beyond it the oldest programs are deleted at a start."""

NEW_OBJECTS = 200_000
"""New objects between two garbage collections; older generations keep their usual proportion."""

_MODES = Path("/sys/kernel/mm/transparent_hugepage/enabled")
_PROCESSOR = Path("/proc/cpuinfo")
_POLL_SECONDS = 0.5
_FIRST_VERSION = (2, 35)  # the first GNU C Library that knows the tunable


_native = {"reported": False}


def report_native_crashes() -> None:
    """Make this process write the stacks of all threads when native code crashes in it.

    They go to the standard error; a run redirects them to a file of its own.
    """
    # A crash in XLA, a collective or a driver ends the process without a Python traceback; the
    # stacks are all that is left to say which call it was in.
    with contextlib.suppress(OSError, ValueError, RuntimeError, AttributeError):  # no stderr
        faulthandler.enable(all_threads=True)
        _native["reported"] = True


def reports_native_crashes() -> bool:
    """Return whether `report_native_crashes` enabled the fault handler of this process."""
    return _native["reported"]


def forget_terminal() -> None:
    """Discard output to a terminal that is gone: writing to it would be an error."""
    # After SIGHUP (a closed terminal, a lost connection) every write to it fails with EIO, also the
    # prints of a run that is saving its last checkpoint. The descriptor is replaced, and not only
    # `sys.stdout`, because native code writes past Python's streams.
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            if os.isatty(number := stream.fileno()):
                gone = os.open(os.devnull, os.O_WRONLY)
                os.dup2(gone, number)
                os.close(gone)


class InterruptKey:
    """Distinguishes a second press of Ctrl-C from a second signal of the same press."""

    # `timeout -s INT` signals its child, and milliseconds later the whole process group; the
    # launcher of several processes passes on a signal that they have received already. A person
    # who wants to end a run without saving presses the key again much later.
    _SECONDS = 0.5

    def __init__(self) -> None:
        self._pressed_at = -math.inf

    def is_pressed(self) -> bool:
        """Note a SIGINT, and return whether it counts as a press of the key."""
        now = time.monotonic()
        is_new = now - self._pressed_at >= self._SECONDS
        if is_new:
            self._pressed_at = now
        return is_new


def end_with(parent: int) -> None:
    """End this process soon after its parent has ended, whatever it is doing.

    Its work may take minutes and all of the memory, and nobody would read the answer.

    Args:
      parent: The id of the process that started this one.
    """

    def follow() -> None:
        # A child of a process that has ended is adopted by another one, so that its parent's id
        # changes; this works on every Unix, and for a parent that was killed. `_exit`, because the
        # main thread may be deep in a compilation, which no exception reaches.
        while os.getppid() == parent:
            time.sleep(_POLL_SECONDS)
        os._exit(1)

    threading.Thread(target=follow, name="luthier-end-with", daemon=True).start()


def large_pages(
    environment: Mapping[str, str],
    modes: str | None = None,
    c_library: tuple[str, str] | None = None,
) -> dict[str, str]:
    """Return the variables that request large pages; none if they have no effect or are set.

    Args:
      environment: The variables of the process. A tunable that is set already, to any value, is
        left alone.
      modes: The kernel's modes of large pages; the one in brackets is active. With `always` they
        come without a request, with `never` a request has no effect. None reads the kernel's file.
      c_library: The name and version of the C library; None detects them.
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
    """Return the variables that put JAX's compilation cache below the user's cache folder.

    Programs for a CPU use the instruction sets of that very CPU, and a home directory is often
    shared by machines; so each kind of processor has a folder of its own.

    Args:
      environment: The variables of the process. A folder that is set already, even to nothing, is
        left as it is.
      shortest: The least compile time, in seconds, of a program that is cached.
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
    """Run the garbage collector less often than Python does by default, and not at the end.

    A collector that is off stays off.
    """
    newest, *others = gc.get_threshold()
    if newest:
        gc.set_threshold(NEW_OBJECTS, *others)
    # The interpreter collects once more when it ends, which takes half a second where JAX is
    # imported. What is frozen is left to the system.
    atexit.register(gc.freeze)


def drop_oldest(folder: str, most_bytes: int = MOST_BYTES) -> None:
    """Delete the oldest files of a folder until the others take at most `most_bytes`.

    A deleted program is compiled again. A file that another process deletes meanwhile is not an
    error.

    Args:
      folder: A folder of files; it need not exist.
      most_bytes: The number of bytes that may stay.
    """
    # JAX's cache is not bounded by default, and a file's time is that of its last write; several
    # processes of a user may do this at the same time, so nothing here relies on what was listed.
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
    """Return a name for the instruction sets of this processor."""
    flags = ""
    if _PROCESSOR.exists():
        # The flags, and not the model's name: machine code may use an instruction set or not, and
        # containers can hide some of them.
        lines = _PROCESSOR.read_text(encoding="utf-8", errors="replace").splitlines()
        flags = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    digest = hashlib.sha256(flags.encode()).hexdigest()[:8]
    return f"{platform.machine()}-{digest}"
