"""One of the processes of a run: `python -m luthier.cli.hosts.child train ...`, by its parent."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Sequence
from typing import NoReturn

from luthier import environment
from luthier.cli import main as command_line

ORPHAN_SECONDS = 60.0


def main(argv: Sequence[str]) -> NoReturn:
    """Run a command line, and end without waiting for the other processes.

    Args:
      argv: The words after `luthier`.
    """
    environment.report_native_crashes()
    _keep_libraries_off_the_terminal()
    threading.Thread(target=_follow_parent, args=(os.getppid(),), daemon=True).start()
    code = command_line.main(argv)
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # What is left to be done at exit would wait for processes that may have ended.
    os._exit(code)


def _keep_libraries_off_the_terminal() -> None:
    """Send what libraries in C++ write to the standard output to the log, where errors go."""
    terminal = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = os.fdopen(terminal, "w", buffering=1, encoding="utf-8", errors="replace")


def _follow_parent(parent: int) -> None:
    """When the parent has ended, save and end too."""
    while os.getppid() == parent:
        time.sleep(1.0)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_SECONDS)
    os._exit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
