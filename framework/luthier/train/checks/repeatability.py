"""Whether steps repeat themselves: taken twice, compiled anew each time, and compared in bits."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from luthier.errors import Problem, ValidationError
from luthier.parallel import Share

_REMEDY = "set precision.repeatability=exact, or use attention without kernels of your own"


def check_repeatable(plan: Any, num_steps: int = 2) -> str:
    """Take the first steps twice, and compare every array of the state bit by bit.

    The second time is as after a restart: initialized again, and compiled again.

    Args:
      plan: What to run (`luthier.plan.Plan`).
      num_steps: Steps to take.

    Returns:
      One line that says that all is the same.

    Raises:
      ValidationError: Arrays differ; the message names them.
    """
    program = plan.program
    batches = _batches(program, num_steps)
    first = _bits(program, batches)
    again = _bits(program, batches)
    differing = [name for name in first if first[name] != again[name]]
    if differing:
        shown = ", ".join(differing[:5])
        more = f" and {len(differing) - 5} more" if len(differing) > 5 else ""
        what = f"{num_steps} steps taken twice differ in {shown}{more}"
        raise ValidationError(Problem(what, remedy=_REMEDY))
    return f"{num_steps} steps taken twice: all {len(first)} arrays are the same to the last bit"


def _batches(program: Any, number: int) -> list[dict[str, Any]]:
    """Return the first batches of the training data, on the devices."""
    experiment = program.experiment
    share = Share.of(program.batch, experiment.data.iterator)
    iterator = experiment.data.iterator(
        global_batch_size=experiment.training.global_batch_size,
        seed=experiment.seed,
        **share.arguments,
    )
    with contextlib.closing(iterator) if hasattr(iterator, "close") else contextlib.nullcontext():
        rows = [next(iterator) for _ in range(number)]
    return [share.global_batch(host, program.batch) for host in rows]


def _bits(program: Any, batches: list[dict[str, Any]]) -> dict[str, list[bytes]]:
    """Return the bytes of every array after the batches, by the shards of this process."""
    values = program.values()
    step, leaves = program.lower_and_compile(program.traced_step), program.init(values)
    for batch in batches:
        leaves, scalars = step(values, leaves, batch)
    arrays = {**program.named(leaves), "the scalars of the step": scalars}
    return {name: _shards(array) for name, array in arrays.items()}


def _shards(array: Any) -> list[bytes]:
    return [np.asarray(shard.data).tobytes() for shard in array.addressable_shards]
