"""What compiling found, kept in the user's cache folder: the same program is compiled once."""

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
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError, Problem
from luthier.graph import Graph
from luthier.planner.report import Report
from luthier.planner.targets import Slice, environment
from luthier.planner.targets import read as read_slice

_LOCATIONS = re.compile(r"\s*loc\([^)]*\)|^#loc.*$", re.MULTILINE)


def folder() -> pathlib.Path:
    """Return the folder of what plans keep; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = pathlib.Path(root) if os.path.isabs(root) else pathlib.Path.home() / ".cache"
    return base / "luthier" / "plan"


def key_of(program: str, target: str, versions: Mapping[str, str]) -> str:
    """Return the name under which the compiled form of a program is kept.

    Args:
      program: The program as the compiler is given it.
      target: The slice, with all that its devices are described by.
      versions: Versions of what compiles.
    """
    parts = [_LOCATIONS.sub("", program), target, json.dumps(dict(versions), sort_keys=True)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def read(key: str) -> dict[str, Any] | None:
    """Return what is kept under a name; None where there is nothing that can be read.

    Args:
      key: The name.
    """
    try:
        packed = (folder() / f"{key}.json.gz").read_bytes()
        found: dict[str, Any] = json.loads(gzip.decompress(packed))
    except (OSError, ValueError, EOFError):
        return None
    return found


def write(key: str, values: Mapping[str, Any]) -> None:
    """Keep plain values under a name, whole or not at all; a full disk is no error.

    Args:
      key: The name.
      values: Plain values.
    """
    place = folder() / f"{key}.json.gz"
    temporary = place.with_suffix(f".{os.getpid()}")
    with contextlib.suppress(OSError):
        place.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_bytes(gzip.compress(json.dumps(dict(values)).encode(), mtime=0))
        temporary.replace(place)


# Progress of a plan: its phases, and how long compiling took for programs of this size before.

ProgressCallback = Callable[[Mapping[str, Any]], None]

_FILE = "seconds.json"
# Seconds of one processor core for each operation of a lowered program; measured on programs of
# one to sixteen billion parameters.
_FIRST = {"tpu": 0.03, "gpu": 0.006, "cpu": 0.002}
_KEPT = 0.5


def silent(message: Mapping[str, Any]) -> None:
    """Take a message, and tell nobody."""


@contextlib.contextmanager
def timed(
    timings: dict[str, float], phase: str, on_progress: ProgressCallback, left: float | None = None
) -> Iterator[None]:
    """Tell that a phase begins, and keep how long it takes.

    Args:
      timings: Where the seconds go.
      phase: What is done.
      tell: Takes the message.
      left: Seconds that it may take; None where nobody knows.
    """
    on_progress({"phase": phase, "seconds_left": left})
    start = time.perf_counter()
    try:
        yield
    finally:
        timings[phase] = timings.get(phase, 0.0) + time.perf_counter() - start


class Estimates:
    """How long compiling takes for a kind of slice, learned from what was compiled here.

    Args:
      slice: What is compiled for.
    """

    def __init__(self, slice: Slice):
        self._platform = slice.chip.platform if slice.chip else "cpu"

    def seconds(self, program: str) -> float:
        """Return the seconds that a program may take.

        Args:
          program: The program as the compiler is given it.
        """
        return self._read().get(self._platform, _FIRST[self._platform]) * _operations(program)

    def keep(self, program: str, seconds: float) -> None:
        """Learn from one more program; a cache that cannot be written is no error.

        Args:
          program: The program.
          seconds: How long it took.
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
      slice: What `luthier.planner.targets.read` reads.
      level: `shapes` or `compile`.
      packages: The user's modules that a graph may name.
      search: Whether other layouts are searched for where this one fits, too.
      tell: Takes messages about the progress: `phase` and `seconds_left`.

    Raises:
      BadInput: The experiment cannot run on the slice; all problems at once.
      LuthierError: The process ended without an answer.
    """
    target = read_slice(slice)
    question = {
        "graph": graphs.to_json(graph),
        "slice": slice,
        "level": level,
        "packages": list(packages),
        "search": search,
    }
    made = environment(target, os.environ)
    paths = [os.getcwd(), os.environ.get("PYTHONPATH")]
    made["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
    with tempfile.TemporaryFile("w+") as log, _started(made, log) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(OSError):
            process.stdin.write(json.dumps(question))
            process.stdin.close()
        for line in process.stdout:
            message = json.loads(line)
            if "report" in message:
                return Report.from_dict(message["report"])
            if "problems" in message:
                raise BadInput(Problem(**problem) for problem in message["problems"])
            on_progress(message)
        process.wait()
        log.seek(0)
        lines = log.read().strip().splitlines() or ["it said nothing"]
        what = f"the planning process ended with exit code {process.returncode}: {lines[-1]}"
        raise LuthierError(what)


@contextlib.contextmanager
def _started(made: dict[str, str], log: Any):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(os.getpid())],
        env=made,
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
