"""Text of the user's own, in two parts: documents to train on, and documents that are held out."""

from __future__ import annotations

import dataclasses
import functools
import glob
import os
from collections import Counter
from collections.abc import Callable, Sequence
from typing import ClassVar, Literal

import numpy as np

from luthier.data.sources.documents import TextFiles
from luthier.data.sources.files import matching_files
from luthier.data.sources.records import Field, JsonLines, first_record
from luthier.data.sources.remote import is_remote
from luthier.data.sources.source import Source
from luthier.data.sources.tables import HuggingFace, Parquet
from luthier.errors import DataError, Problem

# A part of a source.


@dataclasses.dataclass(frozen=True)
class Split(Source):
    """The training documents of a source, or those that are held out.

    Of n documents, `max(1, round(fraction n))` are held out: the last of each of as many equal
    stretches of the source. A single document, such as one text file, is cut: its end is held out,
    from the last line break in the `fraction` of its bytes before the last `fraction`, or between
    two characters if there is none. The parts of equal settings have nothing in common, and
    together are the whole.

    Args:
      source: All documents.
      split: `train` or `held_out`.
      fraction: Fraction of the documents that is held out; of the bytes of a single document.

    Raises:
      DataError: at first use, when a part would be empty.

    Example:
      >>> from luthier import data
      >>> documents = data.Documents([b"one", b"two", b"three", b"four"])
      >>> train = data.Split(documents, "train", fraction=0.25)
      >>> held_out = data.Split(documents, "held_out", fraction=0.25)
      >>> len(train), len(held_out)
      (3, 1)
    """

    RANGES: ClassVar[dict[str, str]] = {"fraction": "0 < x < 1"}

    source: Source
    split: Literal["train", "held_out"]
    fraction: float = 0.1

    @functools.cached_property
    def _indices(self) -> np.ndarray:
        """The documents of this part, int64 [n]."""
        total = len(self.source)
        if total == 1:
            return np.zeros(1, np.int64)
        count = min(max(1, round(self.fraction * total)), total - 1)
        held_out = np.arange(1, count + 1) * total // max(count, 1) - 1
        if self.split == "held_out":
            return held_out
        return np.delete(np.arange(total), held_out)

    @functools.cached_property
    def _text(self) -> bytes | None:
        """This part of a single document; None where there are several."""
        if len(self.source) != 1:
            return None
        document = self.source[0]
        at = _cut(document, self.fraction)
        if not 0 < at < len(document):
            what = f"{self.source.name(0)}: {len(document)} bytes are too few to hold out a part"
            raise DataError(Problem(what, remedy="add text, or another fraction"))
        return document[:at] if self.split == "train" else document[at:]

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> bytes:
        # A negative index would count from the end.
        if not 0 <= index < len(self):
            raise IndexError(index)
        return self.source[int(self._indices[index])] if self._text is None else self._text

    def name(self, index: int) -> str:
        """Return the origin of document `index`.

        Args:
          index: Its number, from 0.

        Returns:
          A text for messages.
        """
        return self.source.name(int(self._indices[index]))

    def read(self, start: int, stop: int) -> Sequence[bytes]:
        """Return the documents start..stop - 1 of this part.

        Args:
          start: Number of the first one.
          stop: Number after the last one.

        Returns:
          The documents, as bytes.

        Raises:
          DataError: A document cannot be read.
        """
        if self._text is not None:
            return super().read(start, stop)
        # Neighbours are read together: a source may open its file once for a block.
        indices = self._indices[start:stop]
        runs = np.split(indices, np.flatnonzero(np.diff(indices) != 1) + 1)
        documents: list[bytes] = []
        problems: list[Problem] = []
        for run in runs if len(indices) else ():
            try:
                documents += self.source.read(int(run[0]), int(run[-1]) + 1)
            except DataError as error:
                problems += error.problems
        if problems:
            raise DataError(problems)
        return documents


def _cut(document: bytes, fraction: float) -> int:
    """Return where the part of a document begins that is held out."""
    size = max(1, round(fraction * len(document)))
    at = len(document) - size
    line = document.rfind(b"\n", max(at - size, 0), at)
    if line >= 0:
        return line + 1
    # Bytes 10xxxxxx continue a character of UTF-8.
    while 0 < at < len(document) and document[at] & 0xC0 == 0x80:
        at -= 1
    return at


# Text by its path: the files are looked at, and the sources that read them are chosen.

HELD_OUT_NAMES = ("validation", "valid", "val", "dev", "test", "eval", "held_out")
"""Names of splits that are held out, best first."""

_TEXT = (".txt", ".text", ".md", ".rst", ".tex")
_JSON_LINES = (".jsonl", ".ndjson")
_PARQUET = (".parquet",)
# Best first: among as many files of text, such as a README.md, those of data are meant.
_SUFFIXES = (*_PARQUET, *_JSON_LINES, *_TEXT)
# Where the files of a split are, below a folder: as on the Hugging Face Hub, and in folders.
_PLACES = ("{name}*{suffix}", "data/{name}*{suffix}", "{name}/**/*{suffix}")


