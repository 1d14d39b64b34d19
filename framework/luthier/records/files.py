"""Files of records: those of `luthier.storage`, with the secrets taken out of JSON."""

from __future__ import annotations

import os
from typing import Any

from luthier import storage
from luthier.records.redaction import redact
from luthier.storage import (
    json_text,
    read_json,
    run_error,
    sync_directory,
    write_atomically,
    write_bytes_atomically,
    write_together,
)

__all__ = [
    "json_text",
    "read_json",
    "run_error",
    "sync_directory",
    "write_atomically",
    "write_bytes_atomically",
    "write_json",
    "write_together",
]


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as strict, indented JSON, atomically and without secrets."""
    storage.write_json(path, value, redact)
