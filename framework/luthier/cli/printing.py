"""What commands print for other programs to read."""

from __future__ import annotations

import json
import math
from typing import Any


def print_json(told: Any) -> None:
    """Print facts as JSON, which every reader takes: numbers that are none become words.

    Args:
      told: Plain JSON; `nan`, `inf` and `-inf` stand for what JSON has no number for.
    """
    print(json.dumps(_finite(told), indent=1, allow_nan=False))


def _finite(told: Any) -> Any:
    if isinstance(told, float):
        return told if math.isfinite(told) else str(told)
    if isinstance(told, dict):
        return {key: _finite(value) for key, value in told.items()}
    return [_finite(value) for value in told] if isinstance(told, list | tuple) else told
