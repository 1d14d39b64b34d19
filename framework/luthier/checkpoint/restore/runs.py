"""Warm starts under luthier's own names: from other runs, and from safetensors with plain names."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import os
import pathlib
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from luthier.checkpoint import arrays as arrays_lib
from luthier.checkpoint.foreign.family import Index, LayerCycles, Shape, Slot, guess, slots
from luthier.checkpoint.foreign.safetensors_folder import read_config
from luthier.checkpoint.restore.rules import Resize, Rule, Take
from luthier.checkpoint.restore.source import (
    Found,
    OpenedSource,
    Pieces,
    Restore,
    SourcePiece,
    Target,
    Wanted,
    assemble,
    tensors_of,
)
from luthier.checkpoint.store import Store
from luthier.errors import CheckpointError, Problem
from luthier.storage import moves, segments
from luthier.storage.bucket import Bucket, fault_of, is_url, open_below

if TYPE_CHECKING:
    import jax


# Sources that use luthier's own names: other runs, and safetensors written under plain names.
#
# Layers are found whether they are scanned, unrolled or in cycles there: a parameter of one form is
# put together from the other.

Read = Callable[[str, Index], np.ndarray]


def find(there: Mapping[str, tuple[Shape, str]], read: Read, wanted: Wanted, where: str) -> Found:
    """Find parameters among arrays of the same names.

    Args:
      there: Shapes and dtypes of the source's arrays, by name.
      read: Returns a block of one of them.
      wanted: The request.
      where: Name of the source, for problems.
    """
    search = _Search(there, read, where, wanted)
    problems: list[Problem] = []
    pieces: dict[str, SourcePiece | list[SourcePiece]] = {}
    cycles = wanted.cycles
    for name, (source, target) in wanted.taken.items():
        pieces[name], wrong = search.pieces(name, source, target, cycles)
        problems += wrong
    # What the source has and nobody asked for is an error, too: a typo in a rule would otherwise
    # leave a layer at its random initial values without a word.
    left = {source for source, _ in wanted.skipped.values()}
    for name in sorted(set(there) - search.used):
        if name not in left and not wanted.is_skipped(name):
            shape, dtype = there[name]
            what = f"{name} {dtype}{list(shape)} of {where} has no place to go"
            problems.append(Problem(what, remedy="leave it unread: Skip(pattern)"))
    return Found(problems, pieces)


class _Search:
    """Looks up arrays by name and shape, and remembers which were used."""

    def __init__(
        self, there: Mapping[str, tuple[Shape, str]], read: Read, where: str, wanted: Wanted
    ):
        self._there, self._read, self._where, self._wanted = there, read, where, wanted
        self._slots = slots(guess({name: shape for name, (shape, _) in there.items()}))
        self.used: set[str] = set()

    # Scanned and unrolled stacks hold the same layers in other forms: one array with a leading axis
    # of layers, or an array for each layer. So a parameter is looked up by its own name and shape
    # first, and then layer by layer, each as a whole array or as one index of a stacked one.
    def pieces(
        self, name: str, source: str, target: Target, cycles: LayerCycles
    ) -> tuple[SourcePiece | list[SourcePiece], list[Problem]]:
        """Return the piece or pieces of a parameter, and what is wrong."""
        # Three ways: another size of one dimension, which only a Resize rule allows; the same name
        # and shape; layer by layer.
        if (rule := self._wanted.resized.get(name)) and source in self._there:
            # Where the axis is named, the rule holds even for an equal size, whose last entries may
            # be padding. A vector that does not name it may be of another axis, which the pattern
            # matches as well: with an equal shape it is taken as it is. A matrix without the axis
            # has no dimension that the rule could mean, and must have its own shape below.
            dimension = _dimension(target, rule.axis)
            is_alike = rule.axis not in target.axes and self._there[source][0] == target.shape
            if dimension is not None and not is_alike:
                return self._resized(name, source, target, rule, dimension)
        if source in self._there and self._there[source][0] == target.shape:
            return self._piece(source, None), []
        layers = list(cycles.slots(source, target.stacked))
        problems: list[Problem] = []
        found = []
        for layer, own in layers:
            slot = self._slots.get(layer)
            called = name if name == source else f"{name} ({source} there)"
            if slot is None:
                at = "" if len(layers) == 1 else f" at {layer}"
                what = f"{called} {list(target.shape)} is not in {self._where}{at}"
                problems.append(Problem(what))
            elif slot.shape != own.shape:
                # Used, although it does not fit: one mistake is not reported twice.
                self.used.add(slot.parameter)
                what = f"{called} is {list(own.shape)} here, and {layer} {list(slot.shape)}"
                # The usual mismatch is a vocabulary of another size, for which there is a remedy to
                # offer.
                vocab = list(target.axes).index("vocab") if "vocab" in target.axes else None
                fits = vocab is not None and _alike(own.shape, slot.shape, vocab)
                remedy = "pad it with new entries, or cut it: Resize(pattern)" if fits else ""
                problems.append(Problem(f"{what} in {self._where}", remedy=remedy))
            else:
                found.append(self._piece(slot.parameter, slot))
        is_whole = len(layers) == 1 and layers[0][1].index is None
        return found[0] if is_whole and found else found, problems

    def _resized(
        self, name: str, source: str, target: Target, rule: Resize, dimension: int
    ) -> tuple[SourcePiece | list[SourcePiece], list[Problem]]:
        """Return a parameter as far as the source has it, and what is wrong."""
        self.used.add(source)
        shape, dtype = self._there[source]
        if not _alike(shape, target.shape, dimension):
            what = f"{name} is {list(target.shape)} here, and {source} {list(shape)}"
            remedy = f"only the size of its dimension {dimension} may differ"
            return [], [Problem(f"{what} in {self._where}", remedy=remedy)]
        there, size = shape[dimension], target.shape[dimension]
        # Without our own padding, for which the source need not have entries: `_read_part` makes it
        # zero, and where `held` is set it is as in a new model.
        needed = min(self._wanted.limits.get(rule.axis, size), size)
        if rule.size is not None and rule.size > there:
            what = f"{source} has {there} entries in {self._where}, not {rule.size}"
            return [], [Problem(what, remedy="correct the size in its rule")]
        count = min(there if rule.size is None else rule.size, needed)
        # Vocabularies are often padded with zeros to a round size. Taking the padding for tokens
        # would leave new tokens with zero embeddings, so the user must say how many entries are
        # real.
        zeros = self._zeros(source, dimension) if rule.size is None else 0
        if zeros and there - zeros < needed:
            what = f"{source} of {self._where} ends in {zeros} entries of zeros, as padding does"
            remedy = f"state how many are not padding: Resize(pattern, size={there - zeros})"
            return [], [Problem(what, remedy=remedy)]
        if shape == target.shape and count == needed:
            return self._piece(source, None), []
        read = functools.partial(_read_part, self._read, source, dimension, count)
        shown = ", ".join([*[":"] * dimension, f":{count}"])
        # Tokens that the source lacks are left to the model (`held`), which makes them as those of
        # a new one. Padding alone needs no `held`: no token of the vocabulary is in it.
        held = (dimension, count) if count < needed else None
        return SourcePiece(f"{source}[{shown}]", dtype, read, held), []

    def _zeros(self, source: str, dimension: int) -> int:
        """Return how many of the last entries along a dimension are zero."""
        # Reads the whole array, once: only for vocabularies that are resized.
        whole = tuple(slice(0, size) for size in self._there[source][0])
        others = tuple(n for n in range(len(whole)) if n != dimension)
        filled = np.flatnonzero(np.any(self._read(source, whole) != 0, axis=others))
        last = int(filled[-1]) + 1 if len(filled) else 0
        return self._there[source][0][dimension] - last

    def _piece(self, parameter: str, slot: Slot | None) -> SourcePiece:
        self.used.add(parameter)
        dtype = self._there[parameter][1]
        if slot is None or slot.index is None:
            return SourcePiece(parameter, dtype, functools.partial(self._read, parameter))
        layer = slot.index

        def read(index: Index) -> np.ndarray:
            return self._read(parameter, (slice(layer, layer + 1), *index))[0]

        return SourcePiece(f"{parameter}[{layer}]", dtype, read)


def _dimension(target: Target, axis: str) -> int | None:
    """Return the dimension of a logical axis; that of a vector, whatever it is called."""
    if axis in target.axes:
        return list(target.axes).index(axis)
    return 0 if len(target.shape) == 1 else None


def _alike(first: Shape, second: Shape, dimension: int) -> bool:
    """Return whether two shapes are equal but for the size of one dimension."""
    return len(first) == len(second) and all(
        n == dimension or a == b for n, (a, b) in enumerate(zip(first, second, strict=True))
    )


def _read_part(read: Read, source: str, dimension: int, count: int, index: Index) -> np.ndarray:
    """Return a block of what has only `count` entries along a dimension, and zeros beyond."""
    wanted = index[dimension]
    start, stop = min(wanted.start, count), min(wanted.stop, count)
    block = read(source, (*index[:dimension], slice(start, stop), *index[dimension + 1 :]))
    missing = (wanted.stop - wanted.start) - (stop - start)
    return np.pad(block, [(0, missing if n == dimension else 0) for n in range(len(index))])


# Starting from another run of luthier: its checkpoint, under its own names.

_VARIABLES = "variables"
_SETTINGS = "restored.json"


@dataclasses.dataclass(frozen=True)
class FromRun(Restore):
    """Starts from the weights of another run, read straight into their shards.

    On the command line `restore=run:DIR` is `restore=luthier.checkpoint.FromRun("DIR")`.

    Args:
      directory: The directory of the run, or that of its checkpoints; a path, or a URL of an object
        store.
      step: Step of the checkpoint; None means the newest.
      weights: The trained parameters, or their moving average.
      rules: Rules that take, initialize or skip parameters; the first match decides.
    """

    WORD: ClassVar[str] = "run"

    directory: str
    step: int | None = None
    weights: Literal["parameters", "ema"] = "parameters"
    rules: Sequence[Rule] = (Take(),)

    @property
    def claims(self) -> Sequence[Rule]:
        """The rules."""
        return self.rules

    @contextlib.contextmanager
    def open(self) -> Iterator[OpenedSource]:
        """Open the checkpoint. Raises as `Restore.open`.

        Yields:
          The arrays by name, not read yet.

        Raises:
          CheckpointError: It does not exist, or is damaged.
        """
        directory = _present_place(self.directory)
        if is_url(directory):
            with self._open_remote(directory) as opened:
                yield opened
            return
        path = pathlib.Path(directory)
        if not path.is_dir():
            near = sorted(str(found) for found in pathlib.Path().glob(f"*/*/{path.name}"))
            remedy = "give the directory of a run: that of its records, its name and its id"
            what = f"{path} does not exist"
            raise CheckpointError(Problem(what, "restore", remedy=remedy, nearest=near))
        inside = path / "checkpoints"
        with Store(inside if inside.is_dir() else path) as store:
            yield self._checkpoint(store, path, str(path))

    @contextlib.contextmanager
    def _open_remote(self, url: str) -> Iterator[OpenedSource]:
        """Open the checkpoint of a run in an object store, with copies of its small files."""
        bucket = Bucket(url)
        with (
            tempfile.TemporaryDirectory(prefix="luthier-") as folder,
            contextlib.ExitStack() as held,
        ):
            store = held.enter_context(Store(f"{url}/checkpoints"))
            if not store.steps():
                store = held.enter_context(Store(url))
            names = [*bucket.list("tokenizer/"), *bucket.list(_SETTINGS)]
            for name, content in segments.files_in(bucket, names):
                if fault := fault_of(name):
                    raise CheckpointError(Problem(f"{url} has a file {name!r}: {fault}", "restore"))
                with open_below(pathlib.Path(folder), name) as file:
                    file.writelines(content)
            yield self._checkpoint(store, pathlib.Path(folder), url)

    def _checkpoint(self, store: Store, path: pathlib.Path, name: str) -> _Checkpoint:
        step = store.latest() if self.step is None else self.step
        if step is None:
            raise CheckpointError(Problem(f"{name} holds no checkpoint", "restore"))
        return _Checkpoint(store, step, self.weights, path, name)


def _present_place(directory: str) -> str:
    """Return where the run, or the checkpoints, of a directory are now; a run may have been moved.

    Raises:
      CheckpointError: It was, and is not at the new place any more.
    """
    place = directory.rstrip("/") if is_url(directory) else os.path.expanduser(directory)
    run, mark, inside = place, "", ""
    if place.endswith("/checkpoints"):
        run, mark, inside = place.rpartition("/")
    if new := moves.moved_to(run):
        return f"{new}{mark}{inside}"
    if (note := moves.note_of(run)) is not None and not moves.has_config(run):
        what = f"{run} was moved to {note.destination}, which is not a run any more"
        raise CheckpointError(Problem(what, "restore"))
    return place


class _Checkpoint(OpenedSource):
    """One checkpoint of another run."""

    def __init__(self, store: Store, step: int, weights: str, path: pathlib.Path, name: str):
        self._store, self._step, self._path, self._name = store, step, path, name
        self._saved: dict[str, str] = {}
        self._there: dict[str, tuple[Shape, str]] = {}
        self._whole: dict[str, np.ndarray] = {}
        arrays = store.read(step).arrays
        if not any(name.startswith(f"{weights}/") for name in arrays):
            what = f"{name} keeps no {weights} at step {step}"
            raise CheckpointError(Problem(what, "restore.weights"))
        # What is frozen has no average: it is taken as it is.
        for wanted in (_VARIABLES, "parameters", weights):
            for name, described in arrays.items():
                kind, _, own = name.partition("/")
                if kind == wanted:
                    self._saved[own], self._there[own] = name, described

    @property
    def title(self) -> str:
        return f"{self._name} (step {self._step})"

    @property
    def tokenizer(self) -> pathlib.Path:
        return self._path / "tokenizer"

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        return read_config(self._path, _SETTINGS) or {}

    def find(self, wanted: Wanted) -> Found:
        # Before anything is written: weights that are damaged would otherwise be found after the
        # run has begun.
        if damage := self._store.check(self._step):
            raise CheckpointError(damage)
        return find(self._there, self._read, wanted, self.title)

    def read(self, found: Found, targets: Mapping[str, Target]) -> dict[str, jax.Array]:
        """Return the arrays; those of the same form go straight into their shards by Orbax."""
        import jax

        alike: dict[str, str] = {}
        for name, pieces in found.pieces.items():
            saved = self._same(pieces, targets[name])
            # Of a tied array only the first name is loaded directly; a restore takes each array
            # once.
            if saved and saved not in alike.values():
                alike[name] = saved
        loaded = self._store.load(
            self._step,
            {
                saved: jax.ShapeDtypeStruct(
                    targets[name].shape, targets[name].dtype, sharding=targets[name].sharding
                )
                for name, saved in alike.items()
            },
        )
        arrays = {name: loaded[saved] for name, saved in alike.items()}
        others = {name: _arrays_of(own) for name, own in found.pieces.items() if name not in alike}
        # Bounds the memory of a conversion: an array that is cut into layers, or cast, is held
        # whole on the host only from its first to its last use.
        waiting = collections.Counter(used for names in others.values() for used in names)
        # Those of one array together: it is read whole, and let go when the last is made.
        for name in sorted(others, key=others.__getitem__):
            with arrays_lib.returned():
                arrays[name] = assemble(targets[name], found.pieces[name])
                waiting.subtract(others[name])
                for used in others[name]:
                    if not waiting[used]:
                        self._whole.pop(used, None)
        return {name: arrays[name] for name in found.pieces}

    def _same(self, pieces: Pieces, target: Target) -> str:
        """Return the saved array that a parameter is, as it is; empty where it is put together."""
        if not isinstance(pieces, SourcePiece) or pieces.tensor not in self._there:
            return ""
        shape, dtype = self._there[pieces.tensor]
        same = (shape, dtype) == (target.shape, str(np.dtype(target.dtype)))
        return self._saved[pieces.tensor] if same else ""

    def _read(self, name: str, index: Index) -> np.ndarray:
        """Return a block of an array of another form or dtype, which is read whole, once."""
        import jax

        if name not in self._whole:
            shape, dtype = self._there[name]
            here = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
            abstract = jax.ShapeDtypeStruct(shape, dtype, sharding=here)
            saved = self._saved[name]
            self._whole[name] = np.asarray(self._store.load(self._step, {saved: abstract})[saved])
        return self._whole[name][index]


def _arrays_of(pieces: Pieces) -> list[str]:
    """Return the names of the arrays that a parameter is put together from, in order."""
    return sorted({piece.tensor.partition("[")[0] for piece in tensors_of(pieces)})
