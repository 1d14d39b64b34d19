"""Files in object stores (`gs://`, `s3://`), listed and copied to a folder of this machine.

Readers need random access, and the native ones read local files only. A shard is therefore copied
whole at its first use and kept; a corpus needs as much disk as its shards. Credentials are those of
Google's and Amazon's own tools; without any, buckets are read as the public sees them. Stores like
S3 are those of `AWS_ENDPOINT_URL`.

TensorStore, which checkpoints need too, is imported at the first remote path.
"""

from __future__ import annotations

import contextlib
import contextvars
import fnmatch
import functools
import glob
import hashlib
import os
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from luthier.errors import DataError, Problem
from luthier.storage.transfer import ChangedObject, OutOfRange, read_pieces

SCHEMES = ("gs://", "s3://")
_WAIT_SECONDS = 12.0
_COPY_SECONDS = 60.0  # without progress
_WILD = re.compile(r"[*?\[]")
_LOG = re.compile(rb"[EIW]\d{4} ")
_FEW = {"max_retries": 2, "initial_delay": "0.5s", "max_delay": "1s"}
_REMEDY = "check the network and your credentials, or name a copy on this machine"
# Where Pax's recipes read: they are often tried first, and where there is no network.
_MLPERF = "gs://mlperf-llm-public2/"
_SMALL_C4 = "luthier.shipped.c4_shards"
"""The module that writes a small one."""
_is_offline = contextvars.ContextVar("is_offline", default=False)


def is_remote(path: str) -> bool:
    """Return whether a path or a pattern is one of an object store."""
    return path.startswith(SCHEMES)


@contextlib.contextmanager
def offline() -> Iterator[None]:
    """Use no store: the newest copy on this machine takes the place of an object."""
    # For commands that describe a config without touching the network. A context variable, so that
    # it holds for this call and not for other threads of the process.
    token = _is_offline.set(True)
    try:
        yield
    finally:
        _is_offline.reset(token)


def matching_objects(pattern: str) -> tuple[str, ...]:
    """Return the objects that a pattern matches, sorted.

    Args:
      pattern: A URL, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth) behind the bucket.

    Returns:
      Their URLs, sorted by code point; none where nothing matches.

    Raises:
      DataError: when the store cannot be reached, or refuses.
    """
    # Stores list by prefix: everything up to the first wildcard narrows the listing, the rest is
    # matched here, part by part, with the meaning that `glob` gives it on a disk.
    root, key = _split(pattern)
    wild = _WILD.search(key)
    prefix = key[: wild.start()] if wild else key
    keys = [name.decode("utf-8") for name in _list(root, prefix, pattern)]
    parts = key.split("/")
    return tuple(sorted(f"{root}{name}" for name in keys if _matches(name.split("/"), parts)))


def local_copy(path: str) -> str:
    """Return a path on this machine: a local file's own path, or the path of an object's copy.

    The copy is made once for each version of the object, in `luthier/remote` of the user's cache
    folder (`XDG_CACHE_HOME`).

    Args:
      path: A local path, or a URL.

    Raises:
      DataError: when the object does not exist or cannot be read, or the copy cannot be written;
        `offline`, when no copy was made before.
    """
    if not is_remote(path):
        return path
    return _newest_copy(path) if _is_offline.get() else _copied(path)


def _newest_copy(path: str) -> str:
    copies = glob.glob(glob.escape(_copy_of(path, "")) + "*")
    if not copies:
        raise DataError(Problem(f"{path}: there is no copy on this machine", remedy=_remedy(path)))
    # Several versions of one object may have been copied.
    return max(copies, key=os.path.getmtime)


@functools.cache
# Cached for the process: the version is asked for once, so that a run reads one version to its end.
def _copied(path: str) -> str:
    # One byte answers whether the object exists, and in which version; an empty one has no first
    # byte.
    root, key = _split(path)
    try:
        first = _reached(path, lambda: _store(root, True).read(key, byte_range=slice(0, 1)))
    except OutOfRange:  # it is empty
        first = _reached(path, lambda: _store(root, True).read(key))
    if first.state == "missing":
        raise DataError(Problem(f"{path}: there is no such object", remedy="check its name"))
    version = hashlib.blake2b(first.stamp.generation, digest_size=6).hexdigest()
    copy = _copy_of(path, version)
    if not os.path.exists(copy):
        try:
            _download(root, key, path, copy)
        except OSError as error:
            what = f"{path}: cannot be copied to {copy}: {error.strerror or error}"
            remedy = "make room, or set XDG_CACHE_HOME to a larger disk"
            raise DataError(Problem(what, remedy=remedy)) from None
    return copy


def _copy_of(path: str, version: str) -> str:
    return os.path.join(_cache(), path.replace("://", "/") + f"@{version}")


