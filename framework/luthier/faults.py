"""Classifies exceptions by the kind of fault, which decides how they are handled.

One table serves single runs, sweeps and launch scripts, so that a full disk means the same thing
everywhere: it is never the fault of the trial that happened to meet it.

* PLACE: the disk is full, EIO, a lost mount, ECC or NCCL errors, a killed worker, a lost peer. Try
  again, elsewhere where there is an elsewhere; it never counts against a trial.
* CODE: an exception in the user's code or in ours. Stop; keep the traceback.
* DATA: data is missing or unreadable, a record is damaged. Refuse to start.
* NUMERIC: NaN, divergence, too many skipped steps: that is the result of the experiment.
* VERSION: a file was written by another version of luthier or of a library. Refuse; change nothing.
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Iterator

from luthier.errors import DataError, LuthierError, TrainingStopped, VersionError


class Fault(enum.Enum):
    """The kind of a fault; see the table of the module."""

    PLACE = "place"
    CODE = "code"
    DATA = "data"
    NUMERIC = "numeric"
    VERSION = "version"


class RemoteFault(LuthierError):
    """An error of another process, which told what it says and what kind of fault it is.

    Args:
      text: The error, in one line.
      fault: Its kind: the text alone would not tell a `MemoryError` from a wrong program.
    """

    def __init__(self, text: str, fault: Fault):
        super().__init__(text)
        self.fault = fault


# What the operating system says about disks, networks and limits. ENOENT, EISDIR, ENOTDIR, EEXIST
# and EINVAL are left out: they nearly always mean a wrong path in somebody's code.
_PLACE_ERRNOS = frozenset(
    getattr(errno, name)
    for name in (
        *("ENOSPC", "EDQUOT", "EFBIG", "EROFS", "EIO", "ESTALE", "ENXIO", "ENODEV", "EBUSY"),
        *("ETIMEDOUT", "ENETDOWN", "ENETUNREACH", "ENETRESET", "EHOSTDOWN", "EHOSTUNREACH"),
        *("ECONNABORTED", "ECONNREFUSED", "ECONNRESET", "EPIPE", "ENOTCONN", "ESHUTDOWN"),
        *("EMFILE", "ENFILE", "ENOMEM", "EAGAIN", "ENOLCK", "EREMOTEIO", "EACCES", "EPERM"),
    )
    if hasattr(errno, name)
)

# Reads that may succeed a moment later on the same machine.
TRANSIENT_ERRNOS = _PLACE_ERRNOS - {errno.EROFS, errno.EFBIG, errno.ENODEV}

# Device and communication failures arrive as RuntimeErrors of XLA, TensorStore or the coordination
# service: only their text tells them from a wrong program. RESOURCE_EXHAUSTED is not here: a model
# that does not fit its device is the trial's own fault.
_PLACE_TEXT = re.compile(
    r"ECC error|uncorrectable|NCCL (?:error|operation)|CUDA_ERROR_(?:ECC|HARDWARE"
    r"|DEVICE_UNAVAILABLE|LAUNCH_FAILED|ILLEGAL_ADDRESS|SYSTEM)|Xid|fell off the bus|DATA_LOSS"
    r"|UNAVAILABLE:|coordination service|heartbeat timeout|TPU (?:is )?unhealthy"
    r"|No space left on device|Disk quota exceeded|Input/output error|Stale file handle",
    re.IGNORECASE,
)
_OS_ERROR_TEXT = re.compile(r"OS error code: (\d+)|\[Errno (\d+)\]")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and what it was raised from, each once, the outermost first."""
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )


def error_number(error: BaseException) -> int | None:
    """Return the operating system's number for an exception or for what it was raised from.

    TensorStore and XLA put the number into their text; it is looked for there, too.
    """
    for link in chain(error):
        if isinstance(link, OSError) and link.errno:
            return link.errno
        if match := _OS_ERROR_TEXT.search(str(link)):
            return int(match[1] or match[2])
    return None


def classify(error: BaseException) -> Fault:
    """Return the kind of fault that an exception is.

    The innermost cause decides: a `RunError` raised from ENOSPC is a fault of the place.

    Args:
      error: The exception as it was caught, with its causes.
    """
    links = tuple(chain(error))
    for link in links:
        if isinstance(link, RemoteFault):
            return link.fault
    if any(isinstance(link, VersionError) for link in links):
        return Fault.VERSION
    if any(isinstance(link, TrainingStopped | FloatingPointError) for link in links):
        return Fault.NUMERIC
    if error_number(error) in _PLACE_ERRNOS:
        return Fault.PLACE
    if any(isinstance(link, MemoryError | ConnectionError | TimeoutError) for link in links):
        return Fault.PLACE
    if any(_PLACE_TEXT.search(str(link)) for link in links):
        return Fault.PLACE
    if any(isinstance(link, DataError) for link in links):
        return Fault.DATA
    return Fault.CODE


def is_transient(error: BaseException) -> bool:
    """Return whether the same call may succeed a moment later on the same machine."""
    return error_number(error) in TRANSIENT_ERRNOS
