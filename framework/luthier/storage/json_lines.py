"""Append-only files of JSON lines: numbered, checksummed, and cut back when a write fails.

A line is what its writer made, with a number and a checksum spliced in at its end:

    {"kind": "step", "step": 12, "values": {"loss": 2.5},"n":41,"crc":"0f3c99a1"}

`crc` is the CRC-32 of the bytes of the line before `,"crc"`, and `n` counts the lines of the file
from 0. So a reader notices a line that was changed, is missing, or stands twice; it leaves it out,
continues behind it, and reports it. The first line that each process writes has `"format"`, too.
Lines of earlier versions have none of the three and are read as they are.

A writer keeps every line in memory until it is synced. When the disk refuses, in the middle of a
line or at the fsync, the file is cut back to what the last successful sync covered, and the lines
are written again: never a part of a line with another one glued to it, never a line twice.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pathlib
import re
import stat
import zlib
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO

from luthier.storage.atomic import require_format, run_error
from luthier.storage.lock import unfenced

FORMAT = 2
"""The format of lines that are written now; lines without a checksum are of format 1."""

_CRC = b',"crc":"'
_TAIL_BYTES = len(_CRC) + len('01234567"}\n')
# The comma is optional because an object without members (`{}`) gets its number without one.
_NUMBER = re.compile(rb'(?:,"format":\d+)?,?"n":(\d+)\Z')
_CHUNK_BYTES = 1 << 16


def seal(text: bytes, number: int, format: int | None = None) -> bytes:
    """Return the line of a JSON object.

    Args:
      text: The object as JSON, from `{` to `}`, without a line break, `n`, `crc` and `format`.
      number: Number of lines before it in the file.
      format: The format of the file, written into the first line of each process.

    Returns:
      The line with its number and checksum, and with its line break.

    Example:
      >>> from luthier import storage
      >>> line = storage.seal(b'{"step":10}', number=0)
      >>> storage.parse(line).record["step"]
      10
    """
    # Spliced in as bytes and not by parsing the object and dumping it again: this runs for every
    # line of every step, and the checksum must cover exactly the bytes that are written.
    body = text[:-1]
    if format is not None:
        body += b'%s"format":%d' % (b"," if len(body) > 1 else b"", format)
    body += b'%s"n":%d' % (b"," if len(body) > 1 else b"", number)
    return b'%s%s%08x"}\n' % (body, _CRC, zlib.crc32(body))


def _body(line: bytes) -> bytes | None:
    """Return the bytes that the checksum of a line covers; None if it is missing or wrong."""
    # The tail has a fixed length, so that the checksum is found by position, also in a line whose
    # JSON is damaged: `,"crc":"` ends 11 bytes before the end (8 digits, `"}` and the line break).
    if line[-_TAIL_BYTES:-11] != _CRC:
        return None
    body = line[:-_TAIL_BYTES]
    try:
        crc = int(line[-11:-3], 16)
    except ValueError:
        return None
    return body if crc == zlib.crc32(body) else None


def renumber(line: bytes, number: int) -> bytes:
    """Return a whole line with another number, and the checksum that belongs to it.

    Args:
      line: A line with or without a checksum, with its line break.
      number: Its new number.
    """
    body = _body(line)
    if body is None:
        return seal(line.rstrip(), number)
    numbered = _NUMBER.sub(b"", body)
    format = re.search(rb'"format":(\d+),"n":\d+\Z', body)
    return seal(numbered + b"}", number, int(format[1]) if format else None)


@dataclasses.dataclass(frozen=True, slots=True)
class Line:
    """A whole line of a file.

    Args:
      record: Its JSON object, without `n`, `crc` and `format`.
      raw: Its bytes, with the line break.
      start: Where it begins in the file, in bytes.
      place: Number of the line in the file, from 1.
      number: Its `n`; None for a line without a checksum.
    """

    record: dict[str, Any]
    raw: bytes
    start: int
    place: int
    number: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Damage:
    """Something that is wrong in a file.

    Args:
      place: The line (from 1) that is wrong, or before which lines are missing.
      what: `damaged`, `missing` or `repeated`.
      count: Number of lines.
    """

    place: int
    what: str
    count: int = 1


class LineReader:
    """Reads the whole lines of a file; damaged ones are left out and listed in `damage`.

    A last line without a line break is being written, or a killed process left it: it is left out
    and no damage.

    Args:
      path: The file; a missing one has no lines.
      newest: The newest format that the caller understands.
      accepts: Returns whether a JSON object can be a line of this file.

    Raises:
      RunError: While iterating: the file cannot be read.
      VersionError: While iterating: it was written by a later luthier.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        newest: int = FORMAT,
        accepts: Callable[[dict[str, Any]], bool] = lambda record: True,
    ):
        self.path = pathlib.Path(path)
        self.damage: list[Damage] = []
        self.torn_bytes = 0
        self._newest, self._accepts = newest, accepts
        self._begin()

    def _begin(self) -> None:
        self.damage, self.torn_bytes = [], 0
        self._place = self._start = 0  # of the next line: lines and bytes before it
        self._expected: int | None = None  # the next number; None before the first that has one
        self._damaged = 0  # in a row, just before the next line

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return (line.record for line in self.lines())

    def lines(self) -> Iterator[Line]:
        """Yield the whole lines, each with where it stands.

        Yields:
          The object of each line and its place.
        """
        self._begin()
        try:
            file = open(self.path, "rb")  # noqa: SIM115
        except FileNotFoundError:
            return
        except OSError as error:
            raise run_error("read", self.path, error) from error
        with file:
            while True:
                try:
                    raw = file.readline()
                except OSError as error:
                    raise run_error("read", self.path, error) from error
                if not raw.endswith(b"\n"):
                    self.torn_bytes = len(raw)
                    return
                line = self._take(raw)
                if line is not None:
                    yield line

    # Judges a line by its number alone. Smaller than expected: it stands twice (a copy of a file
    # that was cut back was put together wrongly), and the first one counts. Larger: lines are
    # missing, except for the damaged ones just before it, which are counted already. After a gap
    # the next number is taken as it is, so that one gap is reported once.
    def _take(self, raw: bytes) -> Line | None:
        """Return the next line; None where it is damaged, or stands twice."""
        self._place, begin = self._place + 1, self._start
        self._start += len(raw)
        line = self._parse(raw, begin, self._place)
        if line is None:
            self._damaged += 1
            self._note(self._place, "damaged")
            return None
        if line.number is not None:
            expected = self._expected or 0
            if line.number < expected:
                self._note(self._place, "repeated")
                return None
            missing = line.number - expected - self._damaged
            if missing > 0:
                self.damage.append(Damage(self._place, "missing", missing))
            self._expected = line.number + 1
        self._damaged = 0
        return line

    def leave_out(self, line: Line) -> None:
        """Count a line that was just yielded as damaged, for a reason that only the caller knows.

        Args:
          line: The last line that was yielded.
        """
        self._note(line.place, "damaged")

    # Runs of damaged lines are one entry: a block of zeros in the middle of a file would otherwise
    # be thousands of entries.
    def _note(self, place: int, what: str) -> None:
        last = self.damage[-1] if self.damage else None
        if last is not None and last.what == what and last.place + last.count == place:
            self.damage[-1] = dataclasses.replace(last, count=last.count + 1)
        else:
            self.damage.append(Damage(place, what))

    def _parse(self, raw: bytes, start: int, place: int) -> Line | None:
        line = parse(raw, start, place)
        if line is None:
            return None
        format = line.record.pop("format", None) if line.number is not None else None
        # Each process that appends writes the format into its first line, so that a later luthier
        # that resumed the run is noticed at the place where its lines begin.
        require_format(self.path, {"format": format}, self._newest)
        return line if self._accepts(line.record) else None

    @property
    def report(self) -> str:
        """One line about everything that was left out; empty where the file is whole."""
        if not self.damage:
            return ""
        descriptions = [_describe(damage) for damage in self.damage[:3]]
        more = sum(damage.count for damage in self.damage[3:])
        descriptions += [f"{more} more"] if more else []
        return f"{self.path}: {', '.join(descriptions)}; what is whole was read"


