"""Names for what a graph shares: short, telling, and each given once."""

from __future__ import annotations

import builtins
import keyword
import re
from collections.abc import Iterable

from luthier.graph.paths import Part, Path

_RESERVED = frozenset((*keyword.kwlist, *dir(builtins)))


class Names:
    """Gives names that were not given before.

    Args:
      taken: Names that are not to be given, beside keywords and built-in functions.
    """

    def __init__(self, taken: Iterable[str] = ()):
        self._taken = set(taken)
        self._counts: dict[str, int] = {}

    def give(self, path: Path, wished: str = "") -> str:
        """Return a name for what stands at a path.

        Args:
          path: Where it stands; its last names are tried first.
          wished: What people call it.
        """
        words = _words(path) or ["value"]
        candidates = [_identifier(wished)] if wished else []
        candidates += ["_".join(words[-count:]) for count in range(1, min(len(words), 3) + 1)]
        candidates.append(f"{candidates[0]}_config")
        for name in candidates:
            if name not in self._taken and name not in _RESERVED:
                break
        else:
            name = self._counted(candidates[0])
        self._taken.add(name)
        return name

    def _counted(self, stem: str) -> str:
        while True:
            self._counts[stem] = self._counts.get(stem, 1) + 1
            name = f"{stem}_{self._counts[stem]}"
            if name not in self._taken:
                return name


def _words(path: Path) -> list[str]:
    """Return the names on a path, places in lists joined to the names of their lists."""
    words: list[str] = []
    for part in path:
        if isinstance(part, int) and words:
            words[-1] += f"_{part}"
        else:
            words.append(_identifier(part))
    return words


def _identifier(part: Part) -> str:
    text = re.sub(r"\W+", "_", str(part), flags=re.ASCII).strip("_")[:40]
    return text if text.isidentifier() else f"value_{text}".rstrip("_")