def _split(path: str) -> tuple[str, str]:
    scheme, _, rest = path.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}/", key


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    """Return whether the parts of a path match those of a pattern, as `glob` has it."""
    if not patterns:
        return not names
    if patterns[0] == "**":
        # `**` stands for any number of folders, also for none.
        return any(_matches(names[skip:], patterns[1:]) for skip in range(len(names) + 1))
    return (
        bool(names)
        and fnmatch.fnmatchcase(names[0], patterns[0])
        and _matches(names[1:], patterns[1:])
    )


def _list(root: str, prefix: str, pattern: str) -> list[bytes]:
    import tensorstore

    keys = tensorstore.KvStore.KeyRange(prefix, _after(prefix))
    return _reached(pattern, lambda: _store(root, True).list(keys))


def _after(prefix: str) -> bytes:
    """Return the first key that does not begin with a prefix; empty is the end of all keys."""
    encoded = prefix.encode("utf-8")
    return encoded[:-1] + bytes([encoded[-1] + 1]) if encoded else b""


@functools.cache
def _store(root: str, hurried: bool) -> Any:
    """Return a bucket; with `hurried` it gives up after two retries."""
    import tensorstore

    retries = {"gcs_request_retries": _FEW, "s3_request_retries": _FEW} if hurried else {}
    spec: Any = root
    endpoint = os.environ.get("AWS_ENDPOINT_URL")
    if root.startswith("s3://") and endpoint:
        region = os.environ.get("AWS_REGION", "us-east-1")
        # URLs of TensorStore cannot hold an endpoint.
        spec = {"driver": "s3", "bucket": root[5:-1], "endpoint": endpoint, "aws_region": region}
    # TensorStore retries for minutes by default; a bucket that is misspelt should be reported at
    # once.
    return tensorstore.KvStore.open(spec, context=tensorstore.Context(retries)).result()


def _reached(path: str, ask: Callable[[], Any], seconds: float = _WAIT_SECONDS) -> Any:
    """Return the answer of a store, or raise with the reason in one line."""
    if _is_offline.get():
        raise DataError(Problem(f"{path}: it is in an object store", remedy=_remedy(path)))
    try:
        with _without_native_logs():
            return ask().result(timeout=seconds)
    except TimeoutError:
        why = f"no answer in {seconds:.0f} s"
    except (ValueError, OSError, KeyError) as error:
        if str(error).startswith("OUT_OF_RANGE"):
            raise OutOfRange from None
        why = _reason(str(error))
    raise DataError(Problem(f"{path}: cannot be read: {why}", remedy=_remedy(path))) from None


def _reason(message: str) -> str:
    """Return the message of TensorStore without the places in its source."""
    plain = re.sub(r"\s*\[[a-z_ ]+=.*", "", " ".join(message.split()))
    return re.sub(r"^[A-Z_]+: (All \d+ retry attempts failed: )?", "", plain).rstrip(":") or message


@contextlib.contextmanager
def _without_native_logs() -> Iterator[None]:
    """Drop the native log lines about missing credentials; other output appears afterwards."""
    # TensorStore's C++ code logs to descriptor 2 directly, past Python's `sys.stderr`; so the
    # descriptor itself is swapped for the moment.
    with tempfile.TemporaryFile() as file:
        saved = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            file.seek(0)
            os.write(saved, b"".join(line for line in file if not _LOG.match(line)))
            os.close(saved)


def _download(root: str, key: str, path: str, copy: str) -> None:
    # To a temporary name in the same folder, then renamed: a copy that exists is complete, and two
    # processes that copy the same object replace each other's equal files. It is not synced to
    # disk; after a power cut the worst is a copy that readers find damaged.
    #
    # `read_pieces` notices a change of the object's generation between two pieces.
    def read(wanted: slice) -> Any:
        store = _store(root, False)
        return _reached(path, lambda: store.read(key, byte_range=wanted), _COPY_SECONDS)

    os.makedirs(os.path.dirname(copy), exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=os.path.dirname(copy), delete=False) as file:
        try:
            file.writelines(read_pieces(read, _COPY_SECONDS))
            file.flush()
            os.replace(file.name, copy)
        except ChangedObject:
            os.unlink(file.name)
            what = f"{path}: it changed while it was copied"
            raise DataError(Problem(what, remedy="rerun the command")) from None
        except BaseException:
            os.unlink(file.name)
            raise


def _cache() -> str:
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "luthier", "remote")


def _remedy(path: object) -> str:
    if not str(path).startswith(_MLPERF):
        return _REMEDY
    fiddler = """--fiddler 'shared(folder="c4")'"""
    return f"check the network; or try it on a small C4: `python -m {_SMALL_C4} c4`, then {fiddler}"
