"""Warm starts from pretrained weights: a folder of safetensors, its names mapped to ours."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
import functools
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from typing import Any, ClassVar

import numpy as np

from luthier.checkpoint.foreign import families
from luthier.checkpoint.foreign.family import (
    Family,
    Fetch,
    Index,
    Resolved,
    Slot,
    SlotView,
)
from luthier.checkpoint.foreign.safetensors_folder import (
    CONFIG,
    GENERATION,
    PLAIN,
    Tensors,
    read_config,
    tokenizer_files,
)
from luthier.checkpoint.foreign.stored import StoredArray, StoredArrays
from luthier.checkpoint.restore import runs
from luthier.checkpoint.restore.rules import ADAPTERS, Init, Rule, Take
from luthier.checkpoint.restore.source import (
    Found,
    ModelDescription,
    OpenedSource,
    Pieces,
    Restore,
    SourcePiece,
    Wanted,
)
from luthier.errors import CheckpointError, Problem

OPTIONAL_PARTS = ("head", "pooler")
"""Parts of our models that weights of a family may lack."""

_ROWS = 4096
_FLOATS = frozenset({"float16", "bfloat16", "float32", "float64"})


@dataclasses.dataclass(frozen=True)
class Safetensors(Restore):
    """Starts from a folder of safetensors, as the Hugging Face hub has them; read lazily.

    On the command line `restore=safetensors:DIR` is the same as
    `restore=luthier.checkpoint.Safetensors("DIR")`.

    Args:
      directory: The folder, or one file of it.
      family: The map from its names to ours: the name of a family, or a map of your own; None
        goes by its config.json, or by luthier's own names if the file does not exist.
      rules: Rules that take, initialize or skip parameters; the first match decides. By default all
        are taken except adapters.
      differing: Patterns of settings that differ from config.json on purpose, by its names
        (`rope_theta`) or those of the graph (`rotary.base`); any other difference that changes what
        the model computes is refused.
    """

    WORD: ClassVar[str] = "safetensors"

    directory: str
    family: str | Family | None = None
    rules: Sequence[Rule] = (Init(ADAPTERS), Take())
    differing: Sequence[str] = ()

    @property
    def claims(self) -> Sequence[Rule]:
        """The rules."""
        return self.rules

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenedSource]:
        """Open the files. Raises as `Restore.open`.

        Yields:
          The arrays by name, not read yet.
        """
        with Tensors(self.directory) as tensors:
            family = self._family(tensors)
            yield _Plain(tensors) if family is None else _OfFolder(tensors, family, self.differing)

    def _family(self, tensors: Tensors) -> Family | None:
        if isinstance(self.family, Family):
            return self.family
        if self.family is not None:
            return None if self.family == PLAIN else families.named(self.family)
        config = read_config(tensors.path)
        if config is None:
            if tensors.metadata.get("format") == PLAIN:
                return None
            what = f"{tensors.path} has no config.json that names the family"
            remedy = f"set restore.family: {', '.join(families.names())}, or {PLAIN} for our names"
            raise CheckpointError(Problem(what, "restore", remedy=remedy))
        return families.of_config(config, str(tensors.path))


class _Plain(OpenedSource):
    """Safetensors under luthier's own names."""

    def __init__(self, tensors: Tensors):
        self._tensors = tensors

    @property
    def title(self) -> str:
        return f"{self._tensors.path} (luthier's names)"

    @property
    def notes(self) -> Mapping[str, str]:
        return _notes(self._tensors)

    @property
    def tokenizer(self) -> pathlib.Path:
        return self._tensors.path

    def find(self, wanted: Wanted) -> Found:
        there = {name: (d.shape, d.dtype) for name, d in self._tensors.described.items()}
        return runs.find(there, self._tensors.read, wanted, str(self._tensors.path))


