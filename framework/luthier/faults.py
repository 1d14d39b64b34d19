"""Classifies exceptions by the kind of fault, which decides how they are handled.

One table serves single runs, sweeps and launch scripts, so that a full disk means the same thing
everywhere: it is never the fault of the trial that happened to meet it.

* PLACE: a full disk, EIO, a lost mount, an object store that refuses, ECC or NCCL errors, a killed
  worker, a lost peer. The work is tried again, on other devices where there are any; it never
  counts against a trial.
* CODE: an exception in the user's code or in ours. The run stops and keeps the traceback.
* DATA: data is missing or unreadable, or a record is damaged. The run does not start.
* NUMERIC: NaN, divergence, too many skipped steps. This is the result of the experiment.
* VERSION: a file was written by another version of luthier or of a library. It is left unchanged.
"""

from __future__ import annotations

import enum
import errno
import re
from collections.abc import Iterator

from luthier.errors import DataError, LuthierError, StoreError, TrainingStopped, VersionError


class Fault(enum.Enum):
    """The kind of a fault; see the table of the module."""

    PLACE = "place"
    CODE = "code"
    DATA = "data"
    NUMERIC = "numeric"
    VERSION = "version"


class RemoteFault(LuthierError):
    """An error of another process, reported with its message and its kind of fault.

    Args:
      text: The error, in one line.
      fault: Its kind. The text alone cannot distinguish a `MemoryError` from a wrong program.
    """

    def __init__(self, text: str, fault: Fault):
        super().__init__(text)
        self.fault = fault


# Errors of the operating system about disks, networks and limits. ENOENT, EISDIR, ENOTDIR, EEXIST
# and EINVAL are left out: they nearly always mean a wrong path in somebody's code. Not every name
# exists on every system (EREMOTEIO is Linux's), hence `hasattr`.
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
# service: only their text distinguishes them from a wrong program. RESOURCE_EXHAUSTED is not here:
# a model that does not fit its device is the trial's own fault. A CUDA graph that XLA cannot record
# (`cuda_graph_end_capture`) is a race in its runtime: the same program ran in most tries.
_PLACE_TEXT = re.compile(
    r"ECC error|uncorrectable|NCCL (?:error|operation)|CUDA_ERROR_(?:ECC|HARDWARE"
    r"|DEVICE_UNAVAILABLE|LAUNCH_FAILED|ILLEGAL_ADDRESS|SYSTEM)|Xid|fell off the bus|DATA_LOSS"
    r"|cuda_graph_end_capture|UNAVAILABLE:|coordination service|heartbeat timeout"
    r"|TPU (?:is )?unhealthy"
    r"|No space left on device|Disk quota exceeded|Input/output error|Stale file handle",
    re.IGNORECASE,
)
_OS_ERROR_TEXT = re.compile(r"OS error code: (\d+)|\[Errno (\d+)\]")


def chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once, the outermost first."""
    # As Python prints a traceback: `__cause__` (raise ... from) comes before `__context__`, which
    # `raise ... from None` suppresses. Nothing keeps such a chain from being a circle, hence
    # `seen`.
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        current = current.__cause__ or (
            None if current.__suppress_context__ else current.__context__
        )


def error_number(error: BaseException) -> int | None:
    """Return the `errno` of an exception or of its causes; None where there is none.

    TensorStore and XLA raise no `OSError` but put the number into their message; it is read from
    there.
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
    # The order decides. What is certain comes first: a verdict of the process that saw the error, a
    # version, NaN. Then the operating system's numbers and the types of Python, then the texts of
    # native libraries, which are the least reliable. `DataError` comes last, because a source that
    # is unreadable since its mount is lost is a fault of the place, and worth another try.
    links = tuple(chain(error))
    for link in links:
        if isinstance(link, RemoteFault):
            return link.fault
    if any(isinstance(link, VersionError) for link in links):
        return Fault.VERSION
    if any(isinstance(link, TrainingStopped | FloatingPointError) for link in links):
        return Fault.NUMERIC
    if any(isinstance(link, StoreError) for link in links):
        return Fault.PLACE
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
