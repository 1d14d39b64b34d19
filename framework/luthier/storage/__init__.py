"""Files that survive crashes: atomic writes, JSON lines, locks and the trash of a directory."""

from __future__ import annotations

from luthier.storage.atomic import (
    json_text,
    read_json,
    replacing,
    require_format,
    run_error,
    sync_directory,
    write_atomically,
    write_bytes_atomically,
    write_json,
    write_together,
)
from luthier.storage.json_lines import (
    Damage,
    Line,
    LineFollower,
    LineReader,
    LineWriter,
    looks_whole,
    parse,
    require_known_format,
    seal,
)
from luthier.storage.lock import Holder, Lock, fence, holder, unfenced
from luthier.storage.piece_cache import PieceCache
from luthier.storage.process import ProcessIdentity
from luthier.storage.trash import (
    Trashed,
    copy_to_trash,
    empty,
    list_trash,
    move_contents_to_trash,
    move_to_trash,
)

__all__ = [
    "Damage",
    "Holder",
    "Line",
    "LineFollower",
    "LineReader",
    "LineWriter",
    "Lock",
    "PieceCache",
    "ProcessIdentity",
    "Trashed",
    "copy_to_trash",
    "empty",
    "fence",
    "holder",
    "json_text",
    "list_trash",
    "looks_whole",
    "move_contents_to_trash",
    "move_to_trash",
    "parse",
    "read_json",
    "replacing",
    "require_format",
    "require_known_format",
    "run_error",
    "seal",
    "sync_directory",
    "unfenced",
    "write_atomically",
    "write_bytes_atomically",
    "write_json",
    "write_together",
]
