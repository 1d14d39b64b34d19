"""How the compilers of kinds of devices use memory; calibrated against their own counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping


@dataclasses.dataclass(frozen=True)
class Compiler:
    """How a compiler of one kind of devices uses memory.

    Args:
      slack: How many steps a buffer outlives its last reader, because others run beside it.
      ahead: Whether parameters for the next product are gathered while a step runs, a loop, too.
      keeps_copies: Whether parameters in the narrower type that is computed in are kept from
        before the first layer on, laid out as the parameters.
      narrows: Whether products are of bfloat16 unless more is asked: what is computed for them by
        element, and weights that a loop collects for them, is stored so.
      compares: Whether single elements that are put into place are found by comparing positions,
        in whatever reads them.
      delays: Whether products that only a gradient needs wait for the last loop of layers. A TPU's
        compiler does so in some programs, and its reasons do not show in what it is given.
    """

    slack: int = 0
    ahead: bool = False
    keeps_copies: bool = False
    narrows: bool = False
    compares: bool = False
    delays: bool = True


COMPILERS: Mapping[str, Compiler] = {
    "tpu": Compiler(keeps_copies=True, narrows=True, compares=True, delays=False),
    "gpu": Compiler(slack=4, ahead=True),
    "cpu": Compiler(),
}
"""By platform."""
