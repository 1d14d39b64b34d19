"""How the processes of a run agree that a save is done, or why it is not."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from luthier.checkpoint import arrays as arrays_lib
from luthier.checkpoint import memory
from luthier.errors import CheckpointError, Problem

if TYPE_CHECKING:
    from luthier.parallel.distributed import Rounds

Sums = Mapping[str, tuple[int, int]]
"""Size in bytes and CRC-32 of files, by their path in the checkpoint."""

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
    seal: Callable[[], Sums],
    commit: Callable[[Sums], None],
    told: Callable[[Exception], str],
) -> None:
    """Wait for the arrays of all processes, and have the primary commit them.

    However long that takes, the others wait; what one process fails over, all raise.

    Args:
      pending: The arrays of this process that are being written.
      rounds: What the processes exchange.
      seal: Puts the files of this process onto the disk; returns their checksums.
      commit: Commits the checkpoint, with the checksums of all processes; called by the primary,
        when all arrays are written.
      told: An error in one line, for other processes.

    Raises:
      Exception: This process's own error.
      CheckpointError: The error of another process.
    """
    own: Exception | None = None

    def commit_all(said: Sequence[tuple[str, Sums]]) -> str:
        nonlocal own
        if not (why := next((why for why, _ in said if why), "")):
            try:
                commit({path: entry for _, sums in said for path, entry in sums.items()})
            except Exception as error:
                own, why = error, told(error)
        return why

    sums: Sums = {}
    try:
        with arrays_lib.without_logs():
            pending.result()
        memory.trim()
        sums = seal()
    except Exception as error:
        own = error
    why = rounds.exchange(("" if own is None else told(own), sums), commit_all)
    if own is not None:
        raise own
    if why:
        raise CheckpointError(Problem(why))