class LineFollower(LineReader):
    """Reads the lines of a file that grows, as far as they are whole: at each call those added.

    Args:
      path: The file; it may not exist yet.
      newest: The newest format that the caller understands.
      accepts: Returns whether a JSON object can be a line of this file.

    Raises:
      RunError: While iterating: the file cannot be read.
      VersionError: While iterating: it was written by a later luthier.
    """

    _file: BinaryIO | None = None
    _rest = b""

    def lines(self) -> Iterator[Line]:
        """Yield the whole lines that were added since the last call.

        Yields:
          The object of each line and its place.
        """
        try:
            if self._file is None:
                self._file = open(self.path, "rb")  # noqa: SIM115
            while chunk := self._file.read(1 << 20):
                # The rest is a line that is being written at this moment. It is kept, and completed
                # by the next call: reading it as a line would report damage that is none.
                *whole, self._rest = (self._rest + chunk).split(b"\n")
                for text in whole:
                    line = self._take(text + b"\n")
                    if line is not None:
                        yield line
        except FileNotFoundError:
            return
        except OSError as error:
            raise run_error("read", self.path, error) from error

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()


def looks_whole(path: str | os.PathLike[str], window_bytes: int = 1 << 18) -> bool:
    """Return whether nothing is wrong with the end of a file; quick, whatever its size.

    Args:
      path: The file; a missing one, or one that cannot be read, has nothing wrong.
      window_bytes: Bytes of its end to look at.

    Returns:
      False if a line near the end is damaged or missing.

    Example:
      >>> from luthier import storage
      >>> storage.looks_whole("missing.jsonl")
      True
    """
    try:
        with open(path, "rb") as file:
            start = max(0, file.seek(0, os.SEEK_END) - window_bytes)
            file.seek(start)
            lines = file.read().splitlines(keepends=True)
    except OSError:
        return True
    # Where the window begins in the middle of the file, its first line is cut and its numbers begin
    # anywhere.
    expected = None if start else 0
    for raw in lines[1:] if start else lines:
        if not raw.endswith(b"\n"):
            return True  # it is being written
        body = _body(raw)
        number = None if body is None else _NUMBER.search(body)
        if number is not None:
            if expected not in (None, int(number[1])):
                return False
            expected = int(number[1]) + 1
        elif parse(raw) is None:
            return False
    return True


