"""Sources of weights: they find tensors for parameters, and read them into their shards."""

from __future__ import annotations

import abc
import dataclasses
import pathlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

import numpy as np

from luthier.checkpoint.foreign.family import Index, LayerCycles, Shape, Stacked
from luthier.checkpoint.restore.rules import Resize, Rule
from luthier.errors import CheckpointError, Problem

if TYPE_CHECKING:
    import jax


@dataclasses.dataclass(frozen=True)
class Target:
    """A parameter that waits for its values.

    Args:
      shape: Its shape.
      dtype: Its dtype.
      sharding: Where it goes; None means the default device.
      is_stacked: Whether its first axis is that of scanned layers.
      axes: The logical axis of every dimension; empty where they are not known.
    """

    shape: Shape
    dtype: Any
    sharding: Any = None
    is_stacked: bool = False
    axes: Sequence[str | None] = ()

    @property
    def stacked(self) -> Stacked:
        """Shape and stacking, as lookups of layers need them."""
        return Stacked(self.shape, self.is_stacked)


@dataclasses.dataclass(frozen=True)
class Wanted:
    """A request for parameters of a source.

    Args:
      taken: Parameters to restore, with the name that each has in the source.
      initialized: The same for parameters that the model makes.
      skipped: The same for parameters that are left alone although the source has them.
      is_skipped: Whether a tensor of the source may be left unread.
      limits: For logical dimensions that are padded in ours, their size without.
      resized: The rules of those taken parameters that may be of another size in the source.
    """

    taken: Mapping[str, tuple[str, Target]]
    initialized: Mapping[str, tuple[str, Target]]
    skipped: Mapping[str, tuple[str, Target]]
    is_skipped: Callable[[str], bool]
    limits: Mapping[str, int]
    resized: Mapping[str, Resize] = dataclasses.field(default_factory=dict)

    @property
    def model(self) -> Mapping[str, tuple[str, Target]]:
        """All parameters, taken or not, with the name that each has in the source."""
        return {**self.initialized, **self.skipped, **self.taken}

    @property
    def cycles(self) -> LayerCycles:
        """The kinds of layers of the model, by the names of the source."""
        return LayerCycles.of_sources(
            {name: (source, target.stacked) for name, (source, target) in self.model.items()}
        )


@dataclasses.dataclass(frozen=True)
class SourcePiece:
    """An array of the source, or a part of one, as a parameter or one layer of it needs it.

    Args:
      tensor: Its name in the source.
      dtype: The dtype that it has there.
      read: Returns a block of it, in the shape of ours.
      held: The dimension and how many entries along it are the source's, where the others are for
        the model to make; None where it is the whole.
    """

    tensor: str
    dtype: str
    read: Callable[[Index], np.ndarray]
    held: tuple[int, int] | None = None


Pieces = SourcePiece | Sequence["Pieces"]
"""The pieces of a parameter: the whole of it, or those along its first dimension (layers, experts).
"""


@dataclasses.dataclass(frozen=True)
class Found:
    """The answer of a source to a request for parameters.

    Args:
      problems: Missing, left-over and misshapen tensors.
      pieces: The pieces of each parameter.
    """

    problems: Sequence[Problem] = ()
    pieces: Mapping[str, Pieces] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class ModelDescription:
    """A source's description of the model of its weights, beside names and shapes.

    Args:
      config: The content of its config.json.
      family: The family that its tensors are read as.
      path: The folder.
      differing: Patterns of settings that are meant to be others in the model that is restored.
    """

    config: Mapping[str, Any]
    family: str
    path: pathlib.Path
    differing: Sequence[str] = ()


class OpenedSource(abc.ABC):
    """A source whose files are open."""

    @property
    @abc.abstractmethod
    def title(self) -> str:
        """The source in a few words, for the user."""

    @property
    def notes(self) -> Mapping[str, str]:
        """Notes about the source, by label."""
        return {}

    @property
    def tokenizer(self) -> pathlib.Path | None:
        """The folder with the files of the tokenizer that belongs to the weights, if any."""
        return None

    @property
    def described(self) -> ModelDescription | None:
        """Its description of its model, for comparisons; None where it has none."""
        return None

    @property
    def settings(self) -> Mapping[str, Mapping[str, Any]]:
        """The files of settings that belong to the weights, by name: what an export keeps."""
        return {}

    @abc.abstractmethod
    def find(self, wanted: Wanted) -> Found:
        """Look for tensors; reads names and shapes, and content only where two must be equal."""

    def read(self, found: Found, targets: Mapping[str, Target]) -> dict[str, jax.Array]:
        """Return the arrays, each device reading its own part."""
        return {name: assemble(targets[name], pieces) for name, pieces in found.pieces.items()}


class Restore(abc.ABC):
    """The source of a run's initial parameters; `experiment.restore`.

    It is read once, when a new run starts; a resumed run reads its own checkpoint.
    """

    @property
    @abc.abstractmethod
    def claims(self) -> Sequence[Rule]:
        """The rules that take, initialize or skip parameters, in order."""

    @abc.abstractmethod
    def open(self) -> AbstractContextManager[OpenedSource]:
        """Open the source.

        Returns:
          A context manager with the arrays by name, not read yet.

        Raises:
          CheckpointError: It does not exist, or is damaged.
        """


def assemble(target: Target, pieces: Pieces) -> jax.Array:
    """Return a parameter, read straight into its shards.

    Args:
      target: Its shape, dtype and sharding.
      pieces: Its pieces.
    """
    import jax

    # JAX asks for the block of each device; replicas ask for the same one, which is read once.
    blocks: dict[tuple[tuple[int, int], ...], np.ndarray] = {}

    def block(index: Any) -> np.ndarray:
        bounds = tuple(
            slice(*part.indices(size)[:2]) for part, size in zip(index, target.shape, strict=True)
        )
        key = tuple((part.start, part.stop) for part in bounds)
        if key not in blocks:
            # Cast block by block: only one of them exists in both types at a time.
            blocks[key] = np.asarray(_read(pieces, bounds)).astype(target.dtype, copy=False)
        return blocks[key]

    sharding = target.sharding or jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    return jax.make_array_from_callback(target.shape, sharding, block)


def _read(pieces: Pieces, index: Index) -> np.ndarray:
    if isinstance(pieces, SourcePiece):
        return _checked(pieces, index)
    # A device that owns some layers of a stack, or some experts, reads only those.
    return np.stack([_read(piece, index[1:]) for piece in pieces[index[0]]])


def _checked(piece: SourcePiece, index: Index) -> np.ndarray:
    """Read a block, and reject NaN and infinities: no run can start from such weights."""
    block = piece.read(index)
    # Kinds of integers and bools have none; types of ml_dtypes are of kind V, and have.
    if block.dtype.kind in "fcV" and not np.isfinite(block).all():
        count = int(np.sum(~np.isfinite(block)))
        what = f"{piece.tensor} holds {count:,} numbers that are NaN or infinite"
        raise CheckpointError(Problem(what, "restore", remedy="fetch the weights again"))
    return block


def tensors_of(pieces: Pieces) -> Iterator[SourcePiece]:
    """Yield the pieces of a parameter."""
    if isinstance(pieces, SourcePiece):
        yield pieces
    else:
        for piece in pieces:
            yield from tensors_of(piece)
