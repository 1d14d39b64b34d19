"""What a parser must not do, whatever it is given: hang, import, start programs, or crash."""

from __future__ import annotations

import collections
import contextlib
import re
import signal
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from luthier.errors import BadInput
from luthier.graph.public_names import libraries

SECONDS = 10.0
"""CPU seconds that one input may take."""
_FORBIDDEN = ("os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect")
_NAME = re.compile(rb"[A-Za-z_]\w*")
_seen: list[str] = []
_state = {"on": False, "hooked": False}

Outcomes = collections.Counter


class Hang(BaseException):
    """An input took too long; not an Exception, so that no parser catches it."""


class Violation(AssertionError):
    """A parser did what it must not."""


def _hook(event: str, arguments: tuple) -> None:
    if _state["on"] and event in _FORBIDDEN:
        _seen.append(f"{event}{arguments[:2]!r}")


@contextlib.contextmanager
def _limited() -> Iterator[None]:
    def over(number: int, frame: object) -> None:
        raise Hang

    previous = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, previous)


def attempt(
    parse: Callable[[bytes, Path], object], data: bytes, folder: Path, packages: Sequence[str] = ()
) -> str:
    """Give an input to a parser; return `accepted` or `refused`.

    Args:
      parse: The parser; may write below the folder.
      data: The input.
      folder: A folder for its files.
      packages: What it may import beside the packages that every graph may name.

    Raises:
      Violation: It raised anything but bad input, hung, imported or started what the input named.
    """
    if not _state["hooked"]:
        sys.addaudithook(_hook)
        _state["hooked"] = True
    before = set(sys.modules)
    _seen.clear()
    _state["on"] = True
    try:
        with _limited(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            parse(data, folder)
        outcome = "accepted"
    except BadInput as error:
        if not str(error).strip() or not error.problems:
            raise Violation("refused without a word") from error
        outcome = "refused"
    except Hang:
        raise Violation(f"took more than {SECONDS} CPU seconds") from None
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}"[:500]) from error
    finally:
        _state["on"] = False
    if _seen:
        raise Violation(f"did {_seen[0]}")
    new = set(sys.modules) - before
    if new:
        named = {word.decode() for word in _NAME.findall(data)}
        allowed = {*libraries(), *packages}
        roots = {name.partition(".")[0] for name in new}
        if foreign := sorted((roots & named) - allowed):
            raise Violation(f"imported {', '.join(foreign)}")
    return outcome
