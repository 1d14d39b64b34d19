"""Crash reports: a file with the traceback of a failure, and with the state of the machine.

    <run>/crash/20261123-201500.txt     an exception: traceback, step, versions, memory, devices
    <run>/crash/native-process-0.txt    stacks of a process that the system ended (SIGSEGV, SIGBUS,
                                        ...), or that hung and could not even run its watchdog

The files are text for people. Writing them never raises: the error that is being reported matters
more than its report.
"""

from __future__ import annotations

import contextlib
import os
import pathlib
import platform
import sys
import time
import traceback
from collections.abc import Iterator, Mapping
from typing import Any

from luthier import faults, user_code
from luthier.records.redaction import redact
from luthier.records.source import versions

FOLDER = "crash"
_NATIVE = "native-process-"
_LONGEST_LINE = 500
_LOG_BYTES = 2**20  # the stacks of a hundred threads
_FATAL = "Fatal Python error:"
_WRITTEN = "__luthier_crash__"


def write(
    directory: str | os.PathLike[str],
    error: BaseException,
    *,
    step: int | None = None,
    phase: str = "",
    process: int | None = None,
    graph_path: str = "",
) -> pathlib.Path | None:
    """Write down an exception in the crash folder of a run or trial; once for each exception.

    Args:
      directory: The directory of the run or trial; made where it is missing.
      error: The exception, with its traceback.
      step: Optimizer steps done; None where no step can be named.
      phase: The current phase: `opening data`, `restoring`, `step`, ...
      process: Index of this process; None for the only one.
      graph_path: The path in the graph of what raised it, where that is known.

    Returns:
      The file; None where it could not be written.
    """
    if (earlier := path_of(error)) is not None:
        return earlier
    name = time.strftime("%Y%m%d-%H%M%S") + ("" if process is None else f"-process-{process}")
    try:
        folder = pathlib.Path(directory, FOLDER)
        folder.mkdir(parents=True, exist_ok=True)
        text = redact(_report(error, step, phase, process, graph_path))
        path = _write_new(folder, name, text)
    except Exception:  # a full disk, an error whose __str__ raises: see the module's docstring
        return None
    with contextlib.suppress(Exception):  # an exception class with __slots__
        # On the exception itself, so that whoever catches it next writes no second report, and the
        # command line can name the file.
        setattr(error, _WRITTEN, (path, graph_path))
    return path


def path_of(error: BaseException) -> pathlib.Path | None:
    """Return the file that an exception, or what it was raised from, was written to."""
    return _written(error)[0]


def graph_path_of(error: BaseException) -> str:
    """Return the path in the graph that was written down with an exception; empty for none."""
    return _written(error)[1]


def _written(error: BaseException) -> tuple[pathlib.Path | None, str]:
    for link in faults.chain(error):
        if (written := getattr(link, _WRITTEN, None)) is not None:
            return written
    return None, ""


def summary(error: BaseException) -> str:
    """Return an exception in one line: its class, unless it is our own, and its message."""
    # In one line, for status.json, lists of runs and the terminal; the whole text is in the report.
    text = " ".join(str(error).split())
    if not type(error).__module__.startswith("luthier."):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text[:_LONGEST_LINE]


def newest(directory: str | os.PathLike[str]) -> pathlib.Path | None:
    """Return the newest file of a crash folder that holds anything; None for none.

    Args:
      directory: The directory of the run or trial.
    """
    found = []
    with contextlib.suppress(OSError):
        for path in pathlib.Path(directory, FOLDER).iterdir():
            with contextlib.suppress(OSError):
                status = path.stat()
                # The file for native crashes is opened before anything has crashed, and is empty
                # until then.
                if path.suffix == ".txt" and status.st_size:
                    found.append((status.st_mtime, path))
    return max(found)[1] if found else None


def native_path(directory: str | os.PathLike[str], process: int = 0) -> pathlib.Path:
    """Return the file that takes the stacks of a process when nothing of Python's runs any more.

    Args:
      directory: The run's directory.
      process: Index of the process.
    """
    return pathlib.Path(directory, FOLDER, f"{_NATIVE}{process}.txt")


def is_native(path: pathlib.Path) -> bool:
    """Return whether a crash file was written by faulthandler, not by `write`."""
    return path.name.startswith(_NATIVE)


def cause(path: pathlib.Path) -> str:
    """Return why faulthandler wrote stacks: `Segmentation fault`, or that the process hung.

    Args:
      path: A file of `native_path`.
    """
    fatal = [line for line in _lines(path) if line.startswith(_FATAL)]
    if fatal:
        return fatal[-1].removeprefix(_FATAL).strip()
    return "it hung, and could not even run its watchdog"


