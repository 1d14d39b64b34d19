"""Ray actors of a launch: a supervisor reserves nodes and starts processes, another runs on each.

The supervisor (`Keeper`) is detached, so that it outlives the process that submitted it, and
is restarted where it died: its constructor begins the group again, which resumes from checkpoints.
The processes are ordinary ones, started by an actor (`Member`) on their node, and not the actors
themselves: they get signals, exit codes and logs as under any other engine.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import os
import pathlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from luthier.errors import EXIT_DONE, EXIT_REQUEUE
from luthier.launch.engine import ProcessGroup, Standing
from luthier.storage import write_atomically

# The request of a group to a Ray cluster.


@dataclasses.dataclass(frozen=True)
class RayRequest:
    """The resources that a process group requests of a Ray cluster.

    Args:
      hosts: Nodes.
      processes_per_host: Processes on each of them.
      cpus: CPUs of each process.
      gpus: GPUs of each process.
      resources: Further resources of each process, by the names that Ray has for them.
      topology: Of a slice of TPUs, as `4x4`; empty for none.
      accelerator: The generation of its TPUs, as `v5e`.
      chips_per_host: TPU chips of each host of the slice.
    """

    hosts: int = 1
    processes_per_host: int = 1
    cpus: float = 1.0
    gpus: float = 0.0
    resources: Mapping[str, float] = dataclasses.field(default_factory=dict)
    topology: str = ""
    accelerator: str = ""
    chips_per_host: int = 4

    @property
    def num_hosts(self) -> int:
        """Nodes of a process group: those of its slice, where it has one."""
        return num_chips(self.topology) // self.chips_per_host if self.topology else self.hosts

    @property
    def num_processes(self) -> int:
        """Processes of a group."""
        return self.num_hosts * self.processes_per_host

    @property
    def process_options(self) -> dict[str, Any]:
        """The resources of each process, as arguments of Ray's `options`."""
        resources = dict(self.resources)
        if self.topology:
            resources["TPU"] = self.chips_per_host / self.processes_per_host
        return {"num_cpus": self.cpus, "num_gpus": self.gpus, "resources": resources}

    @property
    def bundle(self) -> dict[str, float]:
        """The resources on each node, as a bundle of a placement group."""
        each = {"CPU": self.cpus, "GPU": self.gpus, **self.process_options["resources"]}
        return {name: n * self.processes_per_host for name, n in each.items() if n}


def num_chips(topology: str) -> int:
    """Return how many chips a topology has, as 16 for `4x4`.

    Args:
      topology: Its axes.

    Raises:
      ValueError: It cannot be read.
    """
    return math.prod(int(size) for size in topology.split("x"))


# The place of a group: a placement group of Ray, or a slice of TPUs.

WAIT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class ReservedNodes:
    """The resources that Ray has reserved for a process group.

    Args:
      group: The placement group, with a bundle for each node.
      release: Gives it back.
    """

    group: Any
    release: Callable[[], None]


def reserve(request: RayRequest, name: str, give_up: Callable[[], bool]) -> ReservedNodes | None:
    """Wait until all resources of a process group are free at once, and reserve them.

    Args:
      request: What it wants.
      name: What Ray shows it as.
      give_up: Whether nobody wants it any more.

    Returns:
      None where it was given up.
    """
    reserved = _slice(request, name, give_up) if request.topology else _group(request, name)
    # The placement group stays pending until all of its bundles are free; it is given up only where
    # nobody wants it any more.
    while reserved is not None and not reserved.group.wait(WAIT_SECONDS):
        if give_up():
            reserved.release()
            return None
    return reserved


def _group(request: RayRequest, name: str) -> ReservedNodes:
    import ray

    # One bundle per node: processes of a group expect as many hosts as they asked for. Resources
    # are reserved all at once, because groups that each hold a part would wait for each other for
    # ever.
    strategy = "STRICT_SPREAD" if request.hosts > 1 else "PACK"
    bundles = [request.bundle] * request.hosts
    group = ray.util.placement_group(bundles, strategy=strategy, name=name)
    return ReservedNodes(group, lambda: ray.util.remove_placement_group(group))


def _slice(request: RayRequest, name: str, give_up: Callable[[], bool]) -> ReservedNodes | None:
    from ray.util.tpu import slice_placement_group

    while not give_up():
        try:
            reserved = slice_placement_group(
                topology=request.topology,
                accelerator_version=request.accelerator,
                resources_per_bundle=request.bundle,
                chips_per_vm=request.chips_per_host,
                strategy="STRICT_SPREAD" if request.num_hosts > 1 else "PACK",
                name=name,
                head_reservation_timeout_s=WAIT_SECONDS,
            )
        # The timeout is short so that a cancellation is noticed; it is tried again as long as the
        # group is wanted.
        except TimeoutError:
            continue
        return ReservedNodes(reserved.placement_group, reserved.shutdown)
    return None


