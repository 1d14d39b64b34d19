"""Makes the toy components of these tests importable under one name (`graph_toys`)."""

from __future__ import annotations

import pathlib
import sys

IMPORTABLE = str(pathlib.Path(__file__).parent / "importable")
if IMPORTABLE not in sys.path:
    sys.path.insert(0, IMPORTABLE)
