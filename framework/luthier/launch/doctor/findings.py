"""What is wrong with hosts, told from what they can do."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from luthier.launch.doctor.examining import Examination

SLOW, SLOW_DISK = 0.75, 0.4
"""Below this share of what the other hosts reach, a host is named; disks differ by the minute."""

CLOCK_SECONDS = 1.0
"""A clock that is further off is named."""

_RATES = {
    "matmul_flops": ("its product of matrices", 1e12, "TFLOP/s", SLOW),
    "memory_bytes": ("its memory", 1e9, "GB/s", SLOW),
    "disk_write_bytes": ("writing to its disk", 1e6, "MB/s", SLOW_DISK),
    "disk_read_bytes": ("reading from its disk", 1e6, "MB/s", SLOW_DISK),
}


def findings(examinations: Sequence[Examination]) -> list[str]:
    """Return what is wrong, a line for each host and thing.

    Args:
      examinations: Those of all hosts.
    """
    lines = []
    for found in examinations:
        who = f"process {found.process} on {found.host}"
        others = [other for other in examinations if other is not found]
        for field, (what, unit, unit_name, share) in _RATES.items():
            own = getattr(found, field)
            usual = statistics.median(getattr(other, field) for other in others) if others else own
            if own < share * usual:
                figures = f"{own / unit:.3g} {unit_name}, the others {usual / unit:.3g}"
                lines.append(f"{who}: {what} is slow: {figures}")
        if not found.sees_directory:
            lines.append(f"{who}: the directory is on a disk of its own, not on that of process 0")
        if abs(found.clock_skew_seconds) > CLOCK_SECONDS + found.clock_uncertainty_seconds:
            way = "ahead of" if found.clock_skew_seconds > 0 else "behind"
            seconds = abs(found.clock_skew_seconds)
            lines.append(f"{who}: its clock is {seconds:.1f} s {way} that of process 0")
    return lines
