"""Starting from another run of luthier: its checkpoint, under its own names."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import pathlib
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from luthier.checkpoint import memory
from luthier.checkpoint.foreign.layout import Index, Shape
from luthier.checkpoint.foreign.tensors import read_config
from luthier.checkpoint.restore import named
from luthier.checkpoint.restore.rules import Rule, Take
from luthier.checkpoint.restore.source import (
    Found,
    Opened,
    Piece,
    Restore,
    Target,
    Wanted,
    assemble,
    tensors_of,
)
from luthier.checkpoint.store import Store
from luthier.errors import CheckpointError, Problem

if TYPE_CHECKING:
    import jax

_VARIABLES = "variables"


@dataclasses.dataclass(frozen=True)
class FromRun(Restore):
    """Starts from the weights of another run, read straight into their shards.

    On the command line `restore=run:DIR` is `restore=luthier.checkpoint.FromRun("DIR")`.

    Args:
      directory: The directory of the run, or that of its checkpoints.
      step: Which checkpoint; None means the newest.
      weights: The trained parameters, or their moving average.
      rules: Which parameters are taken, initialized or skipped; the first that matches has a
        parameter.
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
    def open(self) -> Iterator[Opened]:
        """Open the checkpoint. Raises as `Restore.open`."""
        path = pathlib.Path(self.directory).expanduser()
        if not path.is_dir():
            near = sorted(str(found) for found in pathlib.Path().glob(f"*/*/{path.name}"))
            remedy = "give the directory of a run: that of its records, its name and its id"
            what = f"{path} does not exist"
            raise CheckpointError(Problem(what, "restore", remedy=remedy, nearest=near))
        inside = path / "checkpoints"
        with Store(inside if inside.is_dir() else path) as store:
            step = store.latest() if self.step is None else self.step
            if step is None:
                raise CheckpointError(Problem(f"{path} holds no checkpoint", "restore"))
            yield _Checkpoint(store, step, self.weights, path)


class _Checkpoint(Opened):
    """One checkpoint of another run."""

    def __init__(self, store: Store, step: int, weights: str, path: pathlib.Path):
        self._store, self._step, self._path = store, step, path
        self._saved: dict[str, str] = {}
        self._there: dict[str, tuple[Shape, str]] = {}
        self._whole: dict[str, np.ndarray] = {}
        arrays = store.read(step).arrays
        if not any(name.startswith(f"{weights}/") for name in arrays):
            what = f"{path} keeps no {weights} at step {step}"
            raise CheckpointError(Problem(what, "restore.weights"))
        # What is frozen has no average: it is taken as it is.
        for wanted in (_VARIABLES, "parameters", weights):
            for name, described in arrays.items():
                kind, _, own = name.partition("/")
                if kind == wanted:
                    self._saved[own], self._there[own] = name, described

    @property
    def title(self) -> str:
        return f"{self._path} (step {self._step})"

    @property
    def tokenizer(self) -> pathlib.Path:
        return self._path / "tokenizer"

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        return read_config(self._path, "restored.json") or {}

    def find(self, wanted: Wanted) -> Found:
        if damage := self._store.check(self._step):
            raise CheckpointError(damage)
        return named.find(self._there, self._read, wanted, self.title)

    def read(self, found: Found, targets: Mapping[str, Target]) -> dict[str, jax.Array]:
        """Return the arrays; those of the same form go straight into their shards by Orbax."""
        import jax

        alike: dict[str, str] = {}
        for name, pieces in found.pieces.items():
            saved = self._same(pieces, targets[name])
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
        waiting = collections.Counter(used for names in others.values() for used in names)
        # Those of one array together: it is read whole, and let go when the last is made.
        for name in sorted(others, key=others.__getitem__):
            with memory.returned():
                arrays[name] = assemble(targets[name], found.pieces[name])
                waiting.subtract(others[name])
                for used in others[name]:
                    if not waiting[used]:
                        self._whole.pop(used, None)
        return {name: arrays[name] for name in found.pieces}

    def _same(self, pieces: Piece | Sequence[Piece], target: Target) -> str:
        """Return the saved array that a parameter is, as it is; empty where it is put together."""
        if not isinstance(pieces, Piece) or pieces.tensor not in self._there:
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


def _arrays_of(pieces: Piece | Sequence[Piece]) -> list[str]:
    """Return the names of the arrays that a parameter is put together from, in order."""
    return sorted({piece.tensor.partition("[")[0] for piece in tensors_of(pieces)})
