"""How the processes of a run agree that a save is done, or why it is not."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from luthier.checkpoint import arrays as arrays_lib
from luthier.checkpoint import memory
from luthier.errors import CheckpointError, Problem

if TYPE_CHECKING:
    from luthier.parallel.distributed import Rounds

_num_saving: dict[pathlib.Path, int] = {}
"""How many stores have saved in a directory: the same in all processes."""


def rounds(directory: pathlib.Path) -> Rounds:
    """Return the exchanges of one more store that saves in a directory.

    Args:
      directory: The same in all processes, which call this in the same order.
    """
    from luthier.parallel.distributed import Rounds

    number = _num_saving[directory] = _num_saving.get(directory, 0) + 1
    return Rounds(f"commits{directory}/{number}")


def finish(
    pending: arrays_lib.Pending,
    rounds: Rounds,
    *,
    commit: Callable[[], None],
    told: Callable[[Exception], str],
) -> None:
    """Wait for the arrays of all processes, and have the primary commit them.

    However long that takes, the others wait; what one process fails over, all raise.

    Args:
      pending: The arrays of this process that are being written.
      rounds: What the processes exchange.
      commit: Commits the checkpoint; called by the primary, when all arrays are written.
      told: An error in one line, for other processes.

    Raises:
      Exception: This process's own error.
      CheckpointError: The error of another process.
    """
    own: Exception | None = None

    def commit_all(said: Sequence[str]) -> str:
        nonlocal own
        if not (why := next(filter(None, said), "")):
            try:
                commit()
            except Exception as error:
                own, why = error, told(error)
        return why

    try:
        with arrays_lib.without_logs():
            pending.result()
        memory.trim()
    except Exception as error:
        own = error
    why = rounds.exchange("" if own is None else told(own), commit_all)
    if own is not None:
        raise own
    if why:
        raise CheckpointError(Problem(why))
