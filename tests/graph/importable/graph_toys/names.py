"""Names of test cases."""

from __future__ import annotations

import re


def case_name(value: object) -> str:
    """Return the same text in every process: functions print their address."""
    return re.sub(r" at 0x[0-9a-f]+", "", str(value))
