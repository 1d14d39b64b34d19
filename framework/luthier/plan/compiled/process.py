"""Planning in a process of its own, so that the caller's backend, if it has one, is untouched."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Any

from luthier import graph as graphs
from luthier.errors import BadInput, LuthierError, Problem
from luthier.plan.compiled.progress import Tell, silent
from luthier.plan.report.report import Report
from luthier.plan.targets import environment, read

_MODULE = "luthier.plan.compiled.worker"


def plan_apart(
    graph: Any,
    slice: str,
    *,
    level: str = "compile",
    packages: Sequence[str] = (),
    search: bool = False,
    tell: Tell = silent,
) -> Report:
    """Plan an experiment for a slice, in a process of its own.

    Args:
      graph: An experiment graph.
      slice: What `luthier.plan.targets.read` reads.
      level: `shapes` or `compile`.
      packages: The user's modules that a graph may name.
      search: Whether other layouts are searched for where this one fits, too.
      tell: Takes messages about the progress: `phase` and `seconds_left`.

    Raises:
      BadInput: The experiment cannot run on the slice; all problems at once.
      LuthierError: The process ended without an answer.
    """
    target = read(slice)
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
    with tempfile.TemporaryFile("w+") as said, _started(made, said) as process:
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
            tell(message)
        process.wait()
        said.seek(0)
        lines = said.read().strip().splitlines() or ["it said nothing"]
        what = f"the planning process ended with exit code {process.returncode}: {lines[-1]}"
        raise LuthierError(what)


@contextlib.contextmanager
def _started(made: dict[str, str], said: Any):
    process = subprocess.Popen(
        [sys.executable, "-P", "-m", _MODULE, str(os.getpid())],
        env=made,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=said,
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
