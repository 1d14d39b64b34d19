"""Messages of the protocol as JSON lines between an engine and its workers."""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from typing import IO, Any

from luthier.study.protocol import (
    Faulted,
    Lost,
    Paused,
    Reported,
    SliceInfo,
    TrialEnded,
    TrialTrained,
    TrialWork,
    Verdict,
    Work,
)


@dataclasses.dataclass(frozen=True)
class Answer:
    """The answer to a report.

    Args:
      fence: The lease that the report belongs to.
      verdict: Whether the trial continues, is pruned or pauses.
    """

    trial: int
    fence: int
    verdict: Verdict


@dataclasses.dataclass(frozen=True)
class Stop:
    """A trial ends at its next step, and is saved.

    Args:
      fence: The lease of the trial.
    """

    trial: int
    fence: int


@dataclasses.dataclass(frozen=True)
class Refill:
    """One more trial for the current work."""

    trial: TrialWork


@dataclasses.dataclass(frozen=True)
class Close:
    """Save running trials, and end."""


KINDS: dict[str, type] = {
    "ready": SliceInfo,
    "work": Work,
    "refill": Refill,
    "answer": Answer,
    "stop": Stop,
    "close": Close,
    "reported": Reported,
    "trained": TrialTrained,
    "paused": Paused,
    "ended": TrialEnded,
    "faulted": Faulted,
    "lost": Lost,
}
_KIND_OF = {kind: name for name, kind in KINDS.items()}


def encode(message: Any) -> bytes:
    """Return a message as one line; numbers that are not finite keep their Python names."""
    # Numbers that are not finite stay `NaN` and `Infinity`, which Python's own reader takes back:
    # nobody else reads this stream.
    fields = dataclasses.asdict(message)
    return json.dumps({"kind": _KIND_OF[type(message)], **fields}).encode() + b"\n"


def decode(line: bytes) -> Any:
    """Return the message of a line.

    Raises:
      ValueError: It is not one.
    """
    try:
        fields = json.loads(line)
        kind = KINDS[fields.pop("kind")]
        # `asdict` has turned the inner dataclasses and tuples into dicts and lists.
        if kind is Work:
            fields["trials"] = tuple(TrialWork(**trial) for trial in fields["trials"])
            fields["hoist"] = tuple(fields["hoist"])
        elif kind is Refill:
            fields["trial"] = TrialWork(**fields["trial"])
        return kind(**fields)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{line!r} is not a message") from error


class MessageWriter:
    """Sends messages, from any thread.

    Args:
      stream: Where the lines go.
    """

    def __init__(self, stream: IO[bytes]):
        self._stream = stream
        self._lock = threading.Lock()

    def send(self, message: Any) -> None:
        """Send a message.

        Raises:
          OSError: Nobody reads any more.
        """
        with self._lock:
            self._stream.write(encode(message))
            self._stream.flush()

    def close(self) -> None:
        """Close the stream."""
        with self._lock:
            self._stream.close()


def read_messages(stream: IO[bytes]) -> Iterator[Any]:
    """Yield the messages of a stream until it ends; a torn last line is left out."""
    for line in stream:
        # A line without its end is what the other side was writing when it died.
        if line.endswith(b"\n"):
            yield decode(line)
