"""Telling the end of another process from an error of one's own."""

from __future__ import annotations

import re
import time

import jax

from luthier.errors import LuthierError
from luthier.parallel.distributed.joining import HEARTBEAT_SECONDS
from luthier.parallel.distributed.messages import ProcessLost, is_several, lost, process_count

_CONTACT = re.compile(
    r"gloo|nccl|rccl|connection (closed|reset|refused)|socket closed|UNAVAILABLE|"
    r"coordination service|heartbeat",
    re.IGNORECASE,
)


def explain(error: Exception) -> Exception:
    """Return the error about the process that ended, where an error comes of that.

    A collective of which one process has ended fails in the others, and does not tell which one.
    It may have told the others itself; if not, JAX finds out by its heartbeats, and then ends this
    process too: whoever watches it reads the name in its log.

    Args:
      error: What was raised.
    """
    if isinstance(error, LuthierError) or not is_several():
        return error
    if not (isinstance(error, jax.errors.JaxRuntimeError) and _CONTACT.search(str(error))):
        return error
    deadline = time.monotonic() + 2 * HEARTBEAT_SECONDS
    while time.monotonic() < deadline:
        try:
            if (told := lost()) is not None:
                return told
        except jax.errors.JaxRuntimeError:
            break
        time.sleep(0.5)
    return ProcessLost(f"one of the {process_count()} processes cannot be reached: {error}")
