"""Files that are whole or absent: a reader never sees half of one, whatever dies meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Iterator, Mapping
from typing import Any

from luthier.errors import Problem, RunError
from luthier.records.redaction import redact

_REMEDIES = {
    errno.ENOSPC: "free space on that disk, then rerun the same command",
    errno.EDQUOT: "free space within your quota, then rerun the same command",
    errno.EFBIG: "raise the limit on file sizes (`ulimit -f`), then rerun the same command",
    errno.EROFS: "choose a writable place with records.directory=PATH",
    errno.EACCES: "choose a writable place with records.directory=PATH",
    errno.EPERM: "choose a writable place with records.directory=PATH",
    errno.ENOENT: "see that the directory exists and was not removed",
    errno.ENOTDIR: "choose a directory with records.directory=PATH",
}


def run_error(action: str, path: str | os.PathLike[str], error: OSError) -> RunError:
    """Return the one-line error for an operating system's refusal.

    Args:
      action: What was tried, such as `write`.
      path: The file or directory that it was tried on.
      error: What the operating system said.
    """
    reason = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "")
    return RunError(Problem(f"cannot {action} {os.fspath(path)}: {reason}", remedy=remedy))


def write_atomically(path: str | os.PathLike[str], text: str) -> None:
    """Write a text file so that `path` holds the old text or the new, never a part of it.

    Args:
      path: The file; its directory must exist.
      text: What to write, as UTF-8.

    Raises:
      RunError: The disk is full, the directory is missing or cannot be written.
    """
    write_bytes_atomically(path, text.encode("utf-8"))


def write_bytes_atomically(path: str | os.PathLike[str], data: bytes) -> None:
    """Write a file as `write_atomically` does.

    Args:
      path: The file; its directory must exist.
      data: What to write.

    Raises:
      RunError: The disk is full, the directory is missing or cannot be written.
    """
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
        sync_directory(path.parent)
    except OSError as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise run_error("write", path, error) from error


def write_together(directory: str | os.PathLike[str], files: Mapping[str, str]) -> None:
    """Write text files into a directory that nobody reads as yet, and wait for the disk once.

    Args:
      directory: Where they go; it must exist.
      files: Their texts, by name.

    Raises:
      RunError: The disk refuses; some of them may be there.
    """
    with contextlib.ExitStack() as opened:
        written = []
        for name, text in files.items():
            path = pathlib.Path(directory, name)
            with _told("write", path):
                file = opened.enter_context(open(path, "wb"))
                file.write(text.encode("utf-8"))
                file.flush()
            written.append((path, file))
        for path, file in written:  # the first takes most of the others along
            with _told("write", path):
                os.fsync(file.fileno())
    sync_directory(directory)


@contextlib.contextmanager
def _told(action: str, path: pathlib.Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise run_error(action, path, error) from error


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable, where the file system can."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(path: str | os.PathLike[str], value: Any) -> None:
    """Write a value as strict, indented JSON, atomically and without secrets."""
    write_atomically(path, redact(json_text(value)))


def json_text(value: Any) -> str:
    """Return a value as strict, indented JSON."""
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def read_json(path: str | os.PathLike[str], default: Any = None) -> Any:
    """Return a JSON file's value.

    Args:
      path: The file.
      default: What a missing file stands for.

    Raises:
      RunError: The file cannot be read, or is not JSON.
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        return json.loads(text)
    except FileNotFoundError:
        return default
    except OSError as error:
        raise run_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise RunError(Problem(f"{os.fspath(path)} is damaged: {error}")) from error
