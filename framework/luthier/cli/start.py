"""Prepares the environment of the command line before anything heavy is imported."""

from __future__ import annotations

import contextlib
import os
import sys

from luthier import environment

COMMANDS = ("train", "evaluate", "generate", "sweep")
"""The commands that compute; the others end before it would matter."""


def prepare(words: list[str]) -> None:
    """Set up the process; for commands that compute, large pages and JAX's compilation cache.

    The C library reads its variables when a process starts, so the process replaces itself once by
    the same program: it keeps its id, its open files and its arguments. If the system refuses, the
    process continues as it is.

    Args:
      words: The command and its arguments.
    """
    environment.report_native_crashes()
    environment.collect_rarely()
    # Two words, because --debug may come before the command. A wrong guess (`luthier diff train`)
    # costs the start of one process and nothing else.
    if not any(word in COMMANDS for word in words[:2]):
        return
    kept = environment.kept_programs(os.environ, shortest=0.1)
    if kept:
        environment.drop_oldest(kept[environment.CACHE])
    os.environ.update(kept)
    variables = environment.large_pages(os.environ)
    # With the variables set, `large_pages` returns nothing: the new process does not do it again.
    if variables:
        with contextlib.suppress(OSError):
            words_of_process = [sys.executable, *sys.orig_argv[1:]]
            # `sys.orig_argv` has the interpreter's own options too, such as `-m luthier` and `-X`.
            os.execve(sys.executable, words_of_process, {**os.environ, **variables})
