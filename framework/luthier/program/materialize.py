"""From a program to the arrays of its state."""

from __future__ import annotations

from typing import Any

from luthier.program.program import Leaves, Program, Values
from luthier.program.restoring import complete, init_with


def materialize(
    program: Program,
    values: Values,
    *,
    store: Any = None,
    step: int | None = None,
    data: Any = None,
    restoration: Any = None,
) -> Leaves:
    """Return the state's arrays, each on the devices where it belongs.

    A restored state is read straight into its shards; nothing is initialized first.

    Args:
      program: What to make the state of.
      values: The hoisted scalars.
      store: A `luthier.checkpoint.Store` to restore from; None initializes.
      step: Which checkpoint of the store.
      data: The data iterator, whose position is restored in place.
      restoration: What first parameters are read from, where the state is not restored; None
        initializes all of them.

    Raises:
      CheckpointError: The checkpoint is damaged, or does not hold this state.
    """
    if store is None and restoration is not None:
        arrays = complete(program, values, restoration.read(), restoration.partial)
        return init_with(program, values, arrays)
    if store is None:
        return program.init(values)
    arrays = store.restore(step, program.abstract_state, data)
    return tuple(arrays[name] for name in program.names)
