"""Keeps one gang alive: an actor of Ray that reserves its nodes and starts its processes.

It lives on the cluster, whatever becomes of the process that submitted it. When its own node is
lost, Ray starts it on another one, and it begins the gang again, which goes on from what it saved.
"""

from __future__ import annotations

import dataclasses
import pathlib
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import EXIT_DONE, EXIT_REQUEUE
from luthier.launch.engine import Gang, Standing
from luthier.launch.ray.member import Member
from luthier.launch.ray.placing import Places, reserve
from luthier.launch.ray.request import Request
from luthier.records.files import write_atomically

LOST = -9
"""What counts as the exit code of a process whose node is lost."""

END_SECONDS = 30.0
"""How long the other processes of a gang may take to end when one has failed."""

SAVE_SECONDS = 120.0
"""How long the processes of a gang that is taken back may take to save."""

_POLL_SECONDS = 1.0
_FIND_SECONDS = 120.0


class Keeper:
    """Runs a gang to its end, again where it died.

    Args:
      gang: The fields of the `Gang`.
      request: The fields of what it wants, a `Request`.
    """

    def __init__(self, gang: Mapping[str, Any], request: Mapping[str, Any]):
        self._gang = Gang(**gang)
        self._request = Request(**request)
        self._standing = Standing("waiting", "waits for resources")
        self._starts = 0
        self._cancelled = threading.Event()
        threading.Thread(target=self._keep, name="luthier-keeper", daemon=True).start()

    def standing(self) -> dict[str, Any]:
        """Return the fields of how the gang stands."""
        return dataclasses.asdict(self._standing)

    def cancel(self) -> None:
        """Have the processes save and leave."""
        self._cancelled.set()

    def _keep(self) -> None:
        code = keep(self._gang, self._begin, self._cancelled.is_set)
        word = "cancelled" if self._cancelled.is_set() else ""
        write_atomically(ended(self._gang), f"{code} {word}")
        _leave()

    def _begin(self) -> list[int]:
        """Start the gang once; return the exit codes."""
        restarts = self._starts
        self._starts += 1
        name = f"luthier {self._gang.name}"
        self._standing = Standing("waiting", "waits for resources", restarts=restarts)
        places = reserve(self._request, name, self._cancelled.is_set)
        if places is None:
            return [EXIT_REQUEUE]
        try:
            return self._run(places, restarts)
        finally:
            places.release()

    def _run(self, places: Places, restarts: int) -> list[int]:
        import ray

        members = _members(self._request, places)
        try:
            found = ray.get([m.whereabouts.remote() for m in members], timeout=_FIND_SECONDS)
            # JAX counts the hosts of a slice as the TPUs do.
            order = sorted(range(len(members)), key=lambda i: (found[i][2], i))
            members = [members[i] for i in order]
            address, port, _ = found[order[0]]
            hosts = tuple(dict.fromkeys(found[i][0] for i in order))
            self._standing = Standing("running", "", hosts, restarts)
            codes = {
                member.run.remote(
                    self._gang.command,
                    self._gang.working_directory,
                    variables(self._gang, rank, len(members), f"{address}:{port}"),
                    str(self._gang.log_path(rank)),
                ): rank
                for rank, member in enumerate(members)
            }
            return self._wait(members, codes)
        except ray.exceptions.RayError:
            return [LOST]
        finally:
            for member in members:
                ray.kill(member)

    def _wait(self, members: Sequence[Any], running: dict[Any, int]) -> list[int]:
        """Return the exit codes; when one process has failed, the others must end soon."""
        import ray

        codes = [LOST] * len(members)
        deadline = float("inf")
        was_told = False
        while running and time.monotonic() < deadline:
            ready, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
            for reference in ready:
                rank = running.pop(reference)
                codes[rank] = _code(reference)
                if codes[rank] != EXIT_DONE:
                    deadline = min(deadline, time.monotonic() + END_SECONDS)
            if self._cancelled.is_set() and not was_told:
                was_told = True
                deadline = time.monotonic() + SAVE_SECONDS
                for member in members:
                    member.end.remote()
        return codes


def keep(gang: Gang, begin: Any, is_cancelled: Any) -> int:
    """Start a gang until it is over; return the exit code of the last start.

    Args:
      gang: The gang.
      begin: Starts it once, and returns the exit codes of its processes.
      is_cancelled: Whether it was taken back.
    """
    failures = 0
    while True:
        code = worst(begin())
        if code == EXIT_DONE or is_cancelled():
            return code
        if code != EXIT_REQUEUE:
            failures += 1
            if pathlib.Path(gang.directory, "closed").exists() or failures > gang.restarts:
                return code


def worst(codes: Sequence[int]) -> int:
    """Return the exit code of a gang, whose processes ended with these.

    One that was told to save and leave speaks for all: the others may have failed for it.

    Args:
      codes: Those of all processes.
    """
    if EXIT_REQUEUE in codes:
        return EXIT_REQUEUE
    return next((code for code in codes if code != EXIT_DONE), EXIT_DONE)


def variables(gang: Gang, rank: int, count: int, coordinator: str) -> dict[str, str]:
    """Return the environment of a process.

    Args:
      gang: What it belongs to.
      rank: Which one it is, from 0.
      count: Processes of the gang.
      coordinator: Where the first of them is, and a port that is free there.
    """
    if count == 1:
        return dict(gang.environment)
    return {
        **gang.environment,
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(rank),
    }


def ended(gang: Gang) -> pathlib.Path:
    """Return the file that says how a gang ended, once it did."""
    return pathlib.Path(gang.directory, f"{gang.name}.exit")


def _members(request: Request, places: Places) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return [
        ray.remote(Member)
        .options(
            **request.process_options,
            max_concurrency=2,
            scheduling_strategy=PlacementGroupSchedulingStrategy(
                placement_group=places.group,
                placement_group_bundle_index=process // request.processes_per_host,
            ),
        )
        .remote()
        for process in range(request.num_processes)
    ]


def _code(reference: Any) -> int:
    import ray

    try:
        return ray.get(reference)
    except ray.exceptions.RayError:
        return LOST


def _leave() -> None:
    """End this actor, which nobody else would."""
    import ray

    me = ray.get_runtime_context().current_actor
    ray.kill(me)
