"""Checking the files of a checkpoint with all processes of a run, each a part of them.

The primary decides which checkpoint is looked at; the others help it until it has found one. All of
them read at the same time, and what one of them finds, the primary learns.
"""

from __future__ import annotations

import contextlib
import contextvars
import pathlib
from collections.abc import Iterator

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.commit import Commit
from luthier.errors import LuthierError

_is_helped = contextvars.ContextVar("is_helped", default=False)


@contextlib.contextmanager
def helped() -> Iterator[None]:
    """Let the other processes, which call `help_primary`, take their part in each `check`.

    Within the `with` block of the primary; of one process alone this changes nothing.
    """
    from luthier.parallel import distributed

    if not distributed.is_several():
        yield
        return
    token = _is_helped.set(True)
    try:
        yield
    finally:
        _is_helped.reset(token)
        distributed.from_primary(lambda: None)  # there is nothing more to do


def help_primary() -> None:
    """Check parts of the checkpoints that the primary looks at, until it has found one."""
    from luthier.parallel import distributed

    while (directory := distributed.from_primary(lambda: None)) is not None:
        _check_part(pathlib.Path(directory), None)


def check(directory: pathlib.Path, commit: Commit) -> list[str]:
    """Return what is damaged in a checkpoint, by reading every file.

    Args:
      directory: The checkpoint.
      commit: What is in it.

    Raises:
      OSError: A file is there, and cannot be read now.
    """
    if not _is_helped.get():
        return commit_lib.check(directory, commit)
    from luthier.parallel import distributed

    distributed.from_primary(lambda: str(directory))
    return _check_part(directory, commit)


def _check_part(directory: pathlib.Path, commit: Commit | None) -> list[str]:
    from luthier.parallel import distributed

    damage: list[str] = []
    refusal: tuple[int | None, str] | None = None
    try:
        commit = commit_lib.read(directory) if commit is None else commit
        part = commit_lib.share(commit, distributed.process_index(), distributed.process_count())
        damage = commit_lib.check(directory, commit, part)
    except OSError as error:
        refusal = (error.errno, str(error))
    except LuthierError as error:  # the primary could read the commit file, and this one cannot
        damage = [f"process {distributed.process_index()} says: {error}"]
    everything = distributed.gather([damage, refusal])
    for _, refused in everything:
        if refused is not None and distributed.process_index() == 0:
            raise OSError(*refused)  # the primary decides whether all try again
    return sorted(line for lines, _ in everything for line in lines)
