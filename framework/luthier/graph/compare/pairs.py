"""Which parts of two documents belong together, as a tree."""

from __future__ import annotations

import dataclasses
from typing import Any

from luthier.graph.compare.documents.things import Thing


@dataclasses.dataclass
class Pair:
    """A place of two documents.

    Args:
      a: What is there in the first; None where nothing is.
      b: What is there in the second; None where nothing is.
      path_a: Where it is in the first.
      path_b: Where it is in the second.
      part: The last part of its path.
      below: What is inside, where it was looked at: of what is met again, nothing.
      changes: Which of the changes are told here.
      default_a: What an argument that is not set has for a default in the first, where known.
      default_b: The same of the second.
    """

    a: Thing | None
    b: Thing | None
    path_a: str
    path_b: str
    part: Any = None
    below: list[Pair] = dataclasses.field(default_factory=list)
    changes: list[Any] = dataclasses.field(default_factory=list)
    default_a: Thing | None = None
    default_b: Thing | None = None
