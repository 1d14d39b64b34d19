"""Exchange of small values between the processes of a run, and agreement on what they share."""

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

from luthier.errors import EXIT_DONE, BadInput, LuthierError, Problem

# Notes of a process for the parent process that watches it.

NOTES_VARIABLE = "LUTHIER_NOTES"
"""The environment variable with the path of a process's notes."""


_LOCK = threading.Lock()


class Notes:
    """A file of notes about one process, which that process writes and its parent reads.

    A file, because the parent must be able to read it after JAX has aborted the process.

    Args:
      path: The file; it may be missing.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = pathlib.Path(path)

    def read(self) -> dict[str, Any]:
        """Return all notes by name; empty if there are none."""
        try:
            return json.loads(self.path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return {}

    def add(self, **notes: Any) -> None:
        """Add notes, JSON values by name, atomically."""
        building = self.path.with_suffix(".tmp")
        with _LOCK:  # several threads of a process write notes
            building.write_text(json.dumps(self.read() | notes), encoding="utf-8")
            os.replace(building, self.path)


def notify_parent(**notes: Any) -> None:
    """Write notes for the parent process, if one watches this process.

    Args:
      **notes: JSON values by name.
    """
    if path := os.environ.get(NOTES_VARIABLE):
        Notes(path).add(**notes)


# Exchange of small values between the processes of a run, through JAX's coordination service.
#
# Nothing here touches a device: a value is JSON text in the key-value store of the coordination
# service, so that exchanges may run concurrently with the steps, and before any backend has
# started. JAX's own helpers (`multihost_utils`) use a collective, which would wait in the queue of
# a device.

POLL_MILLISECONDS = 500
FAREWELL_SECONDS = 8.0
_ENDED = "luthier/ended/"
_T = TypeVar("_T")


class ProcessLost(LuthierError):
    """Another process of the run has ended, or cannot be reached."""


class ProcessUnreachable(ProcessLost):
    """Another process of the run cannot be reached, and nobody reported why."""


class GaveUp(Exception):
    """Waiting for another process was given up.

    Args:
      process: The process that was waited for.
    """

    def __init__(self, process: int):
        super().__init__(process)
        self.process = process


class Rounds:
    """Exchanges of small values: every process sends one, and the primary answers all of them.

    All processes have an object of the same name, and call `exchange` equally often.

    Args:
      name: Name of the exchanges, unique within a run.
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
        """Send a value and return the answer, which is the same for all.

        Args:
          mine: The value of this process; JSON values.
          decide: Called by the primary with the values of all processes; returns the answer.
          give_up: Returns whether to stop waiting.

        Raises:
          GaveUp: `give_up` returned True.
          ProcessLost: Another process has ended.
        """
        # Keys have the number of the round, which every process counts for itself: the n-th call of
        # one meets the n-th call of all others. Through the primary, 2 (N - 1) messages suffice,
        # and one process decides. The answer goes through JSON in the primary, too, so that all
        # return equal values (tuples become lists everywhere).
        #
        # It is counted before anything is waited for: a round that was given up is not entered
        # again, where the key of this process is set already.
        number, self._number = self._number, self._number + 1
        state = _state()
        if state.client is None:
            return decide([mine])  # one process: no answer to make equal, so no JSON
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
            # Only the last round is kept, or the store would grow with the run. It is safe to
            # delete: a process that has sent a value to this round has read the answer of the one
            # before.
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
      value: The value of this process; JSON values.
      give_up: Returns whether to stop waiting.

    Raises:
      GaveUp: `give_up` returned True.
      ProcessLost: Another process has ended.
    """
    return _rounds.exchange(value, list, give_up)


def from_primary(make: Callable[[], _T]) -> _T:
    """Return a value that the primary process makes, in all processes.

    Args:
      make: Called in the primary only; returns JSON values.
    """
    return _rounds.exchange(None, lambda _: make())


def ask(name: str) -> Any:
    """Return the answer of process 0 to a question, which it awaits; not called by process 0.

    Args:
      name: Name of the question; asked once in a run.

    Raises:
      ProcessLost: Another process has ended.
    """
    place = f"luthier/asked/{process_index()}/{name}"
    _state().client.key_value_set(f"{place}/question", "")
    return json.loads(_read(f"{place}/answer", 0, lambda: False))


def answer(name: str, process: int, make: Callable[[], Any]) -> None:
    """Wait for the question of another process, and answer it; called by process 0.

    Args:
      name: Name of the question.
      process: The process that asks.
      make: Returns the answer, JSON values; called when the question has arrived.

    Raises:
      ProcessLost: Another process has ended.
    """
    place = f"luthier/asked/{process}/{name}"
    _read(f"{place}/question", process, lambda: False)
    _state().client.key_value_set(f"{place}/answer", json.dumps(make()))


def farewell(text: str) -> None:
    """Report to the other processes in one line why this one ends.

    Args:
      text: The line; empty where this process ends only because another one cannot be reached.
    """
    import jax

    state = _state()
    if state.client is None:
        return
    try:
        state.client.key_value_set(f"{_ENDED}{state.process_id}", text, allow_overwrite=True)
    except jax.errors.JaxRuntimeError:
        return  # process 0 is gone, and with it the store: nobody can read the line
    # Process 0 hosts the store that all of them read, and JAX aborts them when it is gone. So it
    # waits, for a limited time, until they have written their reasons too.
    deadline = time.monotonic() + FAREWELL_SECONDS
    while state.process_id == 0 and time.monotonic() < deadline:
        if len(ended()) == state.num_processes:
            return
        time.sleep(0.05)


def ended() -> dict[int, str]:
    """Return the last lines of processes that have ended, by process."""
    found = _state().client.key_value_dir_get(_ENDED)
    return {int(key.rpartition("/")[2]): text for key, text in found}


def lost() -> ProcessLost | None:
    """Return the error about another process that reported its end, if one did."""
    index, count = process_index(), process_count()
    for number, text in sorted(ended().items()):
        # One that ended because of a third, which it could not reach either, is not the cause.
        if number != index and text:
            return ProcessLost(f"process {number} of {count} ended: {text}")
    return None


def _read(key: str, process: int, give_up: Callable[[], bool]) -> str:
    """Wait for the value of a process, in short intervals."""
    # A blocking read of the store cannot be interrupted, and it does not end when the other process
    # does. So it times out every POLL_MILLISECONDS, and in between it is looked at whether somebody
    # has left (`lost`) or waiting has become pointless. The status is in the text of the error
    # only.
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
            # The thread that trains may wait in a collective forever: the parent ends this process.
            notify_parent(lost=str(failure))
            raise failure


def _state() -> Any:
    # JAX has no public access to the client of the coordination service and its key-value store;
    # Orbax uses the same private module.
    from jax._src import distributed

    return distributed.global_state


# Agreement on what processes must have in common, and failing together.

AGREE_SECONDS = 120.0
"""Tolerated time between the first and the last process to get ready, which may read much first."""

_REMEDY = "start all hosts with the same command, source and versions"


def agree(facts: Mapping[str, str]) -> None:
    """Compare facts with all other processes; with one process there is nothing to compare.

    Args:
      facts: Values that must be the same everywhere, by name.

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
    """Return a problem for each difference of a process from the first.

    Args:
      facts: The facts of every process, in their order.
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
    # Without it, one process would raise, and the others wait for it in their next collective. All
    # take part in the exchange, also those without an error. A process with problems of its own
    # raises these; the others raise those of the first that has some. Other exceptions pass
    # through, and reach the other processes by `farewell`.
    if not is_several():
        yield
        return
    found: BadInput | None = None
    try:
        yield
    except BadInput as error:
        found = error
    lines = [] if found is None else [str(problem) for problem in found.problems]
    everything = gather((lines, EXIT_DONE if found is None else found.exit_code))
    if found is not None:
        raise found
    theirs = [(index, *report) for index, report in enumerate(everything) if report[0]]
    if theirs:
        index, lines, exit_code = theirs[0]
        who = f"process {index} of {len(everything)}"
        raise BadInput((Problem(f"{who} reports: {line}") for line in lines), exit_code)


def decided(make: Callable[[], _T]) -> _T:
    """Return a value that the primary makes, in all processes; they share its bad input.

    Args:
      make: Called in the primary only; returns JSON values.

    Raises:
      BadInput: `make` raised it.
    """
    # The primary raises its own exception, with its traceback; the others one with the same lines.
    if not is_several():
        return make()
    found: list[BadInput] = []

    def attempt() -> tuple[list[str], int, _T | None]:
        try:
            return [], EXIT_DONE, make()
        except BadInput as error:
            found.append(error)
            return [str(problem) for problem in error.problems], error.exit_code, None

    lines, exit_code, value = from_primary(attempt)
    if lines:
        raise found[0] if process_index() == 0 else BadInput(map(Problem, lines), exit_code)
    return value  # type: ignore[return-value]


# Offset of a host's clock from that of process 0.

_NUM_SAMPLES = 8


@dataclasses.dataclass(frozen=True)
class Skew:
    """Offset of a clock from that of process 0.

    Args:
      seconds: By how much it is ahead.
      uncertainty_seconds: Bound of the error of the offset.
    """

    seconds: float
    uncertainty_seconds: float


def clock_skew() -> Skew:
    """Return the offset of this process's clock from that of process 0; all of them call this.

    Process 0 is asked for its time several times; the fastest answer has the smallest uncertainty.

    Source: D. L. Mills, 1991, "Internet Time Synchronization: The Network Time Protocol".

    Raises:
      ProcessLost: Another process has ended.
    """
    # If an answer takes d seconds, the other clock was read within these: taking the middle, the
    # error is at most d / 2.
    if process_index():
        return min((_sample(number) for number in range(_NUM_SAMPLES)), key=_uncertainty)
    for process in range(1, process_count()):
        for number in range(_NUM_SAMPLES):
            answer(f"clock/{number}", process, time.time)
    return Skew(0.0, 0.0)


def _sample(number: int) -> Skew:
    before = time.time()
    theirs = ask(f"clock/{number}")
    after = time.time()
    return Skew((before + after) / 2 - theirs, (after - before) / 2)


def _uncertainty(skew: Skew) -> float:
    return skew.uncertainty_seconds
