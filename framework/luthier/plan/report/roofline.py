"""Step times that a device allows: the longest of computing, memory and networks."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from luthier.plan.targets import Chip

COMPUTE, MEMORY, LINKS, NETWORK = "compute", "memory", "links", "network"


@dataclasses.dataclass(frozen=True)
class Roofline:
    """The least time that a step can take, and what keeps it from being less.

    Args:
      seconds_by_term: Seconds of each term: `compute`, `memory`, `links` and `network`; only
        those that are known.
      bubble_fraction: Share of the step in which a pipeline's stages wait.
    """

    seconds_by_term: Mapping[str, float]
    bubble_fraction: float = 0.0

    @property
    def binding(self) -> str:
        """The term that takes longest."""
        return max(self.seconds_by_term, key=lambda term: self.seconds_by_term[term])

    @property
    def step_seconds(self) -> float:
        """Seconds of a step in which all terms run at the same time."""
        return max(self.seconds_by_term.values())

    @property
    def serial_seconds(self) -> float:
        """Seconds of a step in which nothing overlaps."""
        return sum(self.seconds_by_term.values())


def roofline(
    chip: Chip,
    num_devices: int,
    flops: Mapping[str, int],
    *,
    precision: str = "default",
    traffic: int | None = None,
    link_bytes: int | None = None,
    network_bytes: int | None = None,
    bubble_fraction: float = 0.0,
) -> Roofline:
    """Return the least time of a step.

    Args:
      chip: What is known of one device.
      num_devices: Devices in all.
      flops: FLOPs of the step as it is run, over all devices, by type of the operands; what a
        pipeline's stages compute in bubbles is among them.
      precision: Of float32 products.
      traffic: Bytes between one device and its memory; None where unknown.
      link_bytes: Bytes that one device sends within its slice.
      network_bytes: Bytes that one device sends to other slices.
      bubble_fraction: Share of a pipeline's ticks in which a stage has nothing to do.
    """
    terms = {COMPUTE: sum(n / chip.peak(t, precision) for t, n in flops.items()) / num_devices}
    bandwidths = {
        MEMORY: (traffic, chip.memory_bandwidth),
        LINKS: (link_bytes, chip.link_bandwidth),
        NETWORK: (network_bytes, chip.network_bandwidth),
    }
    for term, (amount, bandwidth) in bandwidths.items():
        if amount is not None and bandwidth:
            terms[term] = amount / bandwidth
    return Roofline(terms, bubble_fraction)
