"""Keeps secrets out of what a process prints, where that is kept in a file."""

from __future__ import annotations

import sys
import threading
from typing import Any, TextIO

from luthier.records.redaction.secrets import redact


class Redacted:
    """A text stream that writes whole lines, each without its secrets.

    Args:
      stream: Where the lines go.
    """

    def __init__(self, stream: TextIO):
        self._stream = stream
        self._rest = ""
        self._lock = threading.RLock()  # a signal handler may print while this thread prints

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """Write the lines that are whole now; the rest waits for its end, or for a flush."""
        with self._lock:
            whole, end, self._rest = (self._rest + text).rpartition("\n")
            if end:
                self._stream.write(redact(whole + end))
        return len(text)

    def writelines(self, lines: Any) -> None:
        """Write texts one after another."""
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        """Write all that there is."""
        with self._lock:
            rest, self._rest = self._rest, ""
            if rest:
                self._stream.write(redact(rest))
            self._stream.flush()


def redact_output() -> None:
    """Redact all that Python prints in this process from now on.

    What libraries in C or C++ print goes past it.
    """
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if not isinstance(stream, Redacted):
            setattr(sys, name, Redacted(stream))