def last_words(path: str | os.PathLike[str], offset: int = 0) -> str:
    """Return one line from a log about the end of its process; empty if there is none.

    That is its last line, but for the stacks of native code that failed: then it is the cause, and
    where the stacks are.

    Args:
      path: The log of the process.
      offset: Bytes of the log that are not about this process.
    """
    try:
        with open(path, "rb") as file:
            file.seek(max(offset, file.seek(0, os.SEEK_END) - _LOG_BYTES))
            text = file.read().decode("utf-8", "replace")
    except OSError:
        return ""
    lines = [line for line in text.split("\n") if line.strip()]
    # faulthandler's own first line, in a log that the process printed to.
    fatal = [line for line in lines if line.startswith(_FATAL)]
    # Stacks that something else follows are of an earlier process: logs are appended to.
    if fatal and lines[-1].startswith((_FATAL, "  ", "Extension modules:")):
        return f"{fatal[-1].removeprefix(_FATAL).strip()}; stacks: {path}"
    return " ".join(lines[-1].split()) if lines else ""


def _write_new(folder: pathlib.Path, name: str, text: str) -> pathlib.Path:
    """Write a file of a name that is still free; two failures may fall into one second."""
    number = 1
    while True:
        path = folder / (f"{name}.txt" if number == 1 else f"{name}-{number}.txt")
        try:
            # `backslashreplace`: a message with half of a surrogate pair must not keep the report
            # from being written.
            with open(path, "x", encoding="utf-8", errors="backslashreplace") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            return path
        except FileExistsError:
            number += 1


def _report(
    error: BaseException, step: int | None, phase: str, process: int | None, graph_path: str
) -> str:
    facts = {
        # In the order in which one reads a report: what, where, on which machine, with how much
        # memory.
        "time": time.strftime("%Y-%m-%d %H:%M:%S %z"),
        "error": summary(error),
        "fault": faults.classify(error).value,
        "phase": phase,
        "step": "" if step is None else str(step),
        "in the graph": graph_path,
        "raised in": user_code.place(error),
        "process": f"{os.getpid()}" + ("" if process is None else f", number {process} of the run"),
        "host": platform.node(),
        "command": " ".join(sys.argv),
        "python": platform.python_version(),
        "versions": ", ".join(f"{name} {version}" for name, version in versions().items()),
        **memory(),
        **device_memory(),
    }
    lines = [f"{name}: {value}" for name, value in facts.items() if value]
    return "\n".join(lines) + "\n\n" + "".join(traceback.format_exception(error))


def memory() -> dict[str, str]:
    """Return the memory statistics that Linux keeps of this process and its control group.

    `oom_kill` counts the processes of the group that the kernel has ended for want of memory.
    """
    found = {}
    for line in _lines("/proc/self/status"):
        name, _, value = line.partition(":")
        if name in ("VmRSS", "VmHWM", "VmSwap"):
            found[f"memory {name}"] = value.strip()
    for line in _lines("/proc/meminfo"):
        name, _, value = line.partition(":")
        if name in ("MemTotal", "MemAvailable"):
            found[f"memory {name}"] = value.strip()
    # Containers and batch systems limit the group and not the machine, so MemAvailable alone may
    # look plentiful.
    for folder in _control_groups():
        for name in ("memory.current", "memory.peak", "memory.max", "memory.events"):
            if lines := _lines(folder / name):
                found[f"cgroup {name}"] = ", ".join(lines)
        for name in ("memory.usage_in_bytes", "memory.limit_in_bytes", "memory.oom_control"):
            if lines := _lines(folder / "memory" / name):  # version 1
                found[f"cgroup {name}"] = ", ".join(lines)
    return found


def device_memory() -> dict[str, str]:
    """Return the memory statistics of this process's devices, where they are up and keep any."""
    # Asking JAX for its devices would start them, which takes seconds and memory; JAX has no public
    # question for whether they are up.
    # Private, and looked up in `sys.modules` so that nothing is imported: where a later JAX has
    # moved it, the report lacks this section.
    bridge = sys.modules.get("jax._src.xla_bridge")
    if bridge is None or not getattr(bridge, "backends_are_initialized", lambda: False)():
        return {}
    found = {}
    with contextlib.suppress(Exception):  # a device that has failed may not even answer this
        for device in sys.modules["jax"].local_devices():
            stats: Mapping[str, Any] = device.memory_stats() or {}
            summary = ", ".join(f"{name} {value}" for name, value in stats.items())
            found[f"device {device}"] = (
                summary or f"{device.device_kind}, which keeps no statistics"
            )
    return found


def _control_groups() -> Iterator[pathlib.Path]:
    root = pathlib.Path("/sys/fs/cgroup")
    yield root  # inside of a container its own group is mounted here
    for line in _lines("/proc/self/cgroup"):
        group = line.rpartition(":")[2].strip("/")
        if group:
            yield root / group


def _lines(path: str | os.PathLike[str]) -> list[str]:
    try:
        return pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return []
