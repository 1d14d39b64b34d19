"""Copies of run directories in object stores, from which another machine can resume."""

from luthier.records.object_storage.mirror import (
    VARIABLE,
    Mirror,
    bring_back,
    fetch,
    of_environment,
)

__all__ = ["VARIABLE", "Mirror", "bring_back", "fetch", "of_environment"]
