"""The worker of one slice: `python -m luthier.study.engines.worker`, started by an engine.

It speaks JSON lines over the streams that it was started with. Whatever else is printed, by user
code or by libraries, goes to its standard error, which the engine keeps in a file.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from typing import BinaryIO

from luthier import environment
from luthier.errors import EXIT_DONE, EXIT_REQUEUE
from luthier.records.redaction import redact_output


def main(arguments: list[str] | None = None) -> int:
    """Run trials until the driver closes the study or dies.

    Args:
      arguments: The command line; None means that of the process.
    """
    parser = argparse.ArgumentParser(prog="luthier.study.engines.worker")
    parser.add_argument("--slice", type=int, required=True)
    parser.add_argument("--name", default="")
    parser.add_argument("--cores", default="")
    parser.add_argument("--memory-bytes", type=int)
    parser.add_argument("--package", action="append", default=[])
    options = parser.parse_args(arguments)
    environment.report_native_crashes()
    environment.collect_rarely()
    # While a thread saves one trial, the next one trains, and waits for the interpreter's lock
    # after every step that it fetches: at Python's 5 ms it would be longer than a small step.
    sys.setswitchinterval(5e-4)
    received, sent = _own_streams()
    # An interrupt is for the driver, which has running trials saved through the protocol.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Before JAX is imported: XLA sizes its thread pools by the cores that the process may use.
    if options.cores and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in options.cores.split(",")])
    return _serve(options, received, sent)


def _own_streams() -> tuple[BinaryIO, BinaryIO]:
    """Return the driver's streams, and hide them from all other code of this process."""
    # The streams move to new descriptors; 0 reads nothing from here on, and 1 leads to standard
    # error, also for C code: a `print` in user code must not become a line of the protocol.
    received, sent = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return received, sent


def _serve(options: argparse.Namespace, received: BinaryIO, sent: BinaryIO) -> int:
    # Here and not at the top: JAX must come after the cores are set (`main`).
    import jax

    from luthier.records.weights_and_biases import shared_mirrors
    from luthier.study.engines.execution import Execution, Inbox, Plans
    from luthier.study.engines.messages import MessageWriter
    from luthier.study.engines.packed_trials import LaneRunner
    from luthier.study.protocol import SliceInfo

    devices = jax.devices()
    # The first device stands for all: a slice has devices of one kind. On CPUs there are no
    # statistics.
    limit = (devices[0].memory_stats() or {}).get("bytes_limit")
    memory_bytes = options.memory_bytes or limit
    writer = MessageWriter(sent)
    execution = Execution(options.slice, Plans(devices), options.package, memory_bytes, writer.send)
    inbox = Inbox(received, execution.watcher)
    kind = devices[0].device_kind
    writer.send(SliceInfo(options.slice, options.name, len(devices), kind, memory_bytes))
    lanes = LaneRunner(execution, inbox)
    with shared_mirrors():
        while (task := inbox.next(lambda: execution.is_broken)) is not None:
            if task.work.lanes == "single":
                execution.run(task.work, task.trial, task.watcher)
            else:
                lanes.run(task)
        execution.wait_until_closed()
    # The next trial may be in the inbox already: the engine does not count this end against it.
    return EXIT_REQUEUE if execution.is_broken else EXIT_DONE


if __name__ == "__main__":
    redact_output()  # what is printed is kept in a file of the study
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)  # all is written, and taking the interpreter down takes most of a second
