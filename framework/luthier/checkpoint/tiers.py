"""A fast checkpoint tier for the next minutes and a durable one for good, used as one store."""

from __future__ import annotations

import concurrent.futures
import contextlib
import pathlib
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from luthier.checkpoint.arrays import process_index
from luthier.checkpoint.files import files_of, folder
from luthier.checkpoint.policy import (
    FILE,
    Checkpoints,
    Copying,
    HostCopy,
    HostTier,
    Starts,
    discard,
)
from luthier.checkpoint.store import Store
from luthier.errors import LuthierError, Problem

if TYPE_CHECKING:
    import jax

    from luthier.checkpoint.host_tier import HostCheckpoints


def open_checkpoints(
    path: pathlib.Path | str,
    policy: Checkpoints,
    fence: Callable[[], None] = lambda: None,
    before_commit: Callable[[], None] = lambda: None,
    state: Mapping[str, jax.ShapeDtypeStruct] | None = None,
) -> Saves:
    """Return the checkpoints of a run: one store, or two tiers where its policy asks for them.

    Args:
      path: Where the run keeps its checkpoints; a path, or a URL of an object store.
      policy: The checkpoint policy.
      fence: Raises `LockLost` where another process writes here now; called before each commit.
      before_commit: Called by the primary before it commits a durable checkpoint.
      state: Shape, dtype and sharding of the arrays that are saved, which a `HostTier` needs.

    Returns:
      The store, ready to save and restore.

    Raises:
      CheckpointError: The fast tier cannot be made, or not every process sees it.

    Example:
      >>> import pathlib
      >>> from luthier import checkpoint
      >>> store = checkpoint.open_checkpoints(pathlib.Path("checkpoints"), checkpoint.Checkpoints())
      >>> store.latest() is None
      True
    """
    fast: Store | HostCheckpoints | None = None
    if isinstance(tier := policy.fast, HostTier):
        fast = _open_host_tier(path, tier, policy.copying, state or {})
        fast.fence, fast.before_commit = fence, before_commit
    elif tier is not None:
        from luthier.parallel import distributed

        # Made by the primary and then looked up by all: a process that does not see the folder (a
        # fast disk that is local to each machine) must fail here, and not at the first restore.
        own = pathlib.Path(path)  # never a URL: the trainer refuses it before a run is made
        distributed.decided(lambda: str(tier.folder(own, primary=True)))
        with distributed.together():
            place = tier.folder(own, primary=False)
        fast = Store(place, Checkpoints(keep_latest=tier.keep_latest, storage=policy.storage))
        fast.fence = fence
    if tier is None:
        _forget_fast(path)
    store = Store(path, policy)
    store.fence, store.before_commit = fence, before_commit
    if fast is None and not policy.copying.in_background:
        return store
    return Tiers(store, fast, policy.copying)


def _forget_fast(path: pathlib.Path | str) -> None:
    """Forget the fast tier of a run that resumes without one: its steps are of another history."""
    if process_index() == 0:
        with contextlib.suppress(OSError, LuthierError):
            files_of(folder(path)).delete(FILE)


def _open_host_tier(
    path: pathlib.Path | str,
    tier: HostTier,
    copying: Copying,
    state: Mapping[str, jax.ShapeDtypeStruct],
) -> HostCheckpoints:
    from luthier.checkpoint.host_tier import HostCheckpoints
    from luthier.parallel import distributed

    checkpoints = folder(path)

    def begin() -> list[Any]:
        starts = Starts.begin(checkpoints)
        return [starts.name, starts.token, starts.ends]

    starts = Starts(checkpoints, *distributed.decided(begin))
    with distributed.together():
        place = tier.folder(starts.name)
    return HostCheckpoints(place, starts, state, tier.keep_latest, tier.copies, copying)


class _Position:
    """The state of a data iterator as it was when this was made."""

    # The save begins in a thread while the loop already draws the next batches from the iterator.
    def __init__(self, iterator: Any):
        self._state = iterator.get_state()

    def get_state(self) -> Any:
        return self._state


