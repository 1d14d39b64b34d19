"""Planning in a process of its own, and the cache of what compiling a program found.

The cache is in the user's cache folder, so that the same program is compiled once.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, Any

from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError, Problem
from luthier.graph import Graph
from luthier.planner.report import Report
from luthier.planner.targets import Slice, environment
from luthier.planner.targets import read as read_slice

# Source locations in MLIR text. They are not part of the key: an edit that only moves lines
# compiles to the same program.
_LOCATIONS = re.compile(r"\s*loc\([^)]*\)|^#loc.*$", re.MULTILINE)


def folder() -> pathlib.Path:
    """Return the cache folder of plans; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(root) if os.path.isabs(root) else pathlib.Path.home() / ".cache"
    return base / "luthier" / "plan"


def key_of(program: str, target: str, versions: Mapping[str, str]) -> str:
    """Return the cache key of a compiled program.

    Args:
      program: The program's text, as it is passed to the compiler.
      target: The slice, with all facts about its devices.
      versions: Versions of the compiler and of everything that affects it.
    """
    parts = [_LOCATIONS.sub("", program), target, json.dumps(dict(versions), sort_keys=True)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def read(key: str) -> dict[str, Any] | None:
    """Return the cached values of a key; None where there are none, or they are unreadable.

    Args:
      key: The key.
    """
    try:
        packed = (folder() / f"{key}.json.gz").read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(packed))
    except (OSError, ValueError, EOFError):
        return None
    return found


def write(key: str, values: Mapping[str, Any]) -> None:
    """Cache plain values under a key, atomically; a full disk is not an error.

    Args:
      key: The key.
      values: Plain values.
    """
    # Written beside and renamed, because several plans may write at one time, and a reader must not
    # see half a file. `mtime=0` makes the bytes a function of the values.
    place = folder() / f"{key}.json.gz"
    temporary = place.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(gzip.compress(json.dumps(dict(values)).encode(), mtime=0))
        temporary.replace(place)


# Progress of a plan: its phases, and how long compiling took for programs of this size before.

ProgressCallback = Callable[[Mapping[str, Any]], None]

_FILE = "seconds.json"
# Seconds of one processor core for each operation of a lowered program, before anything was
# compiled here; measured on programs of one to sixteen billion parameters.
_FIRST = {"tpu": 0.03, "gpu": 0.006, "cpu": 0.002}
_KEPT = 0.5  # weight of earlier programs in the moving average


def silent(message: Mapping[str, Any]) -> None:
    """Drop a message."""


@contextlib.contextmanager
def timed(
    timings: dict[str, float], phase: str, on_progress: ProgressCallback, left: float | None = None
) -> Iterator[None]:
    """Report that a phase begins, and add its duration to `timings`.

    Args:
      timings: Takes the seconds, by phase.
      phase: Name of the phase.
      on_progress: Takes the message.
      left: Expected seconds; None where unknown.
    """
    on_progress({"phase": phase, "seconds_left": left})
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[phase] = timings.get(phase, 0.0) + time.perf_counter() - start


class Estimates:
    """Expected compile times for a kind of slice, learned from earlier compilations here.

    Args:
      slice: Slice to compile for.
    """

    def __init__(self, slice: Slice):
        self._platform = slice.chip.platform if slice.chip else "cpu"

    def seconds(self, program: str) -> float:
        """Return the seconds that compiling a program may take.

        Args:
          program: The program's text, as it is passed to the compiler.
        """
        return self._read().get(self._platform, _FIRST[self._platform]) * _operations(program)

    def keep(self, program: str, seconds: float) -> None:
        """Learn from one more program; a read-only cache is not an error.

        Args:
          program: The program's text.
          seconds: Seconds that compiling took.
        """
        known = self._read()
        old = known.get(self._platform)
        new = seconds / _operations(program)
        known[self._platform] = new if old is None else _KEPT * old + (1 - _KEPT) * new
        place = folder() / _FILE
        temporary = place.with_suffix(f".{os.getpid()}")
        with contextlib.suppress(OSError):
            place.parent.mkdir(parents=True, exist_ok=True)
            temporary.write_text(json.dumps(known), encoding="utf-8")
            temporary.replace(place)

    def _read(self) -> dict[str, float]:
        try:
            found = json.loads((folder() / _FILE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}
        return found if isinstance(found, dict) else {}


def _operations(program: str) -> int:
    # Each operation of MLIR text that has a result is one ` = `: cheaper than parsing, and enough
    # to scale the time of compiling by.
    return max(program.count(" = "), 1)


# Planning in a process of its own, so that the caller's backend, if it has one, is untouched.

_MODULE = "luthier.planner.worker"


def plan_apart(
    graph: Graph,
    slice: str,
    *,
    level: str = "compile",
    packages: Sequence[str] = (),
    search: bool = False,
    on_progress: ProgressCallback = silent,
) -> Report:
    """Plan an experiment for a slice, in a process of its own.

    Args:
      graph: An experiment graph.
      slice: Name of the slice, as `luthier.planner.targets.read` takes it.
      level: `shapes` or `compile`.
      packages: The user's modules that a graph may name.
      search: Whether to search for other layouts although this one fits.
      on_progress: Takes messages about the progress: `phase` and `seconds_left`.

    Returns:
      The report, as of `plan_here`.

    Raises:
      BadInput: The experiment cannot run on the slice; all problems at once.
      LuthierError: The process ended without an answer.
    """
    # Why a process: JAX has one set of backends per process, the number of virtual CPU devices is
    # fixed when they start, and libtpu and the GPU plugin must see another environment than the
    # caller's. The protocol is one JSON document on standard input, and lines of JSON on standard
    # output: messages, then `report` or `problems`. Standard error goes into a file, not a pipe:
    # compilers write much there, and a pipe that nobody reads would fill and block them; its last
    # line is the reason if the process dies.
    target = read_slice(slice)
    question = {
        "graph": graphs.to_json(graph),
        "history": graphs.history_record(graph),  # by which problems show where a value was set
        "slice": slice,
        "level": level,
        "packages": list(packages),
        "search": search,
    }
    environ = environment(target, os.environ)
    paths = [os.getcwd(), os.environ.get("PYTHONPATH")]
    environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryFile("w+") as log, _started(environ, log) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        # A process that dies before it has read all breaks the pipe; its log has the reason.
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(question))
            process.stdin.close()
        # It ends when the pipe closes, by the answer or by the end of the process.
        for line in process.stdout:
            message = json.loads(line)
            if "report" in message:
                return Report.from_dict(message["report"])
            if "problems" in message:
                raise BadInput(Problem(**problem) for problem in message["problems"])
            on_progress(message)
        process.wait()
        log.seek(0)
        lines = log.read().strip().splitlines() or ["it printed nothing"]
        what = f"the planning process ended with exit code {process.returncode}: {lines[-1]}"
        raise LuthierError(what)


@contextlib.contextmanager
def _started(environ: dict[str, str], log: IO[str]) -> Iterator[subprocess.Popen[str]]:
    # In a session of its own, Ctrl-C does not reach it: the caller ends it, and it ends by itself
    # if the caller dies, whose id it is given (`environment.end_with`). `-P`, because the working
    # folder, which may have the user's modules, comes by PYTHONPATH.
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(os.getpid())],
        env=environ,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log,
        text=True,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        for stream in filter(None, (process.stdin, process.stdout)):
            with contextlib.suppress(OSError):
                stream.close()
