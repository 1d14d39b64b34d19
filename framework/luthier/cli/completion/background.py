"""Begins to make an index in a process of its own: nobody waits for an import at a Tab."""

from __future__ import annotations

import os
import sys

from luthier.cli.completion import cache, index
from luthier.cli.completion.listing import RUN, RUNS


def start(reference: str) -> bool:
    """Begin to make the index of an experiment; return whether this call began it.

    Args:
      reference: The experiment, as it was typed.
    """
    if not sources(reference) or not cache.claim(index.name_of(reference)):
        return False
    quiet = [(os.POSIX_SPAWN_OPEN, stream, os.devnull, os.O_RDWR, 0) for stream in range(3)]
    os.posix_spawn(
        sys.executable,
        [sys.executable, "-m", "luthier", "completion", "index", reference],
        os.environ | {"JAX_PLATFORMS": "cpu"},  # it must not take an accelerator
        file_actions=quiet,
        setpgroup=0,
    )
    return True


def sources(reference: str) -> list[str]:
    """Return the files that a reference names, where that can be said without importing."""
    if reference.startswith(RUN):
        import glob

        run = glob.escape(reference.removeprefix(RUN))
        files = [] if run in ("", "last") else glob.glob(f"{RUNS}/*/{run}*/config.json")
    else:
        module = reference.partition("(")[0].partition(":")[0]
        files = [f"{module.replace('.', os.sep)}.py", os.path.join(reference, "config.json")]
    return [os.path.abspath(file) for file in files if os.path.isfile(file)]
