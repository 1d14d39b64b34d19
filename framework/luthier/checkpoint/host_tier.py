"""The fast tier whose disks are not shared: shards on each process's machine, copied to another.

Each process writes the shards of its own devices into a folder of its machine, such as memory, and
the shards of one other process, its *ward*. The other way round, each process has a *guardian*. The
shards reach the guardian over the interconnect of the devices, as a collective permutation within
the program. A step can be restored where each process either has its own shards, or its guardian
has them.

A save has two parts, so that the processes never disagree about more than one step:

1. Every process writes `STEP.saving-TOKEN`, and reports to process 0, which first brings the record
   of the run as far as the step.
2. Only then does each process commit its own folder. Each keeps one step more than it is asked to:
   a process that is killed in between has the step before.

A machine may be missing while the run resumes from an earlier step, and return with what it had.
So every start of the run has a random token, which is part of what it saves, and a note among the
durable checkpoints says up to which step the saves of each start count (`policy.Starts`).

The managers of Orbax 0.12 for emergency and peer-to-peer checkpoints do not fit, by their source:
they serve only what a process holds as its own, so that arrays without a replica on another machine
(`fsdp` over all of them) have no second copy; their server accepts any connection on all
interfaces; a transfer that was cut off is noticed only where a file is empty; and they store
iterators of PyGrain only.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import functools
import hashlib
import json
import math
import pathlib
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint.commit import Commit
from luthier.checkpoint.directory import Directory
from luthier.checkpoint.files import files_of
from luthier.checkpoint.policy import Copying, HostCopy, Starts
from luthier.checkpoint.store import installed_versions, version_notices
from luthier.errors import (
    EXIT_FAILED,
    CheckpointError,
    LuthierError,
    Problem,
    StoreError,
    VersionError,
)
from luthier.storage import unfenced

if TYPE_CHECKING:
    import jax

OWN, WARD = "own.safetensors", "ward.safetensors"
HOST_MEMORY = "pinned_host"
_FACTS = "host_tier"  # what is kept in a commit's `extra` beside that of the caller
Index = tuple[tuple[int, int], ...]
"""The part of an array that a device holds: start and end along each dimension."""


class HostCheckpoints:
    """Saves the shards of a process on its own machine, and those of another process.

    It is used as a `Store` is, within `Tiers`: by all processes, with the same calls in the same
    order. What an earlier start has left is looked for when this is made.

    Args:
      folder: The folder of the run on this machine, of the same name in all processes.
      starts: The starts of the run, whose steps count up to where a later one began.
      state: Shape, dtype and sharding of the arrays that are saved, by name.
      keep_latest: Number of newest checkpoints to keep. One more is kept, see the module.
      copies: Whether each process also keeps the shards of another one.
      copying: Protects the arrays from the steps that follow.
    """

    def __init__(
        self,
        folder: pathlib.Path,
        starts: Starts,
        state: Mapping[str, jax.ShapeDtypeStruct],
        keep_latest: int = 1,
        copies: bool = True,
        copying: Copying | None = None,
    ):
        from luthier.parallel import distributed

        self._process = distributed.process_index()
        self._num_processes = distributed.process_count()
        self.directory = folder / f"process-{self._process}"
        self._directory = Directory(self.directory)
        self._starts = starts
        self._keep = keep_latest + 1
        self._copying = HostCopy() if copying is None else copying
        hosts = distributed.gather(socket.gethostname())
        self._distance = 0
        if copies and self._num_processes > 1:
            _require_alike(state, self._num_processes)
            self._distance = _distance(state, hosts)
        self._layout = _layout(state, self._num_processes, self._distance)
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "host-tier")
        self._pending: concurrent.futures.Future[None] | None = None
        self._rounds = commit_lib.rounds(pathlib.Path(folder.name))
        self._is_clean = False
        self.fence: Callable[[], None] = unfenced
        """Raises `LockLost` where another process writes the run now; called by process 0."""
        self.before_commit: Callable[[], None] = unfenced
        """Called by process 0 when all processes have written a step; where it raises a
        `StoreError`, the step is left out."""
        self._find()

    # What there is.

    def _find(self) -> None:
        """Agree with all processes on the newest step that all of them can have."""
        from luthier.parallel import distributed

        mine: dict[int, tuple[Commit, bool, bool]] = {}
        with distributed.together():
            mine = self._whole()
        rows = [[step, has_own, has_ward] for step, (_, has_own, has_ward) in mine.items()]
        tables = [{row[0]: (row[1], row[2]) for row in rows} for rows in distributed.gather(rows)]
        self._step: int | None = None
        self._has_own: list[bool] = []
        self._has_ward: list[bool] = []
        for step in sorted(set[int]().union(*tables), reverse=True):
            has_own = [table.get(step, (False, False))[0] for table in tables]
            # Arrays of which both hold the same parts are in the guardian's first file only.
            has_ward = [
                bool(self._distance) and all(table.get(step, (False, False))) for table in tables
            ]
            if all(has_own[p] or has_ward[self._guardian(p)] for p in range(len(tables))):
                self._step, self._has_own, self._has_ward = step, has_own, has_ward
                break
        if self._step is None:
            return
        # The facts are alike in all of them; a process whose disk is empty gets them from another.
        teller = next(p for p, table in enumerate(tables) if self._step in table)
        shared = None
        if teller == self._process:
            commit = mine[self._step][0]
            shared = [dict(commit.extra), dict(commit.versions)]
        extra, self._versions = distributed.gather(shared)[teller]
        self._iterator = extra.pop(_FACTS)["iterator"]
        self._extra = extra

    def _whole(self) -> dict[int, tuple[Commit, bool, bool]]:
        """Return what this machine has: by step its commit, and whether both files are whole.

        Raises:
          VersionError: A later version of luthier wrote a step.
        """
        found: dict[int, tuple[Commit, bool, bool]] = {}
        for step, path in self._directory.committed().items():
            try:
                commit = commit_lib.read(path)
                facts = commit.extra.get(_FACTS, {})
                # Of another mesh, of another number of processes, or left on a machine that was
                # away while the run was resumed from an earlier step.
                if facts.get("layout") != self._layout or not self._starts.holds(
                    facts.get("start"), step
                ):
                    continue
                # Every byte is read: memory and local disks have nobody else who would check them.
                has_own, has_ward = (not commit_lib.check(path, commit, [f]) for f in (OWN, WARD))
            except VersionError:
                raise
            # What cannot be read does not count: the durable tier, or another machine, has it.
            except (OSError, CheckpointError, KeyError):
                continue
            found[step] = (commit, has_own, has_ward)
        return found

    def steps(self) -> list[int]:
        """Return the step that this start can restore from here, if there is one.

        Returns:
          At most one step.
        """
        return [] if self._step is None else [self._step]

    def latest(self) -> int | None:
        """Return the newest step that this machine has.

        Returns:
          A step; None without any.
        """
        return max(self._directory.committed(), default=None)

    def check(self, step: int) -> list[Problem]:
        """Return nothing: what is damaged was left out when this was made.

        Args:
          step: A step.
        """
        return []

    def trust(self, step: int) -> None:
        """Do nothing: see `check`.

        Args:
          step: A step.
        """

    def read_extra(self, step: int) -> dict[str, Any]:
        """Return the JSON facts saved beside the arrays of the step in `steps`.

        Args:
          step: The step.
        """
        return dict(self._extra)

    def notices(self, step: int) -> list[str]:
        """Return one line for each package that is of another version now; see `Store.notices`.

        Args:
          step: The step.
        """
        return version_notices(self._versions)

    # Saving.

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array],
        iterator: Any = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
    ) -> None:
        """Begin to save; return as soon as the arrays may be donated and the iterator moved.

        Called in the thread that trains, in all processes: the way to the guardians is a program of
        all devices.

        Args:
          step: Optimizer steps done.
          arrays: Arrays by name, with the shardings that this was made with.
          iterator: The data iterator, which has `get_state` and `set_state`.
          extra: JSON-able facts, copied.
          metrics: Values by `evaluation/metric`.

        Raises:
          CheckpointError: The save before this failed.
        """
        self.wait()
        state = None if iterator is None else iterator.get_state()
        facts = {"layout": self._layout, "start": self._starts.token, "iterator": state}
        extra = {**(extra or {}), _FACTS: facts}
        has_iterator, versions = iterator is not None, installed_versions()
        commit = commit_lib.describe(step, arrays, extra, metrics, versions, has_iterator)
        wards = {
            name: _sent(array, self._distance)
            for name, array in arrays.items()
            if self._distance and _differs(array, self._distance)
        }
        # These are new arrays, which no step donates: a thread can wait for them.
        own: Any = self._copying(arrays)
        if self._is_on_host:
            own = _on_host(own)
        self._step = None  # of the earlier start; it may be deleted from now on
        self._pending = self._thread.submit(self._write, commit, [own], wards)

    def _write(self, commit: Commit, own: list[Any], wards: dict[str, jax.Array]) -> None:
        saving = self._directory.saving(commit.step, self._starts.token)
        sums: dict[str, tuple[int, int]] = {}

        def write() -> None:
            if not self._is_clean:
                self._directory.clean()
                self._is_clean = True
            saving.mkdir(parents=True)
            # Both files are always there, so that each can be checked by itself. What is written is
            # let go at once: there may be copies of the whole state on the devices.
            arrays = own.pop()
            _write_file(saving / OWN, arrays if self._is_on_host else _on_host(arrays))
            del arrays
            _write_file(saving / WARD, _on_host(wards, self._distance))
            wards.clear()
            files = files_of(saving)
            sums.update({name: files.checksum(name, sync=True) for name in (OWN, WARD)})

        def put_in_place() -> None:
            path = self._directory.put_in_place(saving, commit.step)
            commit_lib.write(path, commit, sums)
            for old in sorted(self._directory.committed())[: -self._keep]:
                self._directory.delete(old)
            self._directory.delete_replaced(commit.step)

        try:
            # Two exchanges, whatever fails in one of them: no process may wait for another's.
            if self._agreed(commit.step, write, self._allow):
                self._agreed(commit.step, put_in_place)
        finally:
            shutil.rmtree(saving, ignore_errors=True)

    def _allow(self) -> bool:
        try:
            # A step of which the record in the bucket knows nothing must not be resumed from.
            self.before_commit()
        except StoreError:  # the next save may find the store again; training continues
            return False
        self.fence()
        return True

    def _agreed(
        self, step: int, call: Callable[[], None], allow: Callable[[], bool] = lambda: True
    ) -> bool:
        """Have all processes do something, and process 0 decide on what follows.

        Args:
          step: The step that is saved.
          call: What each process does.
          allow: Called by process 0 when all have succeeded.

        Returns:
          What `allow` returned.

        Raises:
          CheckpointError: The disk of this machine refuses, or that of another one.
        """
        own: Exception | None = None

        def decide(failures: Sequence[Any]) -> Any:
            nonlocal own
            if (why := next((why for why in failures if why), None)) is None:
                try:
                    return [allow(), None]
                except Exception as error:
                    own, why = error, self._summary(step, error)
            return [False, why]

        try:
            call()
        except Exception as error:
            own = error
        may, why = self._rounds.exchange(None if own is None else self._summary(step, own), decide)
        if own is not None:
            if (blamed := self._blamed(step, own)) is not None:
                raise blamed from own
            raise own
        if why is not None:
            line, exit_code = why
            raise CheckpointError(Problem(line), exit_code)
        return bool(may)

    def _summary(self, step: int, error: Exception) -> tuple[str, int]:
        error = self._blamed(step, error) or error
        code = error.exit_code if isinstance(error, LuthierError) else EXIT_FAILED
        return " ".join(str(error).split()) or repr(error), code

    @property
    def _is_on_host(self) -> bool:
        """Whether a save copies the arrays to the host before it returns."""
        return not self._copying.in_background

    def _blamed(self, step: int, error: Exception) -> CheckpointError | None:
        """Return the one-line error for a disk that refuses; None for other errors."""
        from safetensors import SafetensorError

        # Errors of the disk within a file of tensors are of the library's own class.
        if not isinstance(error, OSError | SafetensorError):
            return None
        why = getattr(error, "strerror", None) or " ".join(str(error).split())
        what = f"{self.directory}: step {step} was not saved: {why}"
        path = "checkpoints.fast.directory"
        return CheckpointError(Problem(what, path, remedy="free some space, or choose another"))

    def committed(self) -> list[int]:
        """Return nothing, since no step here is durable; raise what went wrong in the background.

        Raises:
          CheckpointError: The last save failed.
        """
        if self._pending is not None and self._pending.done():
            self.wait()
        return []

    def wait(self) -> None:
        """Wait until the running save is committed.

        Raises:
          CheckpointError: It failed, here or in another process.
        """
        pending, self._pending = self._pending, None
        if pending is not None:
            pending.result()

    def close(self) -> None:
        """Wait, and end the thread. Raises as `wait`."""
        try:
            self.wait()
        finally:
            self._thread.shutdown()

    def cut_back(self, step: int | None) -> None:
        """Delete every later step of this machine: training is resumed from `step`.

        Args:
          step: The restored step; None where training starts again from step 0.
        """
        self.wait()
        if self._process == 0:
            self.fence()
            # Before anything is deleted: machines that are away keep what they have.
            self._starts.end_others(step or 0)
        for later in self._directory.committed():
            if later > (-1 if step is None else step):
                self._directory.delete(later)

    def discard(self, durable: int) -> None:
        """Delete what this process has on its machine, unless it is newer than what is durable.

        Args:
          durable: The newest durable step.
        """
        if (self.latest() or 0) <= durable:
            shutil.rmtree(self.directory, ignore_errors=True)
            with contextlib.suppress(OSError):  # other processes on this machine have theirs there
                self.directory.parent.rmdir()

    # Restoring.

    def restore(
        self, step: int, abstract: Mapping[str, jax.ShapeDtypeStruct], iterator: Any = None
    ) -> dict[str, jax.Array]:
        """Return the arrays of the step in `steps`, each on the devices that its sharding names.

        Args:
          step: The step.
          abstract: Shape, dtype and sharding by name, as this was made with.
          iterator: The data iterator, whose position is restored in place.

        Returns:
          Arrays by name.

        Raises:
          BadInput: The iterator rejects its state.
        """
        path = self._directory.committed().get(step)
        if path is None and (self._has_own[self._process] or self._has_ward[self._process]):
            what = f"{self.directory} had step {step} a moment ago, and does not have it now"
            remedy = "rerun the command: it continues from what is there"
            raise CheckpointError(Problem(what, "checkpoints.fast.directory", remedy=remedy))
        if iterator is not None and self._iterator is None:
            what = f"step {step} was saved without the state of a data iterator"
            raise CheckpointError(Problem(what))
        if iterator is not None:
            iterator.set_state(self._iterator)
        own = _File(path / OWN if path is not None and self._has_own[self._process] else None)
        ward = _File(path / WARD if path is not None and self._has_ward[self._process] else None)
        everybody = all(self._has_own)
        arrays = {}
        with own, ward:
            for name, array in abstract.items():
                if everybody:
                    arrays[name] = own.array(name, array)
                    continue
                # All processes take part, also those that lack nothing: it is one program. Where
                # the guardian holds the same parts of an array, they are in its first file only.
                file = ward if _differs(array, self._distance) else own
                held = file.array(name, array, self._distance)
                received = _placed(_sent(held, -self._distance), array)
                is_whole = self._has_own[self._process]
                arrays[name] = own.array(name, array) if is_whole else received
        return arrays

    def _guardian(self, process: int) -> int:
        return (process + self._distance) % self._num_processes


# Which device holds which part, and which of another process corresponds to it.


@functools.lru_cache(4)
def _places(devices: Sequence[Any]) -> dict[Any, tuple[int, int]]:
    """Return the process of every device, and its number among the devices of that process."""
    numbers: dict[int, int] = {}
    places = {}
    for device in sorted(devices, key=lambda device: device.id):
        number = numbers[device.process_index] = numbers.get(device.process_index, -1) + 1
        places[device] = (device.process_index, number)
    return places


@functools.lru_cache(4)
def _shifted(devices: Sequence[Any], distance: int) -> dict[Any, Any]:
    """Return for every device its counterpart in the process that is so many further."""
    places = _places(devices)
    if not distance:
        return {device: device for device in devices}
    by_place = {place: device for device, place in places.items()}
    count = 1 + max(process for process, _ in places.values())
    return {
        device: by_place[(process + distance) % count, number]
        for device, (process, number) in places.items()
    }


def _all_devices() -> tuple[Any, ...]:
    import jax

    return tuple(jax.devices())


def _require_alike(state: Mapping[str, Any], num_processes: int) -> None:
    """Refuse copies where a process has no counterpart for each device of another one.

    Raises:
      CheckpointError: The mesh leaves out devices, or processes have different numbers of them.
    """
    from jax.sharding import NamedSharding

    devices = _all_devices()
    counts = collections.Counter(process for process, _ in _places(devices).values())
    if (
        len(counts) != num_processes
        or len(set(counts.values())) != 1
        or any(
            not isinstance(array.sharding, NamedSharding)
            or len(array.sharding.device_set) != len(devices)
            for array in state.values()
        )
    ):
        what = "copies need a mesh over all devices, and as many devices in each process"
        path, remedy = "checkpoints.fast.copies", "set it to False"
        raise CheckpointError(Problem(what, path, remedy=remedy))


def _parts(array: Any) -> dict[Any, Index]:
    """Return the part of an array that each device holds, here and in other processes."""
    return {
        device: tuple(part.indices(size)[:2] for part, size in zip(index, array.shape, strict=True))
        for device, index in array.sharding.devices_indices_map(tuple(array.shape)).items()
    }


def _differs(array: Any, distance: int) -> bool:
    """Return whether a process holds other parts of an array than the one so many further."""
    parts = _parts(array)
    counterpart = _shifted(_all_devices(), distance)
    return any(parts[counterpart[device]] != part for device, part in parts.items())


def _distance(state: Mapping[str, Any], hosts: Sequence[str]) -> int:
    """Return how many processes further the guardian of each process is.

    On another machine, where the processes are on several; and where the fewest bytes have to be
    copied: a replica has the same parts anyway.

    Args:
      state: Arrays by name, or their shapes, dtypes and shardings.
      hosts: The machine of each process.
    """
    count = len(hosts)
    # Powers of two, and the half: replicas are that far apart in most meshes. For all distances,
    # the question would take minutes with a thousand processes.
    distances = sorted({2**n for n in range(count.bit_length()) if 2**n < count} | {count // 2})
    apart = [
        distance
        for distance in distances
        if all(hosts[p] != hosts[(p + distance) % count] for p in range(count))
    ]
    # Arrays that are split alike have the same answer: of some thousand, a few are different.
    kinds: dict[Any, tuple[Any, int]] = {}
    for array in state.values():
        size = math.prod(array.shape) * np.dtype(array.dtype).itemsize
        key = (array.sharding, tuple(array.shape))
        kinds[key] = (array, size + kinds.get(key, (None, 0))[1])

    def cost(distance: int) -> int:
        return sum(size for array, size in kinds.values() if _differs(array, distance))

    return min(apart or distances, key=cost)


def _layout(state: Mapping[str, Any], num_processes: int, distance: int) -> str:
    """Return what must be equal for shards to be read again: who holds which part of what."""
    places = _places(_all_devices())
    digest = hashlib.sha256(json.dumps([num_processes, distance]).encode())
    known: dict[Any, str] = {}
    for name, array in sorted(state.items()):
        key = (array.sharding, tuple(array.shape))
        if key not in known:
            parts = {places[device]: part for device, part in _parts(array).items()}
            known[key] = hashlib.sha256(repr(sorted(parts.items())).encode()).hexdigest()
        digest.update(f"{name} {array.dtype} {tuple(array.shape)} {known[key]}\n".encode())
    return digest.hexdigest()


# Arrays on their way: between processes, to the host and into files.


def _sent(array: Any, distance: int) -> Any:
    """Return an array whose shard on each device is that of its counterpart so many back.

    Its parts do not belong together any more: the shards are what matters. All processes call this
    in the same order.
    """
    import jax
    from jax.sharding import NamedSharding

    kept = array.sharding
    if kept.memory_kind == HOST_MEMORY:
        array = jax.device_put(array, kept.with_memory_kind("device"))
    sharding = NamedSharding(kept.mesh, kept.spec, memory_kind=array.sharding.memory_kind)
    return _program(sharding, distance)(array)


@functools.lru_cache(256)
def _program(sharding: Any, distance: int) -> Callable[[Any], Any]:
    import jax
    import jax.numpy as jnp

    mesh, counterpart = sharding.mesh, _shifted(_all_devices(), distance)
    position = {device: number for number, device in enumerate(mesh.devices.flat)}
    pairs = [(number, position[counterpart[device]]) for device, number in position.items()]

    def send(shard: jax.Array) -> jax.Array:
        dtype, num_bits = shard.dtype, 8 * shard.dtype.itemsize
        # As bits, since some types of eight bits cannot be sent.
        is_float = jnp.issubdtype(dtype, jnp.floating) and jnp.finfo(dtype).bits == num_bits
        bits = jax.lax.bitcast_convert_type(shard, f"uint{num_bits}") if is_float else shard
        sent = jax.lax.ppermute(bits, mesh.axis_names, pairs)
        return jax.lax.bitcast_convert_type(sent, dtype) if is_float else sent

    spec = sharding.spec
    mapped = jax.shard_map(send, mesh=mesh, in_specs=spec, out_specs=spec, check_vma=False)
    return jax.jit(mapped, out_shardings=sharding)


def _placed(array: Any, abstract: Any) -> Any:
    """Return an array where its sharding wants it: in another kind of memory, maybe."""
    import jax

    return jax.device_put(array, abstract.sharding)


def _own_parts(array: Any, distance: int = 0) -> Iterator[tuple[str, Any]]:
    """Yield a device of this process for each part that its devices hold, with the part as text.

    Args:
      array: The array, or its shape, dtype and sharding.
      distance: How far the shards have been sent.
    """
    parts, origin = _parts(array), _shifted(_all_devices(), -distance)
    for device in array.sharding.addressable_devices:
        yield ",".join(f"{start}:{end}" for start, end in parts[origin[device]]), device


def _on_host(arrays: Mapping[str, jax.Array], distance: int = 0) -> dict[str, np.ndarray]:
    """Return the parts that this process holds, each once, by the names of arrays and parts."""
    chosen: dict[str, jax.Array] = {}
    for name, array in arrays.items():
        shards = {shard.device: shard.data for shard in array.addressable_shards}
        for part, device in _own_parts(array, distance):
            chosen.setdefault(f"{name}|{part}", shards[device])
    for shard in chosen.values():
        shard.copy_to_host_async()
    return {key: np.asarray(shard) for key, shard in chosen.items()}


def _write_file(path: pathlib.Path, arrays: Mapping[str, np.ndarray]) -> None:
    from safetensors.numpy import save_file

    # As bytes, since the file has no names for some types. Shape and type are the program's.
    save_file(
        {
            key: np.ascontiguousarray(array).reshape(-1).view(np.uint8)
            for key, array in arrays.items()
        },
        path,
    )


class _File:
    """Reads a file of shards; without a path, it has zeros for everything."""

    def __init__(self, path: pathlib.Path | None):
        self._path = path
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> _File:
        from safetensors import safe_open

        if self._path is not None:
            self._file = self._stack.enter_context(safe_open(self._path, framework="np"))
        return self

    def __exit__(self, *unused: object) -> None:
        self._stack.close()

    def array(self, name: str, abstract: Any, distance: int = 0) -> Any:
        """Return an array of which this process has the shards of the file."""
        import jax
        from jax.sharding import SingleDeviceSharding

        shape = abstract.sharding.shard_shape(tuple(abstract.shape))
        kind, dtype = abstract.sharding.memory_kind, np.dtype(abstract.dtype)
        shards, known = [], dict[str, np.ndarray]()
        for part, device in _own_parts(abstract, distance):
            if part not in known:
                known[part] = self._read(f"{name}|{part}", shape, dtype)
            place = SingleDeviceSharding(device, memory_kind=kind)
            shards.append(jax.device_put(known[part], place))
        return jax.make_array_from_single_device_arrays(
            tuple(abstract.shape), abstract.sharding, shards
        )

    def _read(self, key: str, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
        if self._path is None:
            return np.zeros(shape, dtype)
        return self._file.get_tensor(key).view(dtype).reshape(shape)
