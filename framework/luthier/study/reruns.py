"""Reruns a finished trial exactly: bit for bit on a device group of the same shape.

A plain `luthier train` of the trial's graph gives the same numbers to 1e-5: hoisted leaves and
lanes compile to other programs.
"""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Callable, Sequence
from typing import Any

import jax

from luthier.errors import Problem, RunError
from luthier.study.engines.execution import Execution, Plans, TrialTask
from luthier.study.engines.packed_trials import LaneRunner, PackingChoice
from luthier.study.protocol import Faulted, TrialEnded, TrialWork, Work, read_result


class _Nobody:
    """An inbox that nothing comes to."""

    def take(self, fits: Callable[[TrialTask], bool] = lambda task: True) -> TrialTask | None:
        """Return nothing."""
        return None


def rerun(
    trial: str | os.PathLike[str],
    into: str | os.PathLike[str],
    *,
    devices: Sequence[jax.Device] | None = None,
    packages: Sequence[str] = (),
) -> TrialEnded:
    """Run a trial once more in its recorded mode: its hoisted leaves, its lane.

    Args:
      trial: The directory of the trial.
      into: A directory for the new run, which does not exist.
      devices: As many as its slice had; None means all of the default backend.
      packages: The user's modules that its graph may name.

    Returns:
      How it ended this time.

    Raises:
      RunError: The trial has not ended, its slice had another shape, `into` exists, or the machine
        had a fault this time.
    """
    source, target = pathlib.Path(trial), pathlib.Path(into)
    own = list(jax.devices() if devices is None else devices)
    # The result has all that decides the bits, beside the graph: which leaves were arguments, how
    # many lanes there were, which of them this trial had, and the devices.
    before = read_result(source)
    if before is None:
        raise RunError(Problem(f"{source} has no result to be repeated"))
    mode = before.result["mode"]
    shape = {"devices": len(own), "kind": own[0].device_kind}
    # XLA compiles another program for another number or kind of devices, whose reductions may
    # have another order.
    if mode["slice"] != shape:
        had = "{devices} x {kind}".format(**mode["slice"])
        here = "{devices} x {kind}".format(**shape)
        remedy = f"`luthier train {source}` repeats it on any devices, to 1e-5"
        raise RunError(Problem(f"{source} ran on {had}; here are {here}", remedy=remedy))
    try:
        target.mkdir(parents=True)
    except FileExistsError:
        raise RunError(Problem(f"{target} exists", remedy="choose another folder")) from None
    # Only the graph: no checkpoint, so that the run starts from its first step.
    for name in ("config.json", "config.history.json"):
        if (source / name).exists():
            shutil.copy2(source / name, target / name)
    work = TrialWork(before.trial, before.fence, str(target), mode.get("is_to_rung", False))
    ended = _run(before, mode, work, own, packages)
    if isinstance(ended, TrialEnded):
        return ended
    # A fault of the machine is not a result; a study would put the trial back into its queue.
    reason = "it was interrupted" if ended is None else ended.reason
    remedy = "mend that, and repeat it into another folder"
    raise RunError(Problem(f"{source} was not repeated: {reason}", remedy=remedy))


def _run(
    before: TrialEnded,
    mode: dict[str, Any],
    trial: TrialWork,
    devices: Sequence[jax.Device],
    packages: Sequence[str],
) -> TrialEnded | Faulted | None:
    events: list[Any] = []
    execution = Execution(before.slice, Plans(devices), packages, None, events.append)
    work = Work((trial,), tuple(mode["hoisted"]), mode["lanes"])
    # No pruner is asked, so that a trial that was pruned runs to its last step here.
    task = TrialTask(work, trial, execution.watcher(trial, asks=False))
    if mode["lanes"] == "single":
        execution.run(work, trial, task.watcher)
    else:
        num_devices = 1 if mode["lanes"] == "shard" else 0
        # In the same lane of as many, with the others empty: what a lane computes does not depend
        # on its neighbours, but the program has another shape without them.
        choice = PackingChoice(mode["lanes"], mode["num_lanes"], num_devices)
        LaneRunner(execution, _Nobody()).run(task, choice, mode["lane"])
    execution.wait_until_closed()
    return next((event for event in events if isinstance(event, TrialEnded | Faulted)), None)
