"""The checkpoint policy: when to save, how to copy and store, and which checkpoints to keep."""

from __future__ import annotations

import abc
import dataclasses
import json
import math
import os
import pathlib
import shutil
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

from luthier.checkpoint.files import Folder, files_of
from luthier.durations import Duration, Seconds
from luthier.errors import CheckpointError, Problem
from luthier.storage import replacing

if TYPE_CHECKING:
    import jax


# How Orbax writes and reads arrays: sizes of files, and the part of each replica.


@dataclasses.dataclass(frozen=True)
class Storage:
    """Settings for writing and reading arrays with Orbax.

    Args:
      file_bytes: Size of a full data file; None uses Orbax's default, 2 GiB.
      saving_replicas: Number of replicas among which a save of replicated arrays is split; 1 leaves
        it to the first, None takes all.
      broadcast_axis: The mesh axis whose first replica reads a checkpoint, and sends it to the
        others; None has every replica read it. No array may be split over this axis.
    """

    RANGES: ClassVar[dict[str, str]] = {"file_bytes": "1 <= x", "saving_replicas": "1 <= x"}

    file_bytes: int | None = None
    saving_replicas: int | None = None
    broadcast_axis: str | None = None

    def saving(self) -> Any:
        """Return the Orbax context to save in.

        Returns:
          A context manager.
        """
        from orbax.checkpoint import v1 as ocp

        context = ocp.Context()
        # One OCDBT database instead of a file for each array; this is the size at which it begins
        # another data file.
        context.array.saving.ocdbt_target_data_file_size = self.file_bytes
        if self.saving_replicas is not None:
            # Otherwise the first replica writes everything, and the hosts of the others wait for
            # it.
            context.array.saving.use_replica_parallel = self.saving_replicas > 1
            context.array.saving.max_replicas_for_replica_parallel = self.saving_replicas
        return context

    def loading(self, arrays: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        """Return the Orbax context to load in.

        Args:
          arrays: Shape, dtype and sharding of what is wanted.

        Returns:
          A context manager.

        Raises:
          CheckpointError: `broadcast_axis` is not an axis of the mesh, or an array is split over
            it.
        """
        from orbax.checkpoint import v1 as ocp

        context = ocp.Context()
        # Reading through one replica and broadcasting over the interconnect replaces N reads of the
        # same bytes from the disk, which data-parallel hosts would do at the same time.
        index = self._broadcast_index(arrays)
        if index is not None:
            loading = context.array.loading
            loading.use_load_and_broadcast = True
            loading.load_and_broadcast_options.replica_axis_index = index
        return context

    # Orbax takes the number of one mesh axis for all arrays, so that the axis must be in the mesh
    # of each.
    def _broadcast_index(self, arrays: Mapping[str, jax.ShapeDtypeStruct]) -> int | None:
        """Return the place of the axis in the mesh; None where there is one replica only."""
        axis, index = self.broadcast_axis, None
        if axis is None:
            return None
        path = "checkpoints.storage.broadcast_axis"
        for name, array in arrays.items():
            mesh, spec = getattr(array.sharding, "mesh", None), getattr(array.sharding, "spec", ())
            if mesh is None or axis not in mesh.axis_names:
                axes = "no mesh" if mesh is None else f"a mesh of {', '.join(mesh.axis_names)}"
                raise CheckpointError(Problem(f"{name} is on {axes}, without {axis!r}", path))
            # Such an array differs from replica to replica: broadcasting the first one's would
            # overwrite the others.
            if any(axis == part or (isinstance(part, tuple) and axis in part) for part in spec):
                remedy = "choose an axis that only repeats parameters, or leave it out"
                raise CheckpointError(Problem(f"{name} is split over {axis!r}", path, "", remedy))
            # With one replica there is nobody to send to.
            index = mesh.axis_names.index(axis) if mesh.shape[axis] > 1 else None
        return index


# Copies for saves that run while training continues: the step donates its buffers.


class Copying(abc.ABC):
    """Protects the arrays of a save from the steps that follow."""

    @property
    @abc.abstractmethod
    def in_background(self) -> bool:
        """Whether the way to the host is left to a thread, while steps are taken."""

    @abc.abstractmethod
    def __call__(self, arrays: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return arrays that no step touches, once this returns or once Orbax has read them."""


@dataclasses.dataclass(frozen=True)
class HostCopy(Copying):
    """Copies to the host before the next step begins: no more device memory, a longer pause."""

    @property
    def in_background(self) -> bool:
        """False: the step waits for the copy."""
        return False

    def __call__(self, arrays: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return the arrays as they are: Orbax copies them before `save` returns.

        Args:
          arrays: Arrays by name.

        Returns:
          The arrays by name, not copied.
        """
        return arrays


@dataclasses.dataclass(frozen=True)
class DeviceCopy(Copying):
    """Copies on the device, and to the host while the next steps run: a short pause.

    It takes the memory of the state once more, from the save until the host has it.
    """

    @property
    def in_background(self) -> bool:
        """True: only the copy on the device comes before the next step."""
        return True

    def __call__(self, arrays: Mapping[str, jax.Array]) -> Mapping[str, jax.Array]:
        """Return copies, which the device makes in the order of its work.

        Args:
          arrays: Arrays by name.

        Returns:
          Arrays of the same shapes and shardings.
        """
        import jax.numpy as jnp

        # Dispatched before the next step, whose donation then waits for the copies on the device.
        return {name: jnp.copy(array) for name, array in arrays.items()}


# The fast tier: checkpoints on a disk that is near, made often, and lost with the machine.

FILE = "fast_tier.json"


@dataclasses.dataclass(frozen=True)
class FastTier:
    """Checkpoints on a fast disk, between those in the run's directory.

    All processes must see the directory: one machine, or a disk that the machines share.

    Args:
      directory: Root directory of the fast checkpoints, such as /dev/shm/luthier or a local disk;
        each run has a folder of its own there.
      every: Interval between two checkpoints.
      keep_latest: Number of newest checkpoints to keep.
    """

    RANGES: ClassVar[dict[str, str]] = {"keep_latest": "1 <= x"}

    directory: str
    every: Duration
    keep_latest: int = 1

    def folder(self, checkpoints: pathlib.Path, primary: bool) -> pathlib.Path:
        """Return the folder of a run, creating it if necessary.

        A run finds it by a file among its own checkpoints: a run that was deleted and started again
        never resumes from what was left here.

        Args:
          checkpoints: Where the run keeps its other checkpoints.
          primary: Whether this process makes it; the others come after it.

        Returns:
          The folder.

        Raises:
          CheckpointError: It cannot be made, or this process does not see it.
        """
        # The name of the folder is random and recorded among the run's own checkpoints, instead of
        # being made from the run's id. A run that is deleted and started again has the same id, and
        # must not find the state of the deleted one on the fast disk.
        root = pathlib.Path(self.directory).expanduser().absolute()
        note = checkpoints / FILE
        try:
            # A damaged note counts as none, and a new folder is made: the steps since the last
            # durable save are lost, as they are with a machine. The former folder stays behind,
            # since nothing shows any more whose it is.
            if primary and _named(note) is None:
                checkpoints.mkdir(parents=True, exist_ok=True)
                content = json.dumps({"name": f"run-{os.urandom(8).hex()}"}) + "\n"
                with replacing(note) as file:
                    file.write(content.encode())
            name = _named(note)
            if name is None:
                raise CheckpointError(Problem(f"{note} is missing or damaged"))
            folder = root / name
            if primary:
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_make(root, error) from error
        # Asked by every process: a disk that is local to each machine would hold the shards of one
        # machine only, and no checkpoint of it could be restored.
        if not folder.is_dir():
            what = f"{folder} is not visible to every process"
            remedy = "choose a directory that all of them see, or use a HostTier"
            raise CheckpointError(Problem(what, "checkpoints.fast.directory", "", remedy))
        return folder


@dataclasses.dataclass(frozen=True)
class HostTier:
    """Checkpoints on a disk or in the memory of each machine, for machines that share no fast disk.

    Each process saves the shards of its own devices, and those of one other process, on another
    machine if there are several. A run that restarts with the same number of processes on the same
    mesh restores the newest step that its machines still have: it survives the loss of any machine
    whose guardian is left. Otherwise it restores the newest durable checkpoint.

    Args:
      directory: Root directory of the fast checkpoints on each machine, such as /dev/shm/luthier;
        each run has a folder of its own there.
      every: Interval between two checkpoints.
      keep_latest: Number of newest checkpoints to keep. One more is kept, in case that a process is
        killed while another one commits.
      copies: Whether each process also saves the shards of another one. While these are on their
        way, they take as much memory on the devices as the state itself.

    Example:
      >>> from luthier import checkpoint, durations
      >>> tier = checkpoint.HostTier("/dev/shm/luthier", durations.Seconds(60))
      >>> checkpoint.Checkpoints(fast=tier).fast.copies
      True
    """

    RANGES: ClassVar[dict[str, str]] = {"keep_latest": "1 <= x"}

    directory: str
    every: Duration
    keep_latest: int = 1
    copies: bool = True

    def folder(self, name: str) -> pathlib.Path:
        """Return the folder of a run on this machine, creating it if necessary.

        Args:
          name: The name of the run's folder, see `Starts`.

        Returns:
          The folder.

        Raises:
          CheckpointError: It cannot be made.
        """
        folder = pathlib.Path(self.directory).expanduser().absolute() / name
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise _cannot_make(folder.parent, error) from error
        return folder


@dataclasses.dataclass
class Starts:
    """The starts of a run that save into a `HostTier`, in a note among its durable checkpoints.

    Args:
      checkpoints: The folder of the durable checkpoints.
      name: The name of the run's folder on the fast disks.
      token: Random, of this start.
      ends: The last step of each start that counts; None of this one and of those that no later
        one has followed.
    """

    checkpoints: Folder
    name: str
    token: str
    ends: dict[str, int | None]

    @classmethod
    def begin(cls, checkpoints: Folder) -> Starts:
        """Note a start, and return all of them; called by process 0.

        Args:
          checkpoints: The folder of the durable checkpoints.

        Raises:
          CheckpointError: The disk refuses.
        """
        try:
            text = files_of(checkpoints).read_text(FILE)
        except (FileNotFoundError, NotADirectoryError, UnicodeDecodeError):
            text = ""
        name, ends = _name_in(text), _ends_in(text)
        if name is None:  # see `FastTier.folder`
            name, ends = f"run-{os.urandom(8).hex()}", {}
        starts = cls(checkpoints, name, os.urandom(8).hex(), ends)
        starts.ends[starts.token] = None
        starts._write()
        return starts

    def holds(self, token: object, step: int) -> bool:
        """Return whether what a start has saved at a step still counts.

        Args:
          token: The token of the start.
          step: The step.
        """
        if not isinstance(token, str) or token not in self.ends:
            return False
        end = self.ends[token]
        return end is None or step <= end

    def end_others(self, step: int) -> None:
        """Note that this start continues from a step: later ones of other starts do not count.

        Args:
          step: The step.

        Raises:
          CheckpointError: The disk refuses.
        """
        others = {
            token: step if end is None else min(step, end)
            for token, end in self.ends.items()
            if token != self.token
        }
        # Those that end at the same step or before another one have nothing that it has not, but
        # their last step itself: a run that is restarted for ever keeps a bounded number.
        self.ends = {**dict(list(others.items())[-_NUM_STARTS:]), self.token: None}
        self._write()

    def _write(self) -> None:
        content = [json.dumps({"name": self.name, "starts": self.ends}).encode() + b"\n"]
        try:
            if not isinstance(self.checkpoints, pathlib.Path):
                files_of(self.checkpoints).write(FILE, content)
                return
            self.checkpoints.mkdir(parents=True, exist_ok=True)
            with replacing(self.checkpoints / FILE) as file:
                file.writelines(content)
        except OSError as error:
            what = f"{self.checkpoints}/{FILE} cannot be written: {error.strerror or error}"
            raise CheckpointError(Problem(what, "checkpoints.fast")) from error


_NUM_STARTS = 32


def _ends_in(text: str) -> dict[str, int | None]:
    try:
        ends = dict(json.loads(text)["starts"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return {}
    return {token: end for token, end in ends.items() if end is None or type(end) is int}


def _cannot_make(root: pathlib.Path, error: OSError) -> CheckpointError:
    reason = error.strerror or str(error)
    path, remedy = "checkpoints.fast.directory", "choose a directory that can be written"
    return CheckpointError(Problem(f"{root}: {reason}", path, "", remedy))


def _named(note: pathlib.Path) -> str | None:
    """Return the name that a run's note holds, if it is one of ours."""
    try:
        return _name_in(note.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _name_in(text: str) -> str | None:
    try:
        name = json.loads(text)["name"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    # The name is joined to a path that is deleted when the run is over: a note that was changed by
    # hand must not lead anywhere else.
    ours = isinstance(name, str) and name.startswith("run-") and name[4:].isalnum()
    return name if ours else None


def discard(folder: pathlib.Path) -> None:
    """Delete the folder of a run that is over."""
    shutil.rmtree(folder, ignore_errors=True)


# Which checkpoints are made, and which of them are kept.

LOSS = "loss"
"""Key of the training loss among the metrics of a checkpoint; no evaluation can have it."""


class BestSelection(Protocol):
    """Decides which checkpoint is best; `luthier.metrics.Selector` is one."""

    @property
    def name(self) -> str:
        """The key of the deciding value: `evaluation/metric`."""

    def better(self, value: float, other: float) -> bool:
        """Return whether `value` is strictly better than `other`."""


@dataclasses.dataclass(frozen=True)
class SavedCheckpoint:
    """A committed checkpoint, as far as the policy looks at it.

    Args:
      step: Optimizer steps done.
      metrics: Metrics known when it was saved, by `evaluation/metric`; and the training loss.
      is_known: Whether that could be read; what could not is kept.
    """

    step: int
    metrics: Mapping[str, float]
    is_known: bool = True


@dataclasses.dataclass(frozen=True)
class Checkpoints:
    """The checkpoint policy. A checkpoint is kept for as long as any of its rules keeps it.

    The last one whose training loss was finite is always kept.

    Args:
      every: Interval between two saves; None saves only when training ends or is interrupted.
      keep_latest: Number of newest checkpoints to keep. With more than one, a run can resume from
        an older checkpoint if the newest is damaged.
      keep_every: Also keep the first one saved at or after each multiple of so many steps, for
        good; None keeps none for good.
      keep_best: Also keep the one with the best value of this metric, of those saved with one.
      fast: Further checkpoints on a fast disk, made more often; None makes none.
      copying: Protects the arrays of a save from the steps that follow.
      storage: Settings for writing and reading arrays.

    Example:
      >>> from luthier import checkpoint, durations
      >>> policy = checkpoint.Checkpoints(every=durations.Steps(100), keep_latest=2)
      >>> policy.most_kept(steps=1000)
      3
    """

    RANGES: ClassVar[dict[str, str]] = {"keep_latest": "1 <= x", "keep_every": "1 <= x"}

    every: Duration | None = Seconds(15 * 60)
    keep_latest: int = 2
    keep_every: int | None = None
    keep_best: BestSelection | None = None
    fast: FastTier | HostTier | None = None
    copying: Copying = HostCopy()
    storage: Storage = Storage()

    def best(self, saved: Sequence[SavedCheckpoint]) -> int | None:
        """Return the step with the best metric; the earliest among equals, None without any.

        Args:
          saved: Steps and metrics of the checkpoints that are there.

        Returns:
          A step, or None.
        """
        # Strictly better, so that the earliest of equals stays: a tie must not replace a
        # checkpoint.
        best: tuple[int, float] | None = None
        for step, value in self._values(saved):
            if best is None or (self.keep_best and self.keep_best.better(value, best[1])):
                best = (step, value)
        return None if best is None else best[0]

    def kept(self, saved: Sequence[SavedCheckpoint]) -> set[int]:
        """Return the steps to keep of those that are there.

        Args:
          saved: Steps and metrics of the checkpoints that are there.

        Returns:
          Steps.
        """
        # The rules only add: a checkpoint goes when no rule wants it, and one that could not be
        # read is kept, because nobody knows what it is worth.
        steps = sorted(checkpoint.step for checkpoint in saved if checkpoint.is_known)
        latest = steps[-self.keep_latest :]
        finite = [c.step for c in saved if c.is_known and math.isfinite(c.metrics.get(LOSS, 0.0))]
        if finite and max(finite) < latest[0]:
            # A way back for a run that has diverged. It takes the place of one that is worth
            # nothing; the newest stays, because it says where the run is.
            latest = [max(finite), *latest[-max(self.keep_latest - 1, 1) :]]
        kept = {*latest, *(checkpoint.step for checkpoint in saved if not checkpoint.is_known)}
        if self.keep_every is not None:
            reached = 0
            for step in steps:
                # The first save at or after each multiple, because saves are timed in minutes or
                # evaluations and rarely meet a multiple exactly.
                if step // self.keep_every > reached:
                    kept.add(step)
                    reached = step // self.keep_every
        best = self.best(saved)
        return kept if best is None else kept | {best}

    def most_kept(self, steps: int | None = None) -> int:
        """Return how many checkpoints can be on the disk at once, with the one being written.

        Args:
          steps: Steps of the whole run, for what `keep_every` keeps.

        Returns:
          A number of checkpoints.
        """
        for_good = (steps or 0) // self.keep_every if self.keep_every is not None else 0
        # One more for the save in progress: the old checkpoint goes only after the new one is
        # committed.
        return self.keep_latest + for_good + (self.keep_best is not None) + 1

    def _values(self, saved: Sequence[SavedCheckpoint]) -> list[tuple[int, float]]:
        if self.keep_best is None:
            return []
        name = self.keep_best.name
        values = [
            (checkpoint.step, checkpoint.metrics[name])
            for checkpoint in sorted(saved, key=lambda checkpoint: checkpoint.step)
            if name in checkpoint.metrics
        ]
        return [(step, value) for step, value in values if not math.isnan(value)]
