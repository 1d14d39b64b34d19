"""Small values between the processes of a run, through JAX's coordination service.

Nothing here touches a device: a value is JSON text in the store of the coordination service, so
that exchanges may go on beside the steps, and before any backend has started.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from luthier.errors import LuthierError
from luthier.parallel.distributed.notes import tell_parent

POLL_MILLISECONDS = 500
FAREWELL_SECONDS = 8.0
_ENDED = "luthier/ended/"
_T = TypeVar("_T")


class ProcessLost(LuthierError):
    """Another process of the run has ended, or cannot be reached."""


class GaveUp(Exception):
    """Whoever waited for the others has something better to do.

    Args:
      process: Whom it waited for.
    """

    def __init__(self, process: int):
        super().__init__(process)
        self.process = process


class Rounds:
    """Exchanges of small values: every process gives one, and the primary answers all of them.

    All processes hold rounds of the same name, and call `exchange` equally often.

    Args:
      name: What the exchanges are about.
    """

    def __init__(self, name: str):
        self._place = f"luthier/rounds/{name}"
        self._number = 0

    def exchange(
        self,
        mine: Any,
        decide: Callable[[Sequence[Any]], _T],
        give_up: Callable[[], bool] = lambda: False,
    ) -> _T:
        """Give a value and return the answer, which is the same for all.

        Args:
          mine: What this process has to say; JSON values.
          decide: Called by the primary, from the values of all processes to the answer.
          give_up: Whether waiting has become pointless.

        Raises:
          GaveUp: `give_up` said so.
          ProcessLost: Another process has ended.
        """
        number, self._number = self._number, self._number + 1
        state = _state()
        if state.client is None:
            return decide([mine])
        place = f"{self._place}/{number}"
        if state.process_id:
            state.client.key_value_set(f"{place}/{state.process_id}", json.dumps(mine))
            return json.loads(_read(f"{place}/answer", 0, give_up))
        others = [
            _read(f"{place}/{index}", index, give_up) for index in range(1, state.num_processes)
        ]
        answer = json.dumps(decide([mine, *map(json.loads, others)]))
        state.client.key_value_set(f"{place}/answer", answer)
        if number:
            # Whoever gave something to this round has read the answer of the one before.
            state.client.key_value_delete(f"{self._place}/{number - 1}/")
        return json.loads(answer)


_rounds = Rounds("run")


def process_index() -> int:
    """Return which of the run's processes this is, without starting a backend."""
    state = _state()
    return 0 if state.client is None else state.process_id


def process_count() -> int:
    """Return how many processes the run has, without starting a backend."""
    state = _state()
    return 1 if state.client is None else state.num_processes


def is_several() -> bool:
    """Return whether the run has more than one process."""
    return process_count() > 1


def gather(value: Any, give_up: Callable[[], bool] = lambda: False) -> list[Any]:
    """Return the values of all processes, in their order; all of them call this.

    Args:
      value: What this process has to say; JSON values.
      give_up: Whether waiting has become pointless.

    Raises:
      GaveUp: `give_up` said so.
      ProcessLost: Another process has ended.
    """
    return _rounds.exchange(value, list, give_up)


def from_primary(make: Callable[[], _T]) -> _T:
    """Return what the primary process makes, in all of them.

    Args:
      make: Called in the primary only; what it returns are JSON values.
    """
    return _rounds.exchange(None, lambda _: make())


def ask(name: str) -> Any:
    """Return what process 0 says to a question, which it awaits; not called by process 0.

    Args:
      name: The question; asked once in a run.

    Raises:
      ProcessLost: Another process has ended.
    """
    place = f"luthier/asked/{process_index()}/{name}"
    _state().client.key_value_set(f"{place}/question", "")
    return json.loads(_read(f"{place}/answer", 0, lambda: False))


def answer(name: str, process: int, make: Callable[[], Any]) -> None:
    """Wait for the question of another process, and answer it; called by process 0.

    Args:
      name: The question.
      process: Who asks.
      make: Returns the answer, JSON values; called when the question has come.

    Raises:
      ProcessLost: Another process has ended.
    """
    place = f"luthier/asked/{process}/{name}"
    _read(f"{place}/question", process, lambda: False)
    _state().client.key_value_set(f"{place}/answer", json.dumps(make()))


def farewell(text: str) -> None:
    """Tell the other processes in one line why this one ends.

    Process 0 holds what all of them read, and JAX ends them when it is gone: it waits a while until
    they have said farewell too.

    Args:
      text: The line.
    """
    state = _state()
    if state.client is None:
        return
    state.client.key_value_set(f"{_ENDED}{state.process_id}", text, allow_overwrite=True)
    deadline = time.monotonic() + FAREWELL_SECONDS
    while state.process_id == 0 and time.monotonic() < deadline:
        if len(ended()) == state.num_processes:
            return
        time.sleep(0.05)


def ended() -> dict[int, str]:
    """Return what processes that have ended said last, by process."""
    found = _state().client.key_value_dir_get(_ENDED)
    return {int(key.rpartition("/")[2]): text for key, text in found}


def lost() -> ProcessLost | None:
    """Return the error about a process that said that it ends, if one did."""
    index, count = process_index(), process_count()
    for number, text in sorted(ended().items()):
        if number != index:
            return ProcessLost(f"process {number} of {count} ended: {text}")
    return None


def _read(key: str, process: int, give_up: Callable[[], bool]) -> str:
    """Wait for the value of a process, in naps: nobody can wake whoever waits in the service."""
    import jax

    while True:
        try:
            return _state().client.blocking_key_value_get(key, POLL_MILLISECONDS)
        except jax.errors.JaxRuntimeError as error:
            if "DEADLINE_EXCEEDED" not in str(error):
                raise
        if give_up():
            raise GaveUp(process)
        if (told := lost()) is not None:
            # The thread that trains may wait in a collective, for ever: the parent ends it.
            tell_parent(lost=str(told))
            raise told


def _state() -> Any:
    # JAX has no public access to the store; Orbax and others take the same way.
    from jax._src import distributed

    return distributed.global_state
