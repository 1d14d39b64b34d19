"""How a process joins the others of its run."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import jax

from luthier.errors import BadInput, Problem
from luthier.parallel.distributed.handshake import JOIN_SECONDS, Attendance, call_roll

HEARTBEAT_SECONDS = 15
"""After this long without a heartbeat a process counts as dead, and JAX ends all the others."""

CONNECT_SECONDS = 60
"""How long JAX may take to join processes that have all come to the roll call."""

PATIENCE = "LUTHIER_JOIN_SECONDS"

_config: Any = jax.config
_SECONDS = re.compile(r"\d+(\.\d+)?")
_ONE_TASK = re.compile(r"1(\(x\d+\))?")


@dataclasses.dataclass(frozen=True)
class Membership:
    """Which process of a run this is. What is None is found in the environment of the cluster.

    Args:
      coordinator_address: Host and port of process 0, as `10.0.0.1:8476`.
      num_processes: How many processes the run has.
      process_id: Which one this is, from 0.
      local_device_ids: The devices of this machine that the process uses; None means all.
      join_seconds: How long the other processes are waited for.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: Sequence[int] | None = None
    join_seconds: float = JOIN_SECONDS

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Membership:
        """Return what `JAX_COORDINATOR_ADDRESS`, `_NUM_PROCESSES` and `_PROCESS_ID` say.

        `LUTHIER_JOIN_SECONDS` says how long the other processes are waited for.

        Args:
          environment: Such as `os.environ`.

        Raises:
          BadInput: A number cannot be read.
        """
        numbers: dict[str, int | None] = {}
        for name in ("num_processes", "process_id"):
            variable = f"JAX_{name.upper()}"
            text = environment.get(variable)
            if text is not None and not text.isdecimal():
                raise BadInput(Problem(f"{variable}={text} is not a whole number"))
            numbers[name] = None if text is None else int(text)
        patience = environment.get(PATIENCE, str(JOIN_SECONDS))
        if not _SECONDS.fullmatch(patience):
            raise BadInput(Problem(f"{PATIENCE}={patience} is not a number of seconds"))
        address = environment.get("JAX_COORDINATOR_ADDRESS")
        who = numbers["num_processes"], numbers["process_id"]
        return cls(address, *who, join_seconds=float(patience))


def join(membership: Membership, facts: Mapping[str, str]) -> None:
    """Join the other processes of the run, before JAX starts its backends.

    What is not given is detected: SLURM, Open MPI, Kubernetes and Cloud TPU tell it.

    Args:
      membership: Which process this is.
      facts: What must be the same in all processes, by what it is called.

    Raises:
      BadInput: It cannot be told which process this is, the others cannot be reached, or differ.
    """
    told: list[str] = []
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            found = located(membership)
            told += [str(warning.message) for warning in caught]
        index, count = found.process_id, found.num_processes
        if found.coordinator_address and index is not None and count is not None and count > 1:
            mine = Attendance(index, count, facts)
            call_roll(found.coordinator_address, mine, found.join_seconds)
        given = {name: value for name, value in vars(found).items() if value is not None}
        del given["join_seconds"]
        jax.distributed.initialize(
            **given,
            cluster_detection_method="deactivate",
            initialization_timeout=CONNECT_SECONDS,
            heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
        )
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise _refusal(membership, error, told) from error
    if _has_machine_to_itself(membership):
        # JAX gives a task of SLURM one GPU, whatever its machine has.
        for kind in ("cuda", "rocm"):
            with contextlib.suppress(AttributeError):
                _config.update(f"jax_{kind}_visible_devices", "all")


def located(membership: Membership) -> Membership:
    """Return a membership with what the environment of a cluster tells of the rest.

    Args:
      membership: What is known.
    """
    if membership.num_processes is not None and membership.local_device_ids is None:
        return membership
    _choose_port()
    # JAX tells what it detects to nobody but itself.
    from jax._src.clusters import ClusterEnv

    address, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
        membership.coordinator_address or os.environ.get("JAX_COORDINATOR_ADDRESS"),
        membership.num_processes,
        membership.process_id,
        membership.local_device_ids or _local_devices(),
        None,
        CONNECT_SECONDS,
    )
    return Membership(address, count, index, devices, membership.join_seconds)


def _local_devices() -> list[int] | None:
    named = os.environ.get("JAX_LOCAL_DEVICE_IDS")
    return [int(number) for number in named.split(",")] if named else None


def _choose_port() -> None:
    """Keep two runs in one allocation of SLURM apart: JAX takes the same port for both."""
    job, step = os.environ.get("SLURM_JOB_ID"), os.environ.get("SLURM_STEP_ID")
    if job and step and job.isdecimal() and step.isdecimal():
        port = 61440 + (int(job) + 97 * int(step)) % 4096
        os.environ.setdefault("JAX_COORDINATOR_PORT", str(port))


def _has_machine_to_itself(membership: Membership) -> bool:
    tasks = os.environ.get("SLURM_STEP_TASKS_PER_NODE", "")
    chosen = membership.local_device_ids or os.environ.get("JAX_LOCAL_DEVICE_IDS")
    return membership.num_processes is None and not chosen and bool(_ONE_TASK.fullmatch(tasks))


def _refusal(membership: Membership, error: Exception, told: Sequence[str]) -> BadInput:
    reason = " ".join(str(error).split())
    if isinstance(error, ValueError) and "defined" in reason:
        what = "no cluster is found here that tells which process this is"
        if told:
            what += f" ({' '.join(told[0].split())})"
        remedy = "give --coordinator HOST:PORT --num-processes N --process-id I"
        return BadInput(Problem(what, "", "--distributed", remedy))
    if membership.coordinator_address is None:
        return BadInput(Problem(f"cannot join the other processes: {reason}", "", "--distributed"))
    what = f"cannot join the other processes at {membership.coordinator_address}: {reason}"
    remedy = f"start all {membership.num_processes} processes, each with a --process-id of its own"
    return BadInput(Problem(what, "", "--coordinator", remedy))
