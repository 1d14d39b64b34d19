"""What the processes of a run must have in common, and failing together."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeVar

from luthier.errors import BadInput, Problem
from luthier.parallel.distributed.messages import (
    GaveUp,
    ProcessLost,
    from_primary,
    gather,
    is_several,
    process_count,
    process_index,
)

AGREE_SECONDS = 120.0
"""How far apart processes may get ready, which may have to read much first."""

_REMEDY = "start all hosts with the same command, source and versions"
_T = TypeVar("_T")


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
        told = gather(dict(facts), lambda: time.monotonic() > deadline)
    except GaveUp as waited:
        what = f"process {waited.process} of {process_count()} is not ready"
        raise ProcessLost(f"{what} {AGREE_SECONDS:.0f} s after process {process_index()}") from None
    if problems := differences(told):
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
