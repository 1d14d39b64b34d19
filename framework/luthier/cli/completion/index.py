"""The index of one experiment: its paths, tags, classes and fiddlers, as lines of text.

The first line is JSON: what the index was made of. Every other line is an entry, `kind`, `word`,
`text` and `values` with tabs between, in order, so that all words with a beginning are found
without reading the rest.
"""

from __future__ import annotations

import collections
import json
import os
from collections.abc import Iterable, Iterator

import luthier
from luthier.cli.completion import cache

FORMAT = 1
NODE = "."
"""The text of a path that others go on from by a dot."""
LIST = "["
"""The text of a path that others go on from by a bracket."""
_END = "end\t\t\t"

Candidate = collections.namedtuple("Candidate", ["word", "text"], defaults=[""])
"""A word that could stand where the cursor is, and what it is."""

Entry = collections.namedtuple("Entry", ["kind", "word", "text", "values"], defaults=["", ()])
"""One thing to complete: a `path`, `tag`, `class`, `fiddler` or `constant`; `values` of a path."""


class Index:
    """What is known of an experiment.

    Args:
      header: What it was made of.
      body: The entries, each with a line break before it.
    """

    def __init__(self, header: dict, body: str):
        self.header = header
        self.body = body

    def starting(self, kind: str, beginning: str = "") -> Iterator[Entry]:
        """Yield the entries of a kind whose words have a beginning."""
        marker = f"\n{kind}\t{beginning}"
        at = self.body.find(marker)
        while at >= 0 and self.body.startswith(marker, at):
            end = self.body.find("\n", at + 1)
            _, word, text, values = self.body[at + 1 : end].split("\t")
            yield Entry(kind, word, text, tuple(values.split(" ")) if values else ())
            at = end

    def is_fresh(self) -> bool:
        """Return whether the files that it was made of are still the same."""
        files = self.header["files"]
        same_version = self.header.get("version") == luthier.__version__
        return same_version and cache.fingerprints(files) == files


def name_of(reference: str) -> str:
    """Return the name of the index of an experiment, of a project: the working directory."""
    return cache.digest(f"{os.getcwd()}\n{reference}".encode())


def load(reference: str) -> Index | None:
    """Return the cached index of an experiment; None where there is none that can be read."""
    first, _, rest = cache.read(name_of(reference)).partition("\n")
    try:
        header = json.loads(first)
        is_known = header["format"] == FORMAT and isinstance(header["files"], dict)
    except (ValueError, TypeError, KeyError):
        return None
    body = f"\n{rest}"
    return Index(header, body) if is_known and body.endswith(f"\n{_END}") else None


def save(reference: str, files: Iterable[str], entries: Iterable[Entry]) -> None:
    """Cache the index of an experiment.

    Args:
      reference: The experiment.
      files: What its graph was made of.
      entries: What can be completed.
    """
    header = {
        "format": FORMAT,
        "version": luthier.__version__,
        "reference": reference,
        "files": cache.fingerprints(files),
    }
    lines = {"\t".join([*map(_plain, entry[:3]), " ".join(entry.values)]) for entry in entries}
    cache.write(name_of(reference), "\n".join([json.dumps(header), *sorted(lines), _END]))


def _plain(text: str) -> str:
    return " ".join(text.split())
