"""What the first word of a command line stands for: an experiment, or a run that was recorded."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def load_reference(reference: str, packages: Sequence[str] = ()) -> Any:
    """Return the graph that a reference names.

    Args:
      reference: `configs.lm.quickstart`, `package.module:function(a=1)`, or a folder of a run.
      packages: The user's packages that a recorded graph may name.

    Returns:
      The graph.

    Raises:
      BadInput: There is nothing of that name, or it cannot be read.
    """
    from luthier import graph as graphs

    recorded = Path(reference) / "config.json"
    if recorded.is_file():
        return graphs.from_json(recorded.read_text(encoding="utf-8"), packages)
    return graphs.resolve(reference)
