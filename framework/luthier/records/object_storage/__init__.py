"""Copies of run directories in object stores, from which another machine can resume."""

from luthier.records.object_storage.home import (
    HomeLock,
    held,
    home_of,
    refresh,
    refresh_all,
    writer,
)
from luthier.records.object_storage.lease import KEY, LEASE_SECONDS, Lease, LeaseWriter
from luthier.records.object_storage.mirror import (
    LOCAL,
    VARIABLE,
    HomeKind,
    Mirror,
    bring_back,
    fetch,
    of_environment,
)
from luthier.storage.bucket import Bucket, Object, open_below
from luthier.storage.segments import Segment, Segments

__all__ = [
    "KEY",
    "LEASE_SECONDS",
    "LOCAL",
    "VARIABLE",
    "Bucket",
    "HomeKind",
    "HomeLock",
    "Lease",
    "LeaseWriter",
    "Mirror",
    "Object",
    "Segment",
    "Segments",
    "bring_back",
    "fetch",
    "held",
    "home_of",
    "of_environment",
    "open_below",
    "refresh",
    "refresh_all",
    "writer",
]
