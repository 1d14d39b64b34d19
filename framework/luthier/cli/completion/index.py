"""The completion index of an experiment, in files below the user's cache folder.

The code that runs at a Tab imports little (no pathlib, dataclasses, typing or argparse), because
importing them takes longer than the answer. Building an index imports the experiment and takes
seconds; so another process does it in the background, and a Tab reads the existing index, fresh or
not.
"""

from __future__ import annotations

import collections
import contextlib
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator

import luthier

_PATIENCE_SECONDS = 120.0  # after which a claim is considered abandoned by a killed process


def folder() -> str:
    """Return the folder of the cached files; it may not exist yet."""
    root = os.environ.get("XDG_CACHE_HOME", "")
    base = root if os.path.isabs(root) else os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(base, "luthier", "completion")


def digest(content: bytes) -> str:
    """Return a fingerprint of some bytes, which can serve as the name of a file."""
    return hashlib.blake2b(content, digest_size=16).hexdigest()


def fingerprints(files: object) -> dict[str, str]:
    """Return the fingerprint of each file; empty if it cannot be read.

    Args:
      files: The names of the files.
    """
    found = {}
    for file in files:  # type: ignore[attr-defined]
        try:
            with open(file, "rb") as opened:
                found[file] = digest(opened.read())
        except OSError:
            found[file] = ""
    return found


def read(name: str) -> str:
    """Return the text of a cached file; empty if it cannot be read.

    Args:
      name: The name of the entry, as `write` was given it.
    """
    try:
        with open(os.path.join(folder(), name), encoding="utf-8", newline="") as file:
            return file.read()
    except (OSError, UnicodeDecodeError):
        return ""


def write(name: str, text: str) -> None:
    """Write a cached file atomically; a cache that cannot be written is not an error.

    Args:
      name: The name of the entry.
      text: The text of the file.
    """
    # A full disk must not break Tab. `luthier.storage` has atomic writes, but importing it is too
    # slow.
    path = os.path.join(folder(), name)
    temporary = f"{path}.{os.getpid()}"
    with contextlib.suppress(OSError):
        os.makedirs(folder(), exist_ok=True)
        with open(temporary, "w", encoding="utf-8", newline="") as file:
            file.write(text)
        os.replace(temporary, path)


def claim(name: str) -> bool:
    """Return whether this process may build a cached file, because no other is doing so.

    Args:
      name: The file.
    """
    path = os.path.join(folder(), f"{name}.claim")
    try:
        os.makedirs(folder(), exist_ok=True)
        with contextlib.suppress(FileNotFoundError):
            # Every Tab would otherwise start a process that builds the same index. A claim expires,
            # or a process that was killed while it built would disable completion for good.
            if time.time() - os.stat(path).st_mtime > _PATIENCE_SECONDS:
                os.unlink(path)
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    except OSError:
        return False
    return True


def release(name: str) -> None:
    """Remove a claim.

    Args:
      name: The name of the entry, as `write` was given it.
    """
    with contextlib.suppress(OSError):
        os.unlink(os.path.join(folder(), f"{name}.claim"))


# The index of one experiment: its paths, tags, classes and fiddlers, as lines of text.
#
# The first line is JSON with the version and the fingerprints of the files that the index was built
# from. Every other line is an entry: `kind`, `word`, `text` and `values`, separated by tabs. The
# lines are sorted, so that all words with a common beginning are next to each other.

FORMAT = 1
NODE = "."
"""The text of a path that continues with a dot."""
LIST = "["
"""The text of a path that continues with a bracket."""
_END = "end\t\t\t"

# `collections.namedtuple` and not a dataclass: importing dataclasses takes longer than an answer.
Candidate = collections.namedtuple("Candidate", ["word", "text"], defaults=[""])
"""A candidate for the word at the cursor, and its description."""

Entry = collections.namedtuple("Entry", ["kind", "word", "text", "values"], defaults=["", ()])
"""An entry of an index: a `path`, `tag`, `class`, `fiddler` or `constant`; `values` of a path."""


class Index:
    """The index of an experiment.

    Args:
      header: The version and the fingerprints of its files.
      body: The entries, each with a line break before it.
    """

    def __init__(self, header: dict, body: str):
        self.header = header
        self.body = body

    def starting(self, kind: str, beginning: str = "") -> Iterator[Entry]:
        """Yield the entries of a kind whose words start with `beginning`."""
        # The body is sorted text and searched as such: a Tab needs a few of thousands of entries,
        # and parsing all of them into objects would take longer than everything else.
        marker = f"\n{kind}\t{beginning}"
        at = self.body.find(marker)
        while at >= 0 and self.body.startswith(marker, at):
            end = self.body.find("\n", at + 1)
            _, word, text, values = self.body[at + 1 : end].split("\t")
            yield Entry(kind, word, text, tuple(values.split(" ")) if values else ())
            at = end

    def is_fresh(self) -> bool:
        """Return whether the files that it was built from are unchanged."""
        files = self.header["files"]
        same_version = self.header.get("version") == luthier.__version__
        return same_version and fingerprints(files) == files


def name_of(reference: str) -> str:
    """Return the name of the index of an experiment in the project of the working directory.

    Args:
      reference: The reference of an experiment, as `configs.lm.quickstart`.
    """
    return digest(f"{os.getcwd()}\n{reference}".encode())


def load(reference: str) -> Index | None:
    """Return the cached index of an experiment; None if there is none that can be read.

    Args:
      reference: The reference of an experiment, as `configs.lm.quickstart`.
    """
    first, _, rest = read(name_of(reference)).partition("\n")
    try:
        header = json.loads(first)
        is_known = header["format"] == FORMAT and isinstance(header["files"], dict)
    except (ValueError, TypeError, KeyError):
        return None
    body = f"\n{rest}"
    # The last line marks a complete file.
    return Index(header, body) if is_known and body.endswith(f"\n{_END}") else None


def save(reference: str, files: Iterable[str], entries: Iterable[Entry]) -> None:
    """Write the index of an experiment to the cache.

    Args:
      reference: The experiment.
      files: The files that its graph was built from.
      entries: The entries, in any order.
    """
    header = {
        "format": FORMAT,
        "version": luthier.__version__,
        "reference": reference,
        "files": fingerprints(files),
    }
    lines = {"\t".join([*map(_plain, entry[:3]), " ".join(entry.values)]) for entry in entries}
    write(name_of(reference), "\n".join([json.dumps(header), *sorted(lines), _END]))


def _plain(text: str) -> str:
    return " ".join(text.split())
