"""Records failures of a run: before its directory is open, while it is open, and after training."""

from __future__ import annotations

import contextlib
import dataclasses
from pathlib import Path

from luthier import faults
from luthier import graph as graphs
from luthier.errors import BadInput, LockLost, LuthierError
from luthier.graph import Graph
from luthier.parallel import distributed
from luthier.records import RunDirectory, crash, events
from luthier.trainer.opening import Request, reserve

OPENING_DATA = "opening the data"
OPENING_RUN = "opening the run"
CHECKING = "checking checkpoints"
RESTORING = "restoring"
COMPILING = "compiling"
AFTER = "after training"


def record(directory: RunDirectory, error: Exception, graph: Graph, *, phase: str) -> None:
    """Record that a run has failed, unless it is recorded; whatever refuses that is left aside.

    Args:
      directory: The run's directory, which this process holds the lock of.
      error: The exception.
      graph: The experiment graph.
      phase: The current phase.
    """
    if crash.path_of(error) is not None or isinstance(error, LockLost):
        return  # it is written already; or the directory is another process's now
    path = write(directory.path, error, graph, phase=phase)
    with contextlib.suppress(LuthierError):
        status = directory.read_status()
        directory.write_status(
            dataclasses.replace(
                status,
                status=events.FAILED,
                message=crash.summary(error),
                crash=path,
            )
        )


def write(
    directory: Path, error: Exception, graph: Graph, *, phase: str, step: int | None = None
) -> str:
    """Write down an exception; return the file's path in the run's directory, empty for none.

    Args:
      directory: The run's directory.
      error: The exception.
      graph: The experiment graph; the path in it of what raised is written down, too.
      phase: The current phase.
      step: Optimizer steps done; None before the first.
    """
    process = distributed.process_index() if distributed.is_several() else None
    path = crash.write(
        directory,
        error,
        step=step,
        phase=phase,
        process=process,
        graph_path=graphs.culprit_of(error, graph).path,
    )
    return "" if path is None else path.relative_to(directory).as_posix()


def record_early(error: Exception, graph: Graph, request: Request, *, phase: str) -> None:
    """Record a failure from before the run's directory was open; a new run gets one by that.

    Bad input leaves nothing behind. Neither does a failure in a trial of a sweep, which records it
    itself, or while another process trains the run.

    Args:
      error: The exception.
      graph: The experiment graph, which is valid.
      request: Where the run was to be recorded.
      phase: The current phase.
    """
    # Bad input is the user's to correct, and there is nothing to look into later.
    if isinstance(error, BadInput) or request.directory is not None:
        return
    if request.new and distributed.process_index():
        return  # every process would make a run of its own; process 0 makes the one of them all
    with contextlib.suppress(LuthierError, OSError):
        root = graphs.build(graphs.get(graph, "records")).directory
        # Only `records` and `name` are built: the rest of the graph may be what failed.
        directory = reserve(graph, root, graphs.evaluate(graphs.get(graph, "name")), request)
        with directory.lock():
            if directory.read_status().status == events.FINISHED:  # of which nothing was lost
                write(directory.path, error, graph, phase=phase)
            else:
                record(directory, error, graph, phase=phase)


def is_refusal(error: Exception, phase: str) -> bool:
    """Return whether a run was refused, so that its record stays what it was.

    Args:
      error: The exception.
      phase: The current phase.
    """
    # A refused start changes nothing: the run stays interrupted, or finished, as it was. Once the
    # state is being restored the same errors mean that the run has failed.
    if faults.classify(error) is faults.Fault.VERSION:
        return True
    return isinstance(error, BadInput) and phase in (OPENING_DATA, OPENING_RUN, CHECKING)