def corpus(path: str, field: str = "", fraction: float = 0.1) -> tuple[Source, Source]:
    """Return sources of the training documents and of the held-out documents of a text.

    - A text file is one document, of which `Split` holds out the end.
    - Of several files that a pattern matches, or of a folder, `Split` holds out whole documents:
      text files, the lines of JSON lines (.jsonl), the rows of Parquet files (.parquet). Of a
      folder the files of the most frequent of these kinds are read, at any depth.
    - A folder whose files are named after splits, `train*` and `validation*` or `test*`, is split
      so; and so is a dataset with such splits that `datasets.save_to_disk` wrote.

    Args:
      path: A file, a folder, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth).
      field: The field or column of the text in records; empty for `text`, or the only one of text.
      fraction: Fraction that is held out where the data has no splits of its own.

    Returns:
      Two sources; the data is read at their first use.

    Raises:
      DataError: when there is no such file, no text in it, or the field is unclear.

    Example:
      >>> import pathlib
      >>> from luthier import data
      >>> _ = pathlib.Path("hamlet.txt").write_text("To be, or not to be." * 10)
      >>> train, held_out = data.corpus("hamlet.txt")
      >>> len(train), len(held_out)
      (1, 1)
    """
    folder = os.path.expanduser(path)
    if is_remote(path) or not os.path.isdir(folder):
        files = matching_files(path)
        whole = _source_of(path, files[0], os.path.splitext(files[0])[1].lower(), field)
        return _split(whole, fraction)
    if any(os.path.isfile(os.path.join(folder, n)) for n in ("dataset_dict.json", "state.json")):
        return _saved(path, field, fraction)
    suffix, inside = _files_of(path, folder)
    escaped = glob.escape(path)
    named = _named_splits(escaped, suffix, inside)
    if named is None:
        pattern = os.path.join(escaped, "**", f"*{suffix}")
        return _split(_source_of(pattern, inside[0], suffix, field), fraction)
    train, held_out = (_source_of(p, matching_files(p)[0], suffix, field) for p in named)
    return train, held_out


def _split(source: Source, fraction: float) -> tuple[Source, Source]:
    return Split(source, "train", fraction), Split(source, "held_out", fraction)


def _files_of(path: str, folder: str) -> tuple[str, list[str]]:
    """Return the most frequent known suffix of the files in a folder, and these files."""
    pattern = os.path.join(glob.escape(folder), "**", "*")
    every = sorted(file for file in glob.glob(pattern, recursive=True) if os.path.isfile(file))
    counts = Counter(os.path.splitext(file)[1] for file in every)
    known = [suffix for suffix in _SUFFIXES if counts[suffix]]
    if not known:
        found = ", ".join(sorted(suffix for suffix in counts if suffix)) or "no files"
        what = f"{path!r} has no files that end in {', '.join(_SUFFIXES)} (it has {found})"
        raise DataError(Problem(what, remedy=f"name its files: {os.path.join(path, '**')!r}"))
    suffix = max(known, key=lambda one: (counts[one], -_SUFFIXES.index(one)))
    return suffix, [file for file in every if file.endswith(suffix)]


def _named_splits(escaped: str, suffix: str, files: Sequence[str]) -> tuple[str, str] | None:
    """Return the patterns of training and of held-out files; None if not all are named so."""
    for place in _PLACES:
        found = {}
        for name in ("train", *HELD_OUT_NAMES):
            pattern = os.path.join(escaped, place.format(name=name, suffix=suffix))
            matched = glob.glob(os.path.expanduser(pattern), recursive=True)
            if matched:
                found[name] = pattern, {os.path.normpath(file) for file in matched}
        # All files, so that a folder of poems is not split by a poem that is called `train.txt`.
        covered = set[str]().union(*(matched for _, matched in found.values()))
        held_out = next((name for name in HELD_OUT_NAMES if name in found), None)
        if "train" in found and held_out and covered == set(map(os.path.normpath, files)):
            return found["train"][0], found[held_out][0]
    return None


def _source_of(pattern: str, first: str, suffix: str, field: str) -> Source:
    """Return the source of files of one kind, of which one is given."""
    if suffix in _PARQUET:
        field = field or _only_text(first, lambda: Parquet(pattern).text_columns)
        return Field(Parquet(pattern, columns=(field,)), field)  # no other column is decoded
    if suffix in _JSON_LINES:
        return JsonLines(pattern, field or _only_text(first, lambda: _text_fields(first)))
    return TextFiles(pattern)


def _saved(folder: str, field: str, fraction: float) -> tuple[Source, Source]:
    """Return the sources of a dataset that `save_to_disk` wrote."""
    splits = HuggingFace(folder).splits

    def documents(split: str) -> Field:
        table = HuggingFace(folder, split)
        return Field(table, field or _only_text(folder, lambda: table.text_columns))

    held_out = next((name for name in HELD_OUT_NAMES if name in splits), None)
    if "train" in splits and held_out:
        return documents("train"), documents(held_out)
    if len(splits) > 1 and "train" not in splits:
        what = f"{folder}: none of its splits is called `train`: {', '.join(splits)}"
        remedy = "set `data.source` and those of the evaluations to `HuggingFace` with a `split`"
        raise DataError(Problem(what, remedy=remedy))
    return _split(documents("train" if "train" in splits else next(iter(splits), "")), fraction)


def _only_text(where: str, columns: Callable[[], Sequence[str]]) -> str:
    """Return the name of the text among columns: `text`, or the only one of text."""
    names = columns()
    if "text" in names:
        return "text"
    if len(names) == 1:
        return names[0]
    found = f"several fields of text: {', '.join(names)}" if names else "no field of text"
    raise DataError(Problem(f"{where} has {found}", remedy="choose one with `field`"))


def _text_fields(path: str) -> tuple[str, ...]:
    fields = first_record(path).items()
    return tuple(name for name, value in fields if isinstance(value, str))
