"""Atomic writes: a reader sees the old file or the new one, whichever process dies meanwhile."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from luthier.errors import Problem, RunError, VersionError

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
      action: The attempted action, such as `write`.
      path: The file or directory that it was tried on.
      error: The operating system's error.

    Returns:
      The error, to be raised.

    Example:
      >>> from luthier import storage
      >>> print(storage.run_error("write", "runs", OSError(28, "No space left on device")))
      cannot write runs: No space left on device; free space on that disk, ...
    """
    reason = error.strerror or str(error) or type(error).__name__
    remedy = _REMEDIES.get(error.errno or 0, "")
    return RunError(Problem(f"cannot {action} {os.fspath(path)}: {reason}", remedy=remedy))


@contextlib.contextmanager
def one_line_errors(action: str, path: str | os.PathLike[str]) -> Iterator[None]:
    """Turn an `OSError` of the block into the `RunError` of `run_error`.

    Args:
      action: The attempted action, such as `write`.
      path: The file or directory that it is tried on.
    """
    try:
        yield
    except OSError as error:
        raise run_error(action, path, error) from error


@contextlib.contextmanager
def replacing(
    path: str | os.PathLike[str], fence: Callable[[], None] | None = None
) -> Iterator[Any]:
    """Open a new file that takes the place of `path` when the block ends without an exception.

    Until then `path` is what it was. The new file and its name are durable afterwards.

    Args:
      path: The file; its directory must exist.
      fence: Raises where another process writes here now; called just before the switch of names.

    Yields:
      A binary file to write to.

    Raises:
      OSError: The operating system refuses; `path` is what it was.

    Example:
      >>> import pathlib
      >>> from luthier import storage
      >>> with storage.replacing("note.txt") as file:
      ...     _ = file.write(b"To be")
      >>> pathlib.Path("note.txt").read_text()
      'To be'
    """
    path = pathlib.Path(path)
    # Random, because two hosts of a shared disk, and two threads, may have the same process id.
    temporary = path.with_name(f".{path.name}.{os.getpid()}-{os.urandom(3).hex()}.tmp")
    try:
        # The order matters for a power cut: the content is made durable first, then the name is
        # switched, then the directory is synced. Without the first fsync some file systems replace
        # the name before the data is written, and the file is empty after the crash.
        with open(temporary, "xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        # Here and not before: the fsync above takes milliseconds, in which a process may be stopped
        # for hours while another takes its place.
        if fence is not None:
            fence()
        os.replace(temporary, path)
    # Also for KeyboardInterrupt, so that no temporary files pile up.
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    sync_directory(path.parent)


def write_atomically(
    path: str | os.PathLike[str], text: str, fence: Callable[[], None] | None = None
) -> None:
    """Write a text file so that `path` holds the old text or the new, never a part of it.

    Args:
      path: The file; its directory must exist.
      text: The content, written as UTF-8.
      fence: See `replacing`.

    Raises:
      RunError: The disk is full, the directory is missing or cannot be written.

    Example:
      >>> import pathlib
      >>> from luthier import storage
      >>> storage.write_atomically("note.txt", "To be")
      >>> pathlib.Path("note.txt").read_text()
      'To be'
    """
    write_bytes_atomically(path, text.encode("utf-8"), fence)


def write_bytes_atomically(
    path: str | os.PathLike[str], data: bytes, fence: Callable[[], None] | None = None
) -> None:
    """Write a file as `write_atomically` does.

    Args:
      path: The file; its directory must exist.
      data: The content.
      fence: See `replacing`.

    Raises:
      RunError: The disk is full, the directory is missing or cannot be written.

    Example:
      >>> import pathlib
      >>> from luthier import storage
      >>> storage.write_bytes_atomically("note.txt", b"To be")
      >>> pathlib.Path("note.txt").read_bytes()
      b'To be'
    """
    with one_line_errors("write", path), replacing(path, fence) as file:
        file.write(data)


def write_together(directory: str | os.PathLike[str], files: Mapping[str, str]) -> None:
    """Write text files into a directory that nobody reads yet, and wait for the disk once.

    Args:
      directory: Where they go; it must exist.
      files: Their texts, by name.

    Raises:
      RunError: The disk refuses; some of them may be there.

    Example:
      >>> import os
      >>> from luthier import storage
      >>> os.mkdir("notes")
      >>> storage.write_together("notes", {"a.txt": "To be", "b.txt": "or not"})
      >>> sorted(os.listdir("notes"))
      ['a.txt', 'b.txt']
    """
    with contextlib.ExitStack() as opened:
        written = []
        # All files are written before the first fsync, because an fsync makes the journal of the
        # file system wait for everything before it; file by file, each would wait on its own. There
        # is no rename: the caller makes the whole directory visible afterwards.
        for name, text in files.items():
            path = pathlib.Path(directory, name)
            with one_line_errors("write", path):
                file = opened.enter_context(open(path, "wb"))
                file.write(text.encode("utf-8"))
                file.flush()
            written.append((path, file))
        # The system begins to write all of them, and gives each its blocks, so that the first fsync
        # commits the journal for the others, too: 4 ms for eight files on ext4 instead of 9.
        if hasattr(os, "posix_fadvise"):
            for _, file in written:
                with contextlib.suppress(OSError):
                    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        for path, file in written:
            with one_line_errors("write", path):
                os.fsync(file.fileno())
    sync_directory(directory)


def sync_directory(path: str | os.PathLike[str]) -> None:
    """Make the names in a directory durable, where the file system can.

    Args:
      path: The directory; one that is missing or cannot be synced is left alone.

    Example:
      >>> from luthier import storage
      >>> storage.sync_directory(".")
    """
    with contextlib.suppress(OSError):
        # A rename or a new file is durable only when its directory is. Some network file systems
        # refuse to sync a directory; they keep their own promises about names, and nothing better
        # can be done.
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def write_json(
    path: str | os.PathLike[str],
    value: Any,
    redact: Callable[[str], str] | None = None,
    fence: Callable[[], None] | None = None,
) -> None:
    """Write a value as strict, indented JSON, atomically.

    Args:
      path: The file; its directory must exist.
      value: The value.
      redact: Takes secrets out of the text; None writes it as it is.
      fence: See `replacing`.

    Raises:
      RunError: See `write_atomically`.

    Example:
      >>> from luthier import storage
      >>> storage.write_json("status.json", {"step": 10})
      >>> storage.read_json("status.json")
      {'step': 10}
    """
    text = json_text(value)
    write_atomically(path, text if redact is None else redact(text), fence)


def json_text(value: Any) -> str:
    """Return a value as strict, indented JSON.

    Args:
      value: A plain value: dicts with text as keys, lists, text, finite numbers, booleans and None.

    Returns:
      The text, with a line break at its end.

    Example:
      >>> from luthier import storage
      >>> print(storage.json_text({"step": 10}), end="")
      {
       "step": 10
      }
    """
    # `NaN` is not JSON, and strict readers (browsers, jq) refuse the whole file because of it.
    return json.dumps(value, indent=1, allow_nan=False) + "\n"


def require_format(path: str | os.PathLike[str], content: Any, newest: int) -> None:
    """Refuse the content of a file that a later luthier wrote in a format of its own.

    Args:
      path: The file.
      content: Its JSON value; its format is the number `format`, and 1 where it has none.
      newest: The newest format that the caller understands.

    Raises:
      VersionError: The format is newer.

    Example:
      >>> from luthier import storage
      >>> storage.require_format("status.json", {"format": 2}, newest=1)
      Traceback (most recent call last):
          ...
      luthier.errors.VersionError: ...
    """
    format = content.get("format") if isinstance(content, dict) else None
    if isinstance(format, int) and format > newest:
        name = os.fspath(path)
        what = f"{name} was written by a later luthier (format {format}, known: {newest})"
        raise VersionError(Problem(what, remedy="update luthier; nothing was changed"))


def read_json(path: str | os.PathLike[str], default: Any = None, newest: int | None = None) -> Any:
    """Return a JSON file's value.

    Args:
      path: The file.
      default: Value of a missing file.
      newest: The newest format that the caller understands; None where the file has none.

    Returns:
      The value, or `default`.

    Raises:
      RunError: The file cannot be read, or is not JSON.
      VersionError: It was written by a later luthier.

    Example:
      >>> import pathlib
      >>> from luthier import storage
      >>> _ = pathlib.Path("status.json").write_text('{"step": 10}')
      >>> storage.read_json("status.json"), storage.read_json("missing.json", default={})
      ({'step': 10}, {})
    """
    try:
        text = pathlib.Path(path).read_text(encoding="utf-8")
        content = json.loads(text)
        if newest is not None:
            require_format(path, content, newest)
        return content
    except FileNotFoundError:
        return default
    except OSError as error:
        raise run_error("read", path, error) from error
    except (ValueError, RecursionError) as error:
        raise RunError(Problem(f"{os.fspath(path)} is damaged: {error}")) from error