# The fast tier takes the frequent saves, which a crash of the process falls back to; the durable
# one takes the rare saves, which survive the machine. For the trainer both are one store: it asks
# for the newest whole step of either.
class Tiers:
    """Saves into one of two stores, and restores from the nearest whole checkpoint of both.

    It is used as a `Store` is: by all processes, with the same calls in the same order.

    Args:
      durable: The store of the run's directory; closed with this.
      fast: The store on a fast disk, or on the machines of the processes; closed with this. None
        for none.
      copying: Protects the arrays from the steps that follow.
    """

    def __init__(
        self,
        durable: Store,
        fast: Store | HostCheckpoints | None = None,
        copying: Copying | None = None,
    ):
        self._durable, self._fast = durable, fast
        self._copying = HostCopy() if copying is None else copying
        # One thread, so that saves begin in the order of their steps. It waits for the device
        # copies, which Orbax would otherwise do in the thread that trains.
        self._thread = concurrent.futures.ThreadPoolExecutor(1, "tiers")
        self._saving: concurrent.futures.Future[None] | None = None

    def __enter__(self) -> Tiers:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()

    # What there is.

    def _stores(self) -> list[Store | HostCheckpoints]:
        return [self._durable] if self._fast is None else [self._fast, self._durable]

    def _store_of(self, step: int) -> Store | HostCheckpoints:
        """Return the store to read a step from: the fast one where both have it."""
        return next((store for store in self._stores() if step in store.steps()), self._durable)

    # Of the durable tier only: this is what a record may promise, see `committed`.
    def latest(self) -> int | None:
        """Return the step of the newest checkpoint that is durable; see `Store.latest`.

        Returns:
          A step; None without checkpoints.
        """
        return self._durable.latest()

    def newest_whole(self) -> tuple[int | None, list[Problem]]:
        """Return the newest step that is whole in either tier, and what is wrong with later ones.

        A damaged checkpoint of the fast tier moves to its trash, so that nothing reads it any more.

        Returns:
          A step or None, and the problems of later ones.
        """
        problems: list[Problem] = []
        for step in sorted({s for store in self._stores() for s in store.steps()}, reverse=True):
            for store in self._stores():
                if step not in store.steps():
                    continue
                # The fast store is first in the list: where both have the step it is the nearer
                # one, and a damaged copy there does not hide the durable one.
                if not (damage := store.check(step)):
                    store.trust(step)
                    return step, problems
                problems += damage
                if store is self._fast and isinstance(store, Store):
                    store.move_to_trash(step, damage[0].what)
        return None, problems

    def unsealed(self) -> list[int]:
        """Return steps of folders without a commit file; see `Store.unsealed`.

        Returns:
          Steps, in order.
        """
        return self._durable.unsealed()

    def trust(self, step: int) -> None:
        """Take a checkpoint as whole; see `Store.trust`.

        Args:
          step: Step of the checkpoint.
        """
        self._store_of(step).trust(step)

    def read_extra(self, step: int) -> dict[str, Any]:
        """Return the JSON facts saved beside the arrays; see `Store.read_extra`.

        Args:
          step: Step of the checkpoint.

        Returns:
          JSON values by name.
        """
        return self._store_of(step).read_extra(step)

    def notices(self, step: int) -> list[str]:
        """Return one line for each package that is of another version now; see `Store.notices`.

        Args:
          step: Step of the checkpoint.

        Returns:
          Lines for the user.
        """
        return self._store_of(step).notices(step)

    # Saving.

    def save(
        self,
        step: int,
        arrays: Mapping[str, jax.Array],
        iterator: Any = None,
        extra: Mapping[str, Any] | None = None,
        metrics: Mapping[str, float] | None = None,
        *,
        durable: bool = True,
    ) -> None:
        """Begin to save, and return as soon as the arrays may be donated and the iterator moved.

        Args:
          step: Optimizer steps done.
          arrays: Arrays by name, of any sharding.
          iterator: The data iterator.
          extra: JSON-able facts, copied.
          metrics: Values by `evaluation/metric`, for `keep_best`.
          durable: Whether it goes into the run's directory; else into the fast tier.

        Raises:
          CheckpointError: The save before this failed, or this one cannot begin.
        """
        self._wait_for_start()
        # Without a fast tier (copies on the device alone) one store has all saves.
        store: Store | HostCheckpoints = self._durable
        if not durable and self._fast is not None:
            store = self._fast
        for other in self._stores():
            if other is not store:
                other.wait()  # one disk at a time, and one set of copies in memory
        # That of the machines copies by itself: a part of it belongs into the thread that trains.
        if not self._copying.in_background or not isinstance(store, Store):
            store.save(step, arrays, iterator, extra, metrics)
            return
        # On the device the copies are ordered before the next step, which donates the originals.
        # The thread then waits for them and hands them to Orbax, while the loop continues.
        # `extra` and `metrics` go to the thread uncopied: callers make new ones for each save.
        copies = self._copying(arrays)
        # The state is taken now, in the thread that trains: see `_Position`.
        position = None if iterator is None else _Position(iterator)

        def begin() -> None:
            store.save(step, copies, position, extra, metrics)

        self._saving = self._thread.submit(begin)

    def _wait_for_start(self) -> None:
        """Wait until the thread has handed the last save to its store."""
        saving, self._saving = self._saving, None
        if saving is not None:
            saving.result()

    def committed(self) -> list[int]:
        """Return the steps that are durable since the last call, without waiting; see `Store`.

        Those of the fast tier are left out. They are lost with the machine, and a record that said
        that they are saved would have the next start look for them in vain.

        Returns:
          Steps, in order.
        """
        if self._saving is not None:
            if not self._saving.done():
                return []
            self._wait_for_start()
        if self._fast is not None:
            self._fast.committed()  # raises what went wrong
        return self._durable.committed()

    def wait(self) -> None:
        """Wait until everything is committed; see `Store.wait`."""
        self._wait_for_start()
        self._each(lambda store: store.wait())

    def close(self) -> None:
        """Wait, and end the threads; see `Store.close`."""
        try:
            self._wait_for_start()
        finally:
            self._thread.shutdown()
            self._each(lambda store: store.close())

    def discard_fast(self) -> None:
        """Delete the fast tier: the run is over. A checkpoint that nothing durable holds stays."""
        if self._fast is None:
            return
        self._fast.wait()
        if not isinstance(self._fast, Store):
            from luthier.parallel import distributed

            self._fast.discard(distributed.decided(lambda: self.latest() or 0))
        else:
            # A run that ends between two durable saves may have its newest state in the fast tier
            # alone, and deleting that would lose steps.
            if process_index() == 0 and (self._fast.latest() or 0) <= (self.latest() or 0):
                discard(self._fast.directory)

    def _each(self, call: Callable[[Store | HostCheckpoints], None]) -> None:
        """Call for every store, although one fails."""
        failure: Exception | None = None
        for store in self._stores():
            try:
                call(store)
            except Exception as error:
                failure = failure or error
        if failure is not None:
            raise failure

    # Restoring.

    def restore(
        self, step: int, abstract: Mapping[str, jax.ShapeDtypeStruct], iterator: Any = None
    ) -> dict[str, jax.Array]:
        """Read arrays from the nearest tier that has the step; see `Store.restore`.

        Args:
          step: Step of the checkpoint.
          abstract: Shape, dtype and sharding by name.
          iterator: The data iterator, whose position is restored in place.

        Returns:
          Arrays by name.
        """
        return self._store_of(step).restore(step, abstract, iterator)

    # Both tiers, because `newest_whole` looks at both: a later step that stayed in one of them
    # would be what the next start resumes from.
    def cut_back(self, step: int | None) -> None:
        """Move every later checkpoint of both tiers into the trash; see `Store.cut_back`.

        Args:
          step: The last step that stays; None for none.
        """
        self._wait_for_start()
        for store in self._stores():
            store.cut_back(step)


Saves = Store | Tiers
"""The checkpoints of a run: a store, or two tiers."""