class OfFamily(OpenedSource):
    """Weights of a family, by their names there.

    Args:
      tensors: The weights.
      family: The map from their names to ours.
    """

    def __init__(self, tensors: Tensors | StoredArrays, family: Family):
        self._tensors, self._family = tensors, family
        config = read_config(tensors.path) or {}
        # config.json leaves the key out where it is the default of its class, which differs between
        # families.
        self._is_tied = config.get("tie_word_embeddings", family.is_tied)
        names = tensors.described
        prefixed = any(name.startswith(family.prefix) for name in names)
        # The beginning of the family's names, and what these files have in its place. Files of a
        # bare model (`GPT2Model`) have nothing there; those of a model of images and text have its
        # decoder at a place of its own.
        self._renamed = (family.prefix, "") if not prefixed else ("", "")
        for own, there in family.prefixes:
            if any(name.startswith(there) for name in names):
                self._renamed = (own, there)

    @property
    def title(self) -> str:
        """Their place, and the family."""
        return f"{self._tensors.path} ({self._family.name})"

    @property
    def notes(self) -> Mapping[str, str]:
        """The files of the tokenizer that lie beside them."""
        return _notes(self._tensors)

    @property
    def tokenizer(self) -> pathlib.Path:
        """The folder that they are in."""
        return self._tensors.path

    def find(self, wanted: Wanted) -> Found:
        """Look for the tensors of the parameters; report missing, left-over and misshapen ones."""
        # In four steps: name the layers of every parameter as they would be called unrolled, find
        # the foreign tensor of each, compare both sides, and only then make the functions that
        # read. Nothing but names and shapes is read here, save for tied tensors that must be equal.
        cycles = wanted.cycles
        layers = {
            name: [
                each
                for layer, slot in cycles.slots(source, target.stacked)
                for each in self._family.expert_slots(layer, slot)
            ]
            for name, (source, target) in wanted.model.items()
        }
        # All of the model is looked at: a tensor may hold what is taken beside what is not.
        places = {layer: slot for own in layers.values() for layer, slot in own}
        resolved = self._family.resolve(places, wanted.limits)
        taken = {layer: slot for name in wanted.taken for layer, slot in layers[name]}
        # `needed` are the tensors that are read, `left` those that a Skip rule gives up on purpose.
        needed = {resolved.views[layer].foreign for layer in taken if layer in resolved.views}
        left = {
            resolved.views[layer].foreign
            for name in wanted.skipped
            for layer, _ in layers[name]
            if layer in resolved.views
        }
        problems = [
            Problem(
                f"{name} cannot be resized: a source with names of its own is read whole",
                remedy="start a run from it, and resize that: Resize is for run:DIR",
            )
            for name in wanted.resized
        ]
        problems += self._check(resolved, taken, needed)
        problems += self._check_copies(resolved, needed, wanted.is_skipped)
        problems += self._left_over(resolved, needed, left, wanted.is_skipped)
        pieces: dict[str, Pieces] = {}
        # Without problems every taken layer has a view; the caller raises the problems anyway.
        if not problems:
            for name in wanted.taken:
                by_layer: dict[int | None, Pieces] = {}
                for layer, slot in layers[name]:
                    piece = self._piece(resolved.views[layer], resolved)
                    if slot.expert is None:
                        by_layer[slot.index] = piece
                    else:
                        by_layer.setdefault(slot.index, []).append(piece)  # type: ignore[union-attr]
                pieces[name] = by_layer[None] if None in by_layer else list(by_layer.values())
        return Found(problems, pieces)

    def _there(self, foreign: str) -> str:
        """Return the name of a tensor in these files."""
        own, there = self._renamed
        return there + foreign.removeprefix(own) if foreign.startswith(own) else foreign

    def _family_name(self, name: str) -> str:
        """Return the name in the family of a tensor in these files."""
        # Beside a bare model there may be tensors, such as a head, that never had the prefix, and
        # some that have it anyway.
        own, there = self._renamed
        if not name.startswith(there) or (not there and name.startswith(own)):
            return name
        return own + name.removeprefix(there)

    def _source_of(self, foreign: str, resolved: Resolved) -> str:
        """Return the tensor that is read: the one that it is tied to, where it is absent itself."""
        name = self._there(foreign)
        if self._is_tied and name not in self._tensors.described and foreign in resolved.sources:
            return self._there(resolved.sources[foreign])
        return name

    def _check(
        self, resolved: Resolved, taken: Mapping[str, Slot], needed: Set[str]
    ) -> list[Problem]:
        # Every problem is listed, and each with both names: a user mends an override, a rule or a
        # path, and which of them it is shows only in the whole list.
        family, described = self._family.name, self._tensors.described
        problems = [
            Problem(f"{name} {list(taken[name].shape)} has no tensor in the {family} family")
            for name in resolved.unknown
            if name in taken
        ]
        # Of any part of the model, taken or not: a broken tensor has no shape, and `needed`, which
        # is made of views, may lack it.
        problems += [Problem(sentence) for sentence in resolved.broken]
        for foreign, shape in resolved.shapes.items():
            if foreign not in needed:
                continue
            name, ours = self._source_of(foreign, resolved), self._ours(foreign, resolved)
            if name not in described:
                what = f"{name} {list(shape)} is not in the files; it is {ours} here"
                problems.append(Problem(what, remedy=self._absent(foreign, resolved)))
            elif described[name].shape != shape:
                what = f"{name} is {list(described[name].shape)} in the files, and {list(shape)}"
                problems.append(Problem(f"{what} is needed for {ours}"))
            # Integers are quantized weights, whose scales are in other tensors. Read as they are
            # they would load without an error. Floats of 8 bits are quantized as well.
            elif described[name].dtype not in _FLOATS:
                dtype = described[name].dtype
                what = f"{name} is of dtype {dtype}, and {ours} is not an integer array"
                remedy = "quantized weights are not read: give the folder that they were made of"
                problems.append(Problem(what, remedy=remedy))
        return problems

    def _absent(self, foreign: str, resolved: Resolved) -> str:
        """Return the remedy for a tensor that the files lack."""
        # Encoders are published with and without these parts, under one `model_type`.
        part = resolved.ours_of(foreign)[0].partition(".")[0]
        if part not in OPTIONAL_PARTS:
            return ""
        return f"set model.{part}=None, or initialize it: Init('^{part}\\.') in restore.rules"

    def _ours(self, foreign: str, resolved: Resolved) -> str:
        names = [name for name, view in resolved.views.items() if view.foreign == foreign]
        return ", ".join(f"{name} {list(resolved.views[name].shape)}" for name in names)

    def _check_copies(
        self, resolved: Resolved, needed: Set[str], is_skipped: Callable[[str], bool]
    ) -> list[Problem]:
        # The model ties two parameters; files made by a model that does not may hold different
        # values for them. Then one of the two would be dropped silently.
        described, problems = self._tensors.described, []
        for foreign, original in resolved.copies.items():
            copy, first = self._there(foreign), self._there(original)
            is_there = copy in described and first in described
            if not is_there or original not in needed or is_skipped(copy):
                continue
            if not self._equal(copy, first):
                what = f"{copy} differs from {first}, and the model ties them"
                remedy = "give the model an Unembedding of its own, or skip it: Skip(pattern)"
                problems.append(Problem(what, remedy=remedy))
        return problems

    def _equal(self, first: str, second: str) -> bool:
        described = self._tensors.described
        shape = described[first].shape
        if shape != described[second].shape:
            return False
        whole = [slice(0, size) for size in shape[1:]]
        # In blocks, since embeddings may be larger than the memory that is free.
        for start in range(0, shape[0], _ROWS):
            rows = (slice(start, min(start + _ROWS, shape[0])), *whole)
            if not np.array_equal(
                self._tensors.read(first, rows), self._tensors.read(second, rows)
            ):
                return False
        return True

    def _left_over(
        self,
        resolved: Resolved,
        needed: Set[str],
        left: Set[str],
        is_skipped: Callable[[str], bool],
    ) -> list[Problem]:
        # The counterpart of `_check`: a tensor that goes nowhere means that the graph lacks a part
        # that the weights were trained with. Taking the others would load a model that computes
        # something else.
        used = {self._source_of(foreign, resolved) for foreign in needed}
        used |= {self._there(foreign) for foreign in left}
        # `_check_copies` has compared a copy with its original where that is read. Where it is not,
        # the copy is a tensor of its own, which needs a Skip of its own.
        used |= {self._there(copy) for copy, first in resolved.copies.items() if first in needed}
        problems = []
        for name, described in sorted(self._tensors.described.items()):
            # The family is asked by its own names, and by the one in the files for a tensor that
            # never had the prefix, such as the head beside a bare model.
            # Rules are asked by the name in the files, which is the one that users see.
            full = self._family_name(name)
            ignored = self._family.is_ignored(full) or self._family.is_ignored(name)
            ignored = ignored or is_skipped(name)
            if name in used or ignored:
                continue
            ours = self._family.ours_of(full) or self._family.ours_of(name)
            absent = [name for name in ours if name not in resolved.views]
            why = f"the model has no {', '.join(absent)}" if absent else "no parameter uses it"
            why = why if ours else "the family has no such tensor"
            # No remedy where the model lacks the parameter: to skip it would most often be wrong.
            what = f"{name} {list(described.shape)} of the files has no place to go: {why}"
            problems.append(
                Problem(what, remedy="" if absent else "leave it unread: Skip(pattern)")
            )
        return problems

    def _piece(self, view: SlotView, resolved: Resolved) -> SourcePiece:
        name = self._source_of(view.foreign, resolved)

        def fetch(block: Index) -> np.ndarray:
            # Joined tensors, such as fused queries, keys and values: the part begins at an offset.
            if view.offset:
                part = block[view.axis]
                moved = slice(part.start + view.offset, part.stop + view.offset)
                block = (*block[: view.axis], moved, *block[view.axis + 1 :])
            return self._tensors.read(name, block)

        read = functools.partial(_read, view, fetch, resolved.limits)
        return SourcePiece(name, self._tensors.described[name].dtype, read)