# A process of a group, as an actor of Ray runs it on the node where its devices are.

# 1 is PR_SET_PDEATHSIG, and 9 is SIGKILL. Set by the process itself: a hook between fork and exec
# is no good in an actor, which has threads.
_TIE = """\
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, 9)
os.execv(sys.executable, [sys.executable, *sys.argv[1:]])
"""


class Member:
    """An actor that runs one process, which ends when the actor does."""

    def __init__(self) -> None:
        self._running: subprocess.Popen[bytes] | None = None

    def whereabouts(self) -> tuple[str, int, int]:
        """Return an address of this node, a port that is free there, and its place in a slice."""
        import ray

        with socket.socket() as found:
            found.bind(("", 0))
            port = found.getsockname()[1]
        # libtpu numbers the hosts of a slice itself, and JAX's process ids must be in that order.
        worker = int(os.environ.get("TPU_WORKER_ID", "0"))
        return ray.util.get_node_ip_address(), port, worker

    def run(
        self,
        command: Sequence[str],
        working_directory: str,
        environment: Mapping[str, str],
        log: str,
    ) -> int:
        """Run the process to its end; return its exit code, below zero for a signal.

        Args:
          command: The words after `python`.
          working_directory: Where it runs.
          environment: Variables that it gets beside those of this node.
          log: The file that what it prints is appended to.
        """
        # Into a file on the disk that all nodes share, and not into Ray's own logs, which stay on
        # their node.
        pathlib.Path(log).parent.mkdir(parents=True, exist_ok=True)
        with open(log, "ab") as file:
            self._running = subprocess.Popen(
                [*_ends_with_parent(), *command],
                cwd=working_directory,
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
            )
        # Blocks this call of the actor for the whole run; `end` arrives in another thread
        # (`max_concurrency`).
        return self._running.wait()

    def end(self) -> None:
        """Send SIGTERM to the process, which saves and leaves."""
        if self._running is not None:
            with contextlib.suppress(ProcessLookupError):
                self._running.send_signal(signal.SIGTERM)


def _ends_with_parent() -> list[str]:
    """Return the command of a Python that Linux kills when the actor has died."""
    tie = ["-I", "-S", "-c", _TIE] if sys.platform == "linux" else []
    return [sys.executable, *tie]


# Keeps one group alive: an actor of Ray that reserves its nodes and starts its processes.
#
# It lives on the cluster, whatever becomes of the process that submitted it. When its own node is
# lost, Ray starts it on another one, and it starts the group again, which resumes from what it
# saved.

LOST = -9
"""The exit code of a process whose node is lost."""

END_SECONDS = 30.0
"""The time for the other processes of a group to end when one has failed."""

SAVE_SECONDS = 120.0
"""The time for the processes of a cancelled group to save."""

_POLL_SECONDS = 1.0
_FIND_SECONDS = 120.0