def _describe(damage: Damage) -> str:
    if damage.what == "missing":
        lines = "1 line is" if damage.count == 1 else f"{damage.count} lines are"
        return f"{lines} missing before line {damage.place}"
    if damage.count == 1:
        return f"line {damage.place} is {damage.what}"
    return f"lines {damage.place} to {damage.place + damage.count - 1} are {damage.what}"


def parse(raw: bytes, start: int = 0, place: int = 1) -> Line | None:
    """Return a line; None where it is torn or damaged.

    Args:
      raw: Its bytes, with the line break.
      start: Where it begins in the file, in bytes.
      place: Number of the line in the file, from 1.

    Returns:
      The object of the line and its place, or None.

    Example:
      >>> from luthier import storage
      >>> line = storage.seal(b'{"step":10}', number=0)
      >>> storage.parse(line).record["step"], storage.parse(line[:-4])
      (10, None)
    """
    if not raw.endswith(b"\n"):
        return None
    # Three kinds of lines: with a right checksum, of an earlier version (without any), and damaged.
    # A flipped bit in the tail must not turn the first kind into the second, hence the refusal of
    # lines that have `n` or `crc` without being sealed by them.
    # Positions as in `_body`; a line that claims a checksum, and has a wrong one, is damaged.
    claims_crc = raw[-_TAIL_BYTES:-11] == _CRC
    if claims_crc and _body(raw) is None:
        return None
    try:
        record = json.loads(raw)
    # A damaged file can hold anything, such as ten thousand brackets, at which Python's parser
    # recurses too deeply.
    except (ValueError, RecursionError):
        return None
    if not isinstance(record, dict):
        return None
    number = None
    if claims_crc:
        number = record.pop("n", None)
        del record["crc"]
        # `type` and not `isinstance`: True is an int, too.
        if type(number) is not int or number < 0:
            return None
    elif "n" in record or "crc" in record:  # a damaged end, not a line of an earlier version
        return None
    return Line(record, raw, start, place, number)