class Importer(Restore):
    """Starts from a checkpoint of another program, its names and layouts mapped to ours.

    A subclass is a frozen dataclass with the fields `directory` and `rules`. Name it under
    `[project.entry-points."luthier.importers"]` of your package's pyproject.toml: then
    `restore=NAME:DIR` makes one.

    Attributes:
      directory: The file or folder; a part of it may stand behind a colon.
      rules: Rules that take, initialize or skip parameters; the first match decides.
    """

    directory: str
    rules: Sequence[Rule]

    @property
    def claims(self) -> Sequence[Rule]:
        """The rules."""
        return self.rules

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenedSource]:
        """Find the arrays. Raises as `Restore.open`.

        Yields:
          The arrays by name, not read yet.

        Raises:
          CheckpointError: It does not exist, or is damaged.
        """
        path = pathlib.Path(self.directory).expanduser()
        if not path.exists() and not pathlib.Path(str(path).partition(":")[0]).exists():
            is_remote = "://" in self.directory
            remedy = "copy it to this machine first" if is_remote else "give its path"
            raise CheckpointError(Problem(f"{self.directory} does not exist", remedy=remedy))
        arrays, family = self.read_arrays(path)
        yield OfFamily(StoredArrays(path, arrays), family)

    @abc.abstractmethod
    def read_arrays(self, path: pathlib.Path) -> tuple[Mapping[str, StoredArray], Family]:
        """Return the arrays of a checkpoint, not read yet, and the map from their names to ours.

        Args:
          path: `directory`; it or what is before its colon exists.

        Returns:
          Arrays by their names, and the map to ours.

        Raises:
          CheckpointError: It is not a checkpoint of this program, or is damaged.
        """


class _OfFolder(OfFamily):
    """Weights of a family in a folder that may have a config.json."""

    def __init__(self, tensors: Tensors, family: Family, differing: Sequence[str]):
        super().__init__(tensors, family)
        self._differing = differing

    @property
    def _folder(self) -> pathlib.Path:
        path = self._tensors.path
        return path if path.is_dir() else path.parent

    @property
    def described(self) -> ModelDescription | None:
        config = read_config(self._folder)
        if not config:
            return None
        return ModelDescription(config, self._family.name, self._folder, self._differing)

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        found = {name: read_config(self._folder, name) for name in (CONFIG, GENERATION)}
        return {name: content for name, content in found.items() if content}


def _read(view: SlotView, fetch: Fetch, limits: Mapping[str, int], index: Index) -> np.ndarray:
    return view.layout.read(fetch, view.shape, index, limits)


def _notes(tensors: Tensors | StoredArrays) -> dict[str, str]:
    files = tokenizer_files(tensors.path)
    return {"tokenizer": ", ".join(map(str, files))} if files else {}
