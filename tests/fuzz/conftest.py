"""Makes the toy components of the tests of luthier.graph importable."""

from __future__ import annotations

import sys
from pathlib import Path

TOYS = str(Path(__file__).resolve().parents[1] / "graph" / "importable")
if TOYS not in sys.path:
    sys.path.insert(0, TOYS)