_FORMAT_IN_LINE = re.compile(rb',"format":(\d+),"n":\d+,"crc":"[0-9a-f]{8}"\}\n')


def require_known_format(path: str | os.PathLike[str], newest: int = FORMAT) -> None:
    """Refuse a file that a later luthier wrote, before anything is appended to it.

    Args:
      path: The file; a missing one is fine.
      newest: The newest format that the caller understands.

    Raises:
      VersionError: One of its processes wrote a newer format.
      RunError: The file cannot be read.

    Example:
      >>> from luthier import storage
      >>> storage.require_known_format("missing.jsonl")
    """
    try:
        with open(path, "rb") as file:
            rest = b""
            while chunk := file.read(1 << 22):
                # A search of the bytes, because a file of days has gigabytes and only the first
                # line of each process has a format. What matches always stands at the end of a
                # line, so that the text of a user cannot imitate it; 128 bytes of overlap are more
                # than the pattern can match.
                for match in _FORMAT_IN_LINE.finditer(rest + chunk):
                    require_format(path, {"format": int(match[1])}, newest)
                rest = chunk[-128:]
    except FileNotFoundError:
        return
    except OSError as error:
        raise run_error("read", path, error) from error


# How a line travels: `add` puts it into `_waiting` (memory only), `write` into the file and
# `_unsynced`, `sync` takes it out of `_unsynced`. `_end` is where the file ends as far as we wrote
# it, `_synced_end` how far it is known to be durable. A failure moves lines backwards along this
# path and cuts the file to the matching end, so that a line is always in exactly one of file and
# memory.
class LineWriter:
    """Appends JSON lines to a file; its only writer, under a lock that the caller holds.

    Lines wait in memory until `write` puts them into the file, and are kept until `sync` has made
    them durable. Not safe to be used by several threads at once.

    Args:
      path: The file; it is created if missing, and a torn last line is cut off.
      fence: Raises `LockLost` where somebody else has become the writer; called before each write.
      format: The format of the file.

    Raises:
      RunError: The file cannot be opened for writing.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fence: Callable[[], None] = unfenced,
        format: int = FORMAT,
    ):
        self.path = pathlib.Path(path)
        self.mended = 0
        """Bytes of a torn last line that were cut off."""
        self._fence = fence
        self._format: int | None = format
        self._waiting: list[bytes] = []
        self._unsynced: list[bytes] = []
        self._is_torn = False
        try:
            # O_APPEND, so that a superseded writer that wakes up can only append, and never
            # overwrite the lines of its successor; the successor cuts off what was appended
            # (`_find_end`).
            self._descriptor = os.open(
                self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666
            )
        except OSError as error:
            raise run_error("write", self.path, error) from error
        try:
            # A pipe or a device keeps nothing that could be cut back.
            self._is_file = stat.S_ISREG(os.fstat(self._descriptor).st_mode)
            self._end = self._synced_end = self._mend() if self._is_file else 0
            self._next = self._last_number() + 1 if self._is_file else 0
        except OSError as error:
            os.close(self._descriptor)
            raise run_error("write", self.path, error) from error

    @property
    def num_waiting(self) -> int:
        """The number of lines that are not in the file yet."""
        return len(self._waiting)

    @property
    def num_unsynced(self) -> int:
        """The number of lines that are in the file, but perhaps not on the disk."""
        return len(self._unsynced)

    def add(self, text: str | bytes) -> None:
        """Take in a line; it is in the file after the next `write`.

        Args:
          text: A JSON object without `n`, `crc` and `format`, from `{` to `}`, in one line.
        """
        data = text.encode() if isinstance(text, str) else text
        self._waiting.append(seal(data, self._next, self._format))
        # The number is given when the line is taken in: a line that is written again after a
        # failure keeps it.
        self._next += 1
        self._format = None

    def write(self) -> None:
        """Put the lines that wait into the file, or leave it as it was.

        Raises:
          OSError: The disk refuses; the lines wait for the next call.
          LockLost: Somebody else is the writer now.
        """
        if not self._waiting:
            return
        self._fence()
        self._find_end()
        data = memoryview(b"".join(self._waiting))
        size = len(data)
        try:
            self._cut()
            while data:
                # A write may be short, above all on a disk that is nearly full: the rest of the
                # loop then meets ENOSPC, and the whole batch is cut off again.
                data = data[os.write(self._descriptor, data) :]
        except OSError:
            self._tear()
            raise
        self._end += size
        self._unsynced += self._waiting
        self._waiting = []

    def sync(self) -> None:
        """Make durable what is in the file, or take it out again.

        Raises:
          OSError: The disk refuses; the lines wait for the next `write`.
          LockLost: Somebody else is the writer now.
        """
        self._fence()
        try:
            if self._is_file:
                os.fsync(self._descriptor)
        except OSError:
            # After a failed fsync Linux marks the dirty pages clean and reports the error once. The
            # file may look right in the page cache and be wrong on the disk, so everything since
            # the last successful fsync is taken out and written again from memory.
            # Pages that could not be written may be dropped, and the next fsync would succeed.
            self._end = self._synced_end
            self._waiting = self._unsynced + self._waiting
            self._unsynced = []
            self._tear()
            raise
        self._synced_end = self._end
        self._unsynced.clear()

    def commit(self) -> None:
        """Return when all that was added is on the disk.

        Raises:
          RunError: The disk refuses; the file is what it was, and the lines wait.
          LockLost: Somebody else is the writer now.
        """
        try:
            if self._waiting:
                self.write()
            if self._unsynced:
                self.sync()
        except OSError as error:
            raise run_error("write", self.path, error) from error

    def close(self) -> None:
        """Let go of the file; what waits is not written. A second call does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def _find_end(self) -> None:
        """Mark lines that a superseded writer appended to be cut off: this is the only writer."""
        if self._is_file and not self._is_torn:
            size = os.fstat(self._descriptor).st_size
            self._is_torn = size > self._end
            # Somebody made the file shorter: the numbers will show that lines are missing.
            self._end, self._synced_end = min(self._end, size), min(self._synced_end, size)

    def _tear(self) -> None:
        """Take out what stands behind the end, now or before the next line is written."""
        self._is_torn = self._is_file
        with contextlib.suppress(OSError):
            self._cut()

    def _cut(self) -> None:
        if self._is_torn:
            os.ftruncate(self._descriptor, self._end)
            self._is_torn = False

    # Searches backwards in chunks for the last line break: what stands behind it is a line that a
    # killed process did not finish. It is found without reading a file of gigabytes.
    def _mend(self) -> int:
        """Cut off a torn last line; return the file's length."""
        end = position = os.fstat(self._descriptor).st_size
        while position > 0:
            start = max(0, position - _CHUNK_BYTES)
            newline = os.pread(self._descriptor, position - start, start).rfind(b"\n")
            if newline >= 0:
                position = start + newline + 1
                break
            position = start
        if position != end:
            os.ftruncate(self._descriptor, position)
            self.mended = end - position
        return position

    # The window grows because the last lines may be damaged or long; the whole file is read only
    # where no line has a number.
    def _last_number(self) -> int:
        """Return the number of the last line that has one; -1 where none has."""
        window = _CHUNK_BYTES
        while True:
            start = max(0, self._end - window)
            lines = os.pread(self._descriptor, self._end - start, start).splitlines(keepends=True)
            for raw in reversed(lines[1:] if start else lines):
                body = _body(raw)
                found = None if body is None else _NUMBER.search(body)
                if found:
                    return int(found[1])
            if start == 0:
                return -1
            window *= 8
