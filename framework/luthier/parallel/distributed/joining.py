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

HEARTBEAT_SECONDS = 15
"""After this long without a heartbeat a process counts as dead, and JAX ends all the others."""

JOIN_SECONDS = 300
"""How far apart the processes of a run may start."""

_config: Any = jax.config
_ONE_TASK = re.compile(r"1(\(x\d+\))?")


@dataclasses.dataclass(frozen=True)
class Membership:
    """Which process of a run this is. What is None is found in the environment of the cluster.

    Args:
      coordinator_address: Host and port of process 0, as `10.0.0.1:8476`.
      num_processes: How many processes the run has.
      process_id: Which one this is, from 0.
      local_device_ids: The devices of this machine that the process uses; None means all.
    """

    coordinator_address: str | None = None
    num_processes: int | None = None
    process_id: int | None = None
    local_device_ids: Sequence[int] | None = None

    @classmethod
    def of_environment(cls, environment: Mapping[str, str]) -> Membership:
        """Return what `JAX_COORDINATOR_ADDRESS`, `_NUM_PROCESSES` and `_PROCESS_ID` say.

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
        address = environment.get("JAX_COORDINATOR_ADDRESS")
        return cls(address, numbers["num_processes"], numbers["process_id"])


def join(membership: Membership) -> None:
    """Join the other processes of the run, before JAX starts its backends.

    What is not given is detected: SLURM, Open MPI, Kubernetes and Cloud TPU tell it.

    Args:
      membership: Which process this is.

    Raises:
      BadInput: It cannot be told which process this is, or the others cannot be reached.
    """
    given = {name: value for name, value in vars(membership).items() if value is not None}
    if "num_processes" in given and "local_device_ids" not in given:
        given["cluster_detection_method"] = "deactivate"
    else:
        _choose_port()
    try:
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            jax.distributed.initialize(
                **given,
                initialization_timeout=JOIN_SECONDS,
                heartbeat_timeout_seconds=HEARTBEAT_SECONDS,
            )
    except (ValueError, TypeError, RuntimeError, OSError) as error:
        raise _refusal(membership, error, [str(warning.message) for warning in told]) from error
    if _has_machine_to_itself(membership):
        # JAX gives a task of SLURM one GPU, whatever its machine has.
        for kind in ("cuda", "rocm"):
            with contextlib.suppress(AttributeError):
                _config.update(f"jax_{kind}_visible_devices", "all")


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
