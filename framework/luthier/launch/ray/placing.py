"""Where the processes of a gang go: a placement group of Ray, or a slice of TPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from luthier.launch.ray.request import Request

WAIT_SECONDS = 5.0


@dataclasses.dataclass(frozen=True)
class Places:
    """What Ray has reserved for a gang.

    Args:
      group: The placement group, with a bundle for each node.
      release: Gives it back.
    """

    group: Any
    release: Callable[[], None]


def reserve(request: Request, name: str, give_up: Callable[[], bool]) -> Places | None:
    """Wait until all of what a gang wants is free at once, and reserve it.

    Args:
      request: What it wants.
      name: What Ray shows it as.
      give_up: Whether nobody wants it any more.

    Returns:
      None where it was given up.
    """
    reserved = _slice(request, name, give_up) if request.topology else _group(request, name)
    while reserved is not None and not reserved.group.wait(WAIT_SECONDS):
        if give_up():
            reserved.release()
            return None
    return reserved


def _group(request: Request, name: str) -> Places:
    import ray

    strategy = "STRICT_SPREAD" if request.hosts > 1 else "PACK"
    bundles = [request.bundle] * request.hosts
    group = ray.util.placement_group(bundles, strategy=strategy, name=name)
    return Places(group, lambda: ray.util.remove_placement_group(group))


def _slice(request: Request, name: str, give_up: Callable[[], bool]) -> Places | None:
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
        except TimeoutError:
            continue
        return Places(reserved.placement_group, reserved.shutdown)
    return None
