"""Text files of the user's own."""

from __future__ import annotations

import dataclasses
import functools

from luthier.data.sources.files import matching_files, read_file
from luthier.data.sources.source import Source


@dataclasses.dataclass(frozen=True)
class TextFiles(Source):
    """One document per file, in the order of the sorted paths.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.

    Raises:
      DataError: at first use, when no file matches, or a file is unreadable or empty.
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
        """Return the path of file `index`."""
        return self.files[index]
