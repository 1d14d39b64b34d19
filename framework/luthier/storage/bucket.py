"""A folder of an object store: objects are written whole, under names that were checked."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import pathlib
import re
import time
import unicodedata
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, TypeVar

from luthier.errors import Problem, RunError, StoreError, StoreUnavailable
from luthier.storage.transfer import (
    STALL_SECONDS,
    ChangedObject,
    GoneObject,
    OutOfRange,
    read_pieces,
)

# Names of objects as paths of files: whoever may write to a bucket chooses them, not the user.

_DRIVE = re.compile(r"[A-Za-z]:")


def fault_of(key: str) -> str:
    """Return the reason why an object's name is not a path below a run's directory, or empty.

    Args:
      key: The name, as `checkpoints/20/commit.json`.
    """
    if key.startswith("/"):
        return "it is absolute"
    if any(unicodedata.category(letter)[0] == "C" for letter in key):
        return "it has control characters"
    if "\\" in key:
        return "it has a backslash"
    parts = key.split("/")
    if "" in parts:
        return "a part of it is empty"
    if not {".", ".."}.isdisjoint(parts):
        return "it leads to another folder"
    if any(_DRIVE.match(part) for part in parts):
        return "it names a drive"
    return ""


def open_below(folder: pathlib.Path, key: str) -> BinaryIO:
    """Return a new file below a folder, open for writing; no link on the way is followed.

    Args:
      folder: A folder that exists.
      key: Its path there, without a fault.

    Raises:
      OSError: The file is there already, a folder on the way is a file or a link, or the disk
        refuses.
    """
    *folders, name = key.split("/")
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW
    # Folder by folder through descriptors, each opened with O_NOFOLLOW: a path that is opened as a
    # whole follows links in its middle, which another process could put there between a check and
    # the opening.
    place = os.open(folder, flags)
    try:
        for part in folders:
            with contextlib.suppress(FileExistsError):
                os.mkdir(part, dir_fd=place)
            below = os.open(part, flags, dir_fd=place)
            os.close(place)
            place = below
        created = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
        return os.fdopen(os.open(name, created, 0o666, dir_fd=place), "wb")
    finally:
        os.close(place)


# A folder of an object store: whole objects, written at once, on condition or not.
#
# Credentials are those of Google's and Amazon's own tools; stores like S3 are those of
# `AWS_ENDPOINT_URL`. A `file://` URL is a folder of this machine.

REMOTE_SCHEMES = ("gs://", "s3://")
SCHEMES = (*REMOTE_SCHEMES, "file://")
_ABSENT = ".absent"
_LEAST_BYTES_PER_SECOND = 1 << 20

PATIENCE = "LUTHIER_STORE_SECONDS"
"""The environment variable with the time for which saves wait for a store that is away."""

_PATIENCE_SECONDS = 300.0
REQUEST_PATIENCE_SECONDS = 15.0
"""The same, where a command starts, or where a thread tries again anyway."""

_LONGEST_PAUSE_SECONDS = 32
_NUM_TRIES = 4

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True)
class Object:
    """An object as it was read.

    Args:
      data: Its content; None where there is no such object.
      version: Changes whenever it is written.
    """

    data: bytes | None
    version: bytes


class MissingObject(RunError):
    """An object that is to be read is not there."""


class PendingRead:
    """A read of a store that has begun; `Bucket.start_read` returns it.

    Args:
      bucket: The folder of the object.
      key: Its name there.
      answer: TensorStore's future.
    """

    def __init__(self, bucket: Bucket, key: str, answer: Any):
        self._bucket, self._key, self._answer = bucket, key, answer

    @property
    def is_done(self) -> bool:
        """Whether `result` returns, or raises, without waiting."""
        return self._answer.done()

    def wait(self, seconds: float) -> bool:
        """Wait for a while; return `is_done`.

        Args:
          seconds: The most time.
        """
        # Whatever it raises, `result` raises again.
        with contextlib.suppress(Exception):
            self._answer.result(timeout=seconds)
        return self.is_done

    def result(self) -> Object:
        """Return the object, or the range of it that was wanted; may be called repeatedly.

        Raises:
          RunError: The store does not answer, or refuses.
          OutOfRange: The object ends before the range does.
        """
        # Not cancelled after a time-out, as a write is: another thread may wait for it, and
        # TensorStore cancels what nobody refers to any more.
        with self._bucket.in_one_line(self._key):
            return _object_of(self._answer.result(timeout=self._bucket.stall_seconds))


class Bucket:
    """A folder of an object store.

    Args:
      url: `gs://bucket/folder`, `s3://bucket/folder` or `file:///folder`.
      stall_seconds: Time limit of one request, with its repetitions.
      patience_seconds: For how long a request is repeated while the store is away.

    Raises:
      RunError: It is not such a URL.
    """

    def __init__(
        self,
        url: str,
        stall_seconds: float = STALL_SECONDS,
        patience_seconds: float = REQUEST_PATIENCE_SECONDS,
    ):
        if not url.startswith(SCHEMES):
            remedy = f"write {', '.join(f'{scheme}...' for scheme in SCHEMES)}"
            raise RunError(Problem(f"{url!r} is not the URL of an object store", remedy=remedy))
        self.url = url.rstrip("/") + "/"
        self.stall_seconds = stall_seconds
        # A user with less patience waits nowhere longer.
        self._patience_seconds = min(patience_seconds, most_patience_seconds())
        # Opened at the first use: `import tensorstore` takes a while, and many commands only name a
        # bucket.
        self._opened: Any = None

    def __truediv__(self, folder: str) -> Bucket:
        """Return a folder in this folder."""
        return Bucket(self.url + folder, self.stall_seconds, self._patience_seconds)

    def read(self, key: str) -> Object:
        """Return an object.

        Args:
          key: Its name in this folder.

        Raises:
          RunError: The store does not answer, or refuses.
        """
        return _object_of(self._ask(key, lambda store: store.read(key)))

    def start_read(self, key: str, start: int = 0, stop: int | None = None) -> PendingRead:
        """Begin to read an object or a range of it, and do not wait for the answer.

        Many reads may be on their way at a time; TensorStore limits how many requests are sent at
        once, and repeats those that fail for a reason that may pass.

        Args:
          key: Its name in this folder.
          start: The first byte.
          stop: The byte after the last one; None for the end of the object.

        Raises:
          RunError: The store cannot be opened.
        """
        # Without a range for a whole object: of an empty one there is no first byte.
        wanted = {} if (start, stop) == (0, None) else {"byte_range": slice(start, stop)}
        with self.in_one_line(key):
            return PendingRead(self, key, self._store().read(key, **wanted))

    def read_pieces(self, key: str) -> Iterator[bytes]:
        """Yield the content of an object of any size, piece by piece.

        Args:
          key: Its name in this folder; it must exist.

        Raises:
          MissingObject: There is no such object.
          RunError: The store does not answer or refuses, or the object changes meanwhile.
        """

        def read(wanted: slice) -> Any:
            return self._ask(key, lambda store: store.read(key, byte_range=wanted))

        try:
            yield from read_pieces(read, self.stall_seconds)
        except GoneObject:
            what = f"{self.url}{key} does not exist"
            raise MissingObject(Problem(what, remedy="rerun the command")) from None
        except ChangedObject:
            what = f"{self.url}{key} changed while it was read"
            raise RunError(Problem(what, remedy="rerun the command")) from None

    def write(self, key: str, data: bytes, over: Object | None = None) -> bool:
        """Write an object; return whether it was.

        Args:
          key: Its name in this folder.
          data: Its content.
          over: Write only where the object still is what was read; None writes in any case. What
            two processes may write at a time must differ, as by a random number in it.

        Raises:
          RunError: The store does not answer, or refuses.
        """
        if over is None:
            self._ask(key, lambda store: store.write(key, data), self._seconds_for(data))
            return True
        for number in range(_NUM_TRIES):
            # A conditional write. TensorStore reports a condition that failed not as an error, but
            # by an empty generation.
            stamp = self._ask(
                key,
                lambda store: store.write(key, data, if_equal=over.version),
                self._seconds_for(data),
            )
            if stamp.generation:
                return True
            # TensorStore sends a request again whose answer was lost. Where the first one was
            # carried out, the second finds its own object there, and the condition fails.
            found = self.read(key)
            if found.data == data:
                return True
            if found.version != over.version:
                return False
            # Refused, although nobody has written: a store that lost a race with itself. The caller
            # would take it for another writer, and end.
            time.sleep(0.1 * 2**number)
        what = f"{self.url}{key}: the store refuses to replace the object that it returns"
        remedy = "use a store with conditional writes (If-Match, If-None-Match)"
        raise StoreError(Problem(what, remedy=remedy))

    def _seconds_for(self, data: bytes) -> float:
        # An object is one request, however large it is: the time limit of a large one is a speed.
        return max(self.stall_seconds, len(data) / _LEAST_BYTES_PER_SECOND)

    def check_arrival(self, key: str, data: bytes) -> None:
        """Check that an object is as long as it was written.

        Args:
          key: Its name in this folder.
          data: Its content.

        Raises:
          StoreUnavailable: It is not.
          RunError: The store does not answer, or refuses.
        """
        # Stores refuse an upload that is shorter than announced, and TensorStore sends no checksum:
        # a store, or a proxy before it, that takes half an upload for all of it is found out only
        # by asking for the last byte.
        last = slice(max(len(data) - 1, 0), None)
        with contextlib.suppress(OutOfRange):
            if self._ask(key, lambda store: store.read(key, byte_range=last)).value == data[-1:]:
                return
        raise incomplete(f"{self.url}{key}")

    def delete(self, key: str) -> None:
        """Delete an object; a missing object is fine.

        Args:
          key: Its name in this folder.

        Raises:
          RunError: The store does not answer, or refuses.
        """
        # TensorStore deletes by writing None.
        self._ask(key, lambda store: store.write(key, None))

    def list(self, folder: str = "", skipped: str = "") -> Sequence[str]:
        """Return the names of all objects in this folder and below, sorted.

        Args:
          folder: Only those whose names begin with it.
          skipped: Not those whose names begin with it, which begins with `folder`.

        Raises:
          RunError: The store does not answer, or refuses.
        """
        end = _after(folder)
        # By two ranges, so that a hundred thousand objects that nobody asked for are not listed.
        ranges = [(folder, skipped), (_after(skipped), end)] if skipped else [(folder, end)]
        names = [name for each in ranges for name in self._listed(folder, *each)]
        if not names:
            # TensorStore 0.1.86 lists nothing where Google's store answers a listing with 403: a
            # run that may not be seen would look like one that does not exist. A read is refused.
            self.read(f"{folder}{_ABSENT}")
        # A name that is not UTF-8 is none of ours: readable here, and refused where it is used.
        return sorted(name.decode("utf-8", "backslashreplace") for name in names)

    def _listed(self, folder: str, start: str, end: str) -> Sequence[bytes]:
        import tensorstore

        keys = tensorstore.KvStore.KeyRange(start, end)
        return self._ask(folder, lambda store: store.list(keys))

    def _ask(self, key: str, question: Callable[[Any], Any], seconds: float | None = None) -> Any:
        seconds = self.stall_seconds if seconds is None else seconds
        with self.in_one_line(key, seconds):
            answer = question(self._store())
            try:
                return answer.result(timeout=seconds)
            except TimeoutError:
                # Cancelled, or the request would go on in TensorStore's threads and write after a
                # later one.
                answer.cancel()
                raise

    @contextlib.contextmanager
    def in_one_line(self, key: str, seconds: float | None = None) -> Iterator[None]:
        """Turn the errors of TensorStore in a block into those of this class.

        Args:
          key: The object that is asked for.
          seconds: How long an answer is waited for in the block; None means `stall_seconds`.
        """
        try:
            yield
            return
        except TimeoutError:
            seconds = self.stall_seconds if seconds is None else seconds
            error: Exception = TimeoutError(f"no answer in {seconds:g} s")
        except (ValueError, OSError, KeyError) as raised:
            # TensorStore raises ValueError for it, as for all else; the status code is only in the
            # text.
            if str(raised).startswith("OUT_OF_RANGE"):
                raise OutOfRange from None
            error = raised
        raise refusal(f"{self.url}{key}", error) from None

    def _store(self) -> Any:
        if self._opened is None:
            limit_stalls()
            import tensorstore

            spec = tensorstore_spec(self.url, self._patience_seconds)
            self._opened = tensorstore.KvStore.open(spec).result(timeout=self.stall_seconds)
        return self._opened


def _object_of(found: Any) -> Object:
    """Return TensorStore's `ReadResult` as an object."""
    data = None if found.state == "missing" else found.value
    return Object(data, found.stamp.generation)


