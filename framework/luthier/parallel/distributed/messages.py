"""Small values between the processes of a run, and what these must have in common."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, TypeVar

from luthier.errors import BadInput, LuthierError, Problem

# What a process tells the parent process that watches it.

VARIABLE = "LUTHIER_NOTES"
"""The environment variable with the file of a process's notes."""


_LOCK = threading.Lock()


class Notes:
    """A file of notes about one process, which that process writes and its parent reads.

    Args:
      path: The file; it may be missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)

    def read(self) -> dict[str, Any]:
        """Return all notes by name; empty while there are none."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def add(self, **notes: Any) -> None:
        """Add notes, JSON values by name; whoever reads sees all of them or none."""
        building = self.path.with_suffix(".tmp")
        with _LOCK:  # several threads of a process have notes
            building.write_text(json.dumps(self.read() | notes), encoding="utf-8")
            os.replace(building, self.path)


def notify_parent(**notes: Any) -> None:
    """Leave notes for the parent process, where one watches this process.

    Args:
      **notes: JSON values by name.
    """
    if path := os.environ.get(VARIABLE):
        Notes(path).add(**notes)


# Small values between the processes of a run, through JAX's coordination service.
#
# Nothing here touches a device: a value is JSON text in the store of the coordination service, so
# that exchanges may go on beside the steps, and before any backend has started.

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
        if (failure := lost()) is not None:
            # The thread that trains may wait in a collective, for ever: the parent ends it.
            notify_parent(lost=str(failure))
            raise failure


def _state() -> Any:
    # JAX has no public access to the store; Orbax and others take the same way.
    from jax._src import distributed

    return distributed.global_state


# What the processes of a run must have in common, and failing together.

AGREE_SECONDS = 120.0
"""How far apart processes may get ready, which may have to read much first."""

_REMEDY = "start all hosts with the same command, source and versions"


def agree(facts: Mapping[str, str]) -> None:
    """Compare facts with all other processes; with one process there is nothing to compare.

    Args:
      facts: What must be the same everywhere, by what it is called.

    Raises:
      BadInput: Processes differ; one line for each fact and process that differs from process 0.
      ProcessLost: One of them ended, or does not get as far as this one.
    """
    if not is_several():
        return
    deadline = time.monotonic() + AGREE_SECONDS
    try:
        gathered = gather(dict(facts), lambda: time.monotonic() > deadline)
    except GaveUp as waited:
        what = f"process {waited.process} of {process_count()} is not ready"
        raise ProcessLost(f"{what} {AGREE_SECONDS:.0f} s after process {process_index()}") from None
    if problems := differences(gathered):
        raise BadInput(problems)


def differences(facts: Sequence[Mapping[str, str]]) -> list[Problem]:
    """Return how processes differ from the first of them.

    Args:
      facts: Those of every process, in their order.
    """
    first, problems = facts[0], []
    for index, other in enumerate(facts):
        for name in dict.fromkeys([*first, *other]):
            ours, theirs = first.get(name, "nothing"), other.get(name, "nothing")
            if ours != theirs:
                what = (
                    f"process {index} of {len(facts)} differs in {name}: {theirs}, where process "
                    f"0 has {ours}"
                )
                problems.append(Problem(what, remedy=_REMEDY))
    return problems


@contextlib.contextmanager
def together() -> Iterator[None]:
    """Let bad input that one process finds in the `with` block end all of them with its lines.

    Raises:
      BadInput: This process found some, or another one did.
    """
    if not is_several():
        yield
        return
    found: BadInput | None = None
    try:
        yield
    except BadInput as error:
        found = error
    lines = [] if found is None else [str(problem) for problem in found.problems]
    everything = gather(lines)
    if found is not None:
        raise found
    theirs = [(index, lines) for index, lines in enumerate(everything) if lines]
    if theirs:
        index, lines = theirs[0]
        count = len(everything)
        raise BadInput(Problem(f"process {index} of {count} says: {line}") for line in lines)


def decided(make: Callable[[], _T]) -> _T:
    """Return what the primary makes, in all processes; its bad input becomes that of all.

    Args:
      make: Called in the primary only; what it returns are JSON values.

    Raises:
      BadInput: What `make` raised.
    """
    if not is_several():
        return make()
    found: list[BadInput] = []

    def attempt() -> tuple[list[str], _T | None]:
        try:
            return [], make()
        except BadInput as error:
            found.append(error)
            return [str(problem) for problem in error.problems], None

    lines, value = from_primary(attempt)
    if lines:
        raise found[0] if process_index() == 0 else BadInput(map(Problem, lines))
    return value  # type: ignore[return-value]


# How far the clock of a host is from that of process 0.

_NUM_ASKED = 8


@dataclasses.dataclass(frozen=True)
class Skew:
    """How a clock differs from that of process 0.

    Args:
      seconds: By how much it is ahead.
      uncertainty_seconds: The difference may be off by so much.
    """

    seconds: float
    uncertainty_seconds: float


def clock_skew() -> Skew:
    """Return how the clock of this process differs from that of process 0; all of them call this.

    Process 0 is asked for its time again and again; the fastest answer tells most.

    Source: D. L. Mills, 1991, "Internet Time Synchronization: The Network Time Protocol".

    Raises:
      ProcessLost: Another process has ended.
    """
    if process_index():
        return min((_asked(number) for number in range(_NUM_ASKED)), key=_uncertainty)
    for process in range(1, process_count()):
        for number in range(_NUM_ASKED):
            answer(f"clock/{number}", process, time.time)
    return Skew(0.0, 0.0)


def _asked(number: int) -> Skew:
    before = time.time()
    theirs = ask(f"clock/{number}")
    after = time.time()
    return Skew((before + after) / 2 - theirs, (after - before) / 2)


def _uncertainty(skew: Skew) -> float:
    return skew.uncertainty_seconds
