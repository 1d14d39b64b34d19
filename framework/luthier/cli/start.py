"""Prepares the environment of the command line before anything heavy is imported."""

from __future__ import annotations

import contextlib
import os
import sys

from luthier import environment

COMMANDS = ("train", "evaluate", "generate", "sweep")
"""The commands that compute; the others are over before it would matter."""


def prepare(words: list[str]) -> None:
    """Put the process in order; give a command that computes large pages, and a place for programs.

    The C library reads its variables when a process starts, so the process replaces itself by
    itself, once: it keeps its id, its open files and its words. Where the system refuses, it goes
    on as it is.

    Args:
      words: The command and its arguments.
    """
    environment.report_native_crashes()
    environment.collect_rarely()
    if not any(word in COMMANDS for word in words[:2]):
        return
    kept = environment.kept_programs(os.environ, shortest=0.1)
    if kept:
        environment.drop_oldest(kept[environment.CACHE])
    os.environ.update(kept)
    asked = environment.large_pages(os.environ)
    if asked:
        with contextlib.suppress(OSError):
            words_of_process = [sys.executable, *sys.orig_argv[1:]]
            # `sys.orig_argv` has the interpreter's own options too, such as `-m luthier` and `-X`.
            os.execve(sys.executable, words_of_process, {**os.environ, **asked})