# Trouble with a store: whether it passes by itself, and for how long that is waited for.

# TensorStore's errors begin with a status, except for those of `INVALID_ARGUMENT`, and end with
# details of the answer in brackets. A store that asks for fewer requests (429, 503) or that cannot
# be reached is ABORTED, after the last repetition.
_STATUS = re.compile(
    r"(UNAVAILABLE|PERMISSION_DENIED|UNAUTHENTICATED|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|ABORTED|"
    r"NOT_FOUND|FAILED_PRECONDITION|INTERNAL|DATA_LOSS|OUT_OF_RANGE|UNKNOWN): "
)
_PASSES = ("UNAVAILABLE", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED", "ABORTED")
_SHORT = ("DATA_LOSS", "OUT_OF_RANGE")
_OBJECT = re.compile(r"(?:gs|s3)://\S+(?=: )")
_HTTP = re.compile(r"\[http_response_code='(\d+)'\]")
_DETAILS = re.compile(r" \[(?:http_|curl_|source locations).*")
_EXPIRED = re.compile(r"ExpiredToken|TokenRefreshRequired|InvalidToken|RequestExpired")


def is_refusal(error: BaseException) -> bool:
    """Return whether an error of TensorStore is about a request to an object store.

    Args:
      error: Any exception.
    """
    text = str(error)
    return isinstance(error, ValueError | OSError | KeyError) and (
        _STATUS.match(text) is not None or _HTTP.search(text) is not None
    )


def refusal(place: str, error: BaseException) -> StoreError:
    """Return the error for a refused request, with a line that names the store and a remedy.

    Args:
      place: The URL of the object, or of the folder.
      error: The error of TensorStore, or a `TimeoutError`.
    """
    text = " ".join(str(error).split())
    status, code = text.partition(":")[0], _HTTP.search(text)
    why = _DETAILS.sub("", text)[:300]
    if status in _SHORT:
        named = _OBJECT.search(text)
        return incomplete(named[0] if named else place)
    if code:
        why += f" (HTTP {code[1]})"
    if isinstance(error, TimeoutError) or status in _PASSES:
        remedy = "wait until the store responds again, or check the network"
        return StoreUnavailable(Problem(f"{place}: {why}", remedy=remedy))
    remedy = "check the network and your credentials"
    if _EXPIRED.search(text) or (code and code[1] == "401") or status == "UNAUTHENTICATED":
        remedy = "renew your credentials"
    elif status == "PERMISSION_DENIED":
        remedy = "check that your credentials may list, read, write and delete objects there"
    return StoreError(Problem(f"{place}: {why}", remedy=remedy))


def incomplete(place: str) -> StoreUnavailable:
    """Return the error for an upload of which the store has only a part.

    Args:
      place: The URL of the object, or of the folder.
    """
    remedy = "check what is between this machine and the store"
    return StoreUnavailable(Problem(f"{place} was stored incompletely", remedy=remedy))


def most_patience_seconds(environment: Mapping[str, str] = os.environ) -> float:
    """Return for how long a save waits for a store that does not respond.

    Args:
      environment: Such as `os.environ`.

    Raises:
      RunError: `LUTHIER_STORE_SECONDS` is not a number of seconds.
    """
    text = environment.get(PATIENCE)
    if not text:
        return _PATIENCE_SECONDS
    if not re.fullmatch(r"\d+(\.\d+)?", text):
        raise RunError(Problem(f"{PATIENCE}={text} is not a number of seconds"))
    return float(text)


def patiently(ask: Callable[[], _T]) -> _T:
    """Return the result of a function, called again while the store is away.

    Args:
      ask: Asks a store; may be called several times.

    Raises:
      StoreUnavailable: It is still away after `most_patience_seconds`.
    """
    deadline, pause = time.monotonic() + most_patience_seconds(), 1.0
    while True:
        try:
            return ask()
        except StoreUnavailable:
            if (left := deadline - time.monotonic()) <= 0:
                raise
            time.sleep(min(pause, left))
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)