class Keeper:
    """Runs a process group to its end, and restarts it where it died.

    Args:
      group: The fields of the `ProcessGroup`.
      request: The fields of what it wants, a `RayRequest`.
    """

    def __init__(self, group: Mapping[str, Any], request: Mapping[str, Any]):
        self._group = ProcessGroup(**group)
        self._request = RayRequest(**request)
        self._standing = Standing("waiting", "waits for resources")
        self._starts = 0
        self._cancelled = threading.Event()
        # A thread of its own, so that calls (`standing`, `cancel`) are answered while the group
        # runs.
        threading.Thread(target=self._keep, name="luthier-keeper", daemon=True).start()

    def standing(self) -> dict[str, Any]:
        """Return the fields of the group's status."""
        return dataclasses.asdict(self._standing)

    def cancel(self) -> None:
        """Have the processes save and leave."""
        self._cancelled.set()

    def _keep(self) -> None:
        code = keep(self._group, self._begin, self._cancelled.is_set)
        word = "cancelled" if self._cancelled.is_set() else ""
        # In a file, because the actor is gone right after, and whoever asks then finds only this.
        write_atomically(ended(self._group), f"{code} {word}")
        _leave()

    def _begin(self) -> list[int]:
        """Start the group once; return the exit codes."""
        restarts = self._starts
        self._starts += 1
        name = f"luthier {self._group.name}"
        self._standing = Standing("waiting", "waits for resources", restarts=restarts)
        places = reserve(self._request, name, self._cancelled.is_set)
        if places is None:
            # Cancelled while it waited for resources: nothing has run, and nothing failed.
            return [EXIT_REQUEUE]
        try:
            return self._run(places, restarts)
        finally:
            places.release()

    def _run(self, places: ReservedNodes, restarts: int) -> list[int]:
        import ray

        members = _members(self._request, places)
        try:
            # Process 0 of the group must be known, with a free port on its node, before any process
            # is started: the others get its address in their environment.
            found = ray.get([m.whereabouts.remote() for m in members], timeout=_FIND_SECONDS)
            # JAX counts the hosts of a slice as the TPUs do.
            order = sorted(range(len(members)), key=lambda i: (found[i][2], i))
            members = [members[i] for i in order]
            address, port, _ = found[order[0]]
            hosts = tuple(dict.fromkeys(found[i][0] for i in order))
            self._standing = Standing("running", "", hosts, restarts)
            codes = {
                # One call for each process, which lasts as long as the process: its result is the
                # exit code, and the loss of its node is an error of the call.
                member.run.remote(
                    self._group.command,
                    self._group.working_directory,
                    variables(self._group, rank, len(members), f"{address}:{port}"),
                    str(self._group.log_path(rank)),
                ): rank
                for rank, member in enumerate(members)
            }
            return self._wait(members, codes)
        # A node was lost, or did not answer in time, before all processes were started. (Later
        # losses are of one process, see `_code`.) One code stands for the group: `worst` makes one
        # of them all in any case.
        except ray.exceptions.RayError:
            return [LOST]
        finally:
            for member in members:
                # Actors hold the reserved resources; their processes are killed with them
                # (`_ends_with_parent`).
                ray.kill(member)

    def _wait(self, members: Sequence[Any], running: dict[Any, int]) -> list[int]:
        """Return the exit codes; when one process has failed, the others must end soon."""
        import ray

        # A process that has not ended by the deadline is lost, and killed with its actor (`_TIE`).
        codes = [LOST] * len(members)
        deadline = float("inf")
        is_informed = False
        while running and time.monotonic() < deadline:
            # With a time limit, so that a cancellation is seen.
            ready, _ = ray.wait(list(running), timeout=_POLL_SECONDS)
            for reference in ready:
                rank = running.pop(reference)
                codes[rank] = _code(reference)
                if codes[rank] != EXIT_DONE:
                    # The others may hang in a collective with the one that is gone: they get this
                    # long to notice by themselves.
                    deadline = min(deadline, time.monotonic() + END_SECONDS)
            if self._cancelled.is_set() and not is_informed:
                is_informed = True
                deadline = time.monotonic() + SAVE_SECONDS
                for member in members:
                    member.end.remote()
        return codes


def keep(group: ProcessGroup, begin: Any, is_cancelled: Any) -> int:
    """Start a process group until it is over; return the exit code of the last start.

    Args:
      group: The group.
      begin: Starts it once, and returns the exit codes of its processes.
      is_cancelled: Whether it was taken back.
    """
    failures = 0
    while True:
        code = worst(begin())
        if code == EXIT_DONE or is_cancelled():
            return code
        # Preemptions are not counted: a group on spot machines may be preempted any number of
        # times.
        if code != EXIT_REQUEUE:
            failures += 1
            # `closed` is written by the driver of a study when it ends: workers that fail then are
            # not wanted any more.
            if pathlib.Path(group.directory, "closed").exists() or failures > group.restarts:
                return code


def worst(codes: Sequence[int]) -> int:
    """Return the exit code of a process group, whose processes ended with these.

    One that was asked to save and leave decides for all: the others may have failed because of it.

    Args:
      codes: Those of all processes.
    """
    if EXIT_REQUEUE in codes:
        return EXIT_REQUEUE
    return next((code for code in codes if code != EXIT_DONE), EXIT_DONE)


def variables(group: ProcessGroup, rank: int, count: int, coordinator: str) -> dict[str, str]:
    """Return the environment of a process.

    Args:
      group: What it belongs to.
      rank: Which one it is, from 0.
      count: Processes of the group.
      coordinator: Where the first of them is, and a port that is free there.
    """
    if count == 1:
        # A single process needs no coordinator.
        return dict(group.environment)
    return {
        **group.environment,
        "JAX_COORDINATOR_ADDRESS": coordinator,
        "JAX_NUM_PROCESSES": str(count),
        "JAX_PROCESS_ID": str(rank),
    }


def ended(group: ProcessGroup) -> pathlib.Path:
    """Return the file with the exit code of a process group, once it has ended."""
    return pathlib.Path(group.directory, f"{group.name}.exit")


def _members(request: RayRequest, places: ReservedNodes) -> list[Any]:
    import ray
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

    return [
        ray.remote(Member)
        .options(
            **request.process_options,
            # `run` blocks for the whole run; `end` must get through meanwhile.
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
    """End this actor, which nothing else would end."""
    import ray

    # A detached actor lives until somebody kills it. `ray.kill` ends it for good, where a process
    # that just exits would be restarted (`max_restarts=-1`).
    me = ray.get_runtime_context().current_actor
    ray.kill(me)
