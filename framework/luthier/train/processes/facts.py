"""What must be the same in all processes before the first step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax

from luthier import graph as graphs
from luthier.parallel import distributed
from luthier.records import read_facts

_DIGITS = 12


def check_same(graph: Any, packages: Sequence[str] = ()) -> None:
    """Compare the experiment, the versions and the source with all other processes.

    No backend is started for it, so that processes of other versions never meet on devices.

    Args:
      graph: The experiment graph.
      packages: The user's modules that it may name.

    Raises:
      BadInput: Processes differ; one line for each that differs from the first.
    """
    if not distributed.is_several():
        return
    recorded, program = (
        graphs.fingerprint(graph, kind=kind)[:_DIGITS] for kind in ("record", "program")
    )
    facts = {"the experiment": f"{recorded} (program {program})"}
    distributed.agree(facts | read_facts(packages))


def check_devices() -> None:
    """Compare the number and kind of the devices of this process with all others; starts them.

    Raises:
      BadInput: Processes differ.
    """
    if distributed.is_several():
        local = jax.local_devices()
        distributed.agree({"its devices": f"{len(local)} x {local[0].device_kind}"})