def limit_stalls() -> None:
    """Let TensorStore repeat a request whose connection is silent; call before its first request.

    Without it, TensorStore waits for ever for a store that accepts a request and never answers.
    """
    # Variables, because TensorStore 0.1.86 has no other way: it reads them at its first request.
    # Whoever has set them keeps them.
    for name, value in (
        ("TENSORSTORE_CURL_LOW_SPEED_TIME_SECONDS", f"{STALL_SECONDS:g}"),
        ("TENSORSTORE_CURL_LOW_SPEED_LIMIT_BYTES", "1"),
        ("TENSORSTORE_CURL_CONNECT_TIMEOUT_SECONDS", f"{STALL_SECONDS / 2:g}"),
    ):
        os.environ.setdefault(name, value)


def _after(prefix: str) -> str:
    """Return the end of the range of all names with a prefix; empty, for no end, without one."""
    # The prefix with its last character increased: `KeyRange` has no other way to say it.
    return prefix[:-1] + chr(ord(prefix[-1]) + 1) if prefix else ""


def is_url(text: str) -> bool:
    """Return whether a path is that of an object store, which is neither a disk nor `file://`."""
    return text.startswith(REMOTE_SCHEMES)


def tensorstore_spec(url: str, patience: float) -> Any:
    """Return TensorStore's specification of a folder of an object store.

    Args:
      url: As of `Bucket`; with a slash at its end, or names are glued to it.
      patience: For how many seconds a request is repeated while the store is away.
    """
    retries = _retries(patience)
    if url.startswith("gs://"):
        bucket, _, path = url.removeprefix("gs://").partition("/")
        return {"driver": "gcs", "bucket": bucket, "path": path, "gcs_request_retries": retries}
    # URLs of TensorStore cannot hold an endpoint, which stores that only speak S3's protocol need.
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if url.startswith("s3://"):
        bucket, _, path = url.removeprefix("s3://").partition("/")
        spec: dict[str, Any] = {"driver": "s3", "bucket": bucket, "path": path}
        spec["s3_request_retries"] = retries
        if os.environ.get("AWS_ACCESS_KEY_ID"):
            # Found without it, too, after Amazon's library has complained about files of profiles.
            spec["aws_credentials"] = {"type": "environment"}
        if endpoint:
            region = os.environ.get("AWS_REGION", "us-east-1")
            spec |= {"endpoint": endpoint, "aws_region": region}
        return spec
    return url


def _retries(seconds: float) -> dict[str, Any]:
    """Return TensorStore's setting of retries, which counts them: 1, 2, 4, ... 32, 32 s apart."""
    count, total = 0, 0.0
    while total < seconds:
        total += min(2**count, _LONGEST_PAUSE_SECONDS)
        count += 1
    longest = f"{_LONGEST_PAUSE_SECONDS}s"
    return {"max_retries": max(count, 1), "initial_delay": "1s", "max_delay": longest}
