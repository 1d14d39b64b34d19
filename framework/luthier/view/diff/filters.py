"""Which changes of a comparison are shown."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

Only = Literal["changed", "values", "structure"]

_VALUES = ("changed", "set", "reset", "default")
ONLY: dict[str, Callable[[Mapping[str, Any]], bool]] = {
    "changed": lambda change: change["effective"],
    "values": lambda change: change["kind"] in _VALUES,
    "structure": lambda change: change["kind"] not in _VALUES,
}
"""What may be asked for: what has an effect, values of arguments, and all but those."""

_PARTS = re.compile(r"\*\*\.|\*\*|\[\*\]|\*|[^*\[]+|\[")
_PATTERNS = {
    "**.": r"(?:.*\.)?",
    "**": r".*",
    "*": r"[^.\[\]]*",
    "[*]": r"\[[^\]]*\]",
}


def chosen(
    comparison: Mapping[str, Any], only: Only | None = None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """Return a comparison with some of its changes; the tree of rows stays whole.

    Args:
      comparison: The JSON of a comparison.
      only: The kind of changes to keep; None keeps all.
      ignore: Patterns of paths to leave out with what is below them: `**.name`, `records`,
        `model.layers[*].dropout`; `*` is one part of a path, `**` any number.
    """
    ignored = [pattern_of(pattern) for pattern in ignore]
    kept = [
        index
        for index, change in enumerate(comparison["changes"])
        if (only is None or ONLY[only](change))
        and not any(_matches(pattern, change) for pattern in ignored)
    ]
    if len(kept) == len(comparison["changes"]):
        return dict(comparison)
    changes = [comparison["changes"][index] for index in kept]
    number = {old: new for new, old in enumerate(kept)}
    rows = [{**row, "change": number.get(row["change"])} for row in comparison["rows"]]
    words = dict.fromkeys(change["override"] for change in changes if change["override"])
    paths = {change["path"] for change in changes}
    return {
        **comparison,
        "changes": changes,
        "rows": rows,
        "patch": None,
        "overrides": list(words),
        "unsayable": [one for one in comparison["unsayable"] if one["path"] in paths],
    }


def pattern_of(text: str) -> re.Pattern[str]:
    """Return a pattern of paths as a regular expression, which takes in what is below.

    Args:
      text: The pattern.
    """
    parts = [_PATTERNS.get(part) or re.escape(part) for part in _PARTS.findall(text)]
    return re.compile("".join(parts) + r"(?:[.\[].*)?", re.DOTALL)


def _matches(pattern: re.Pattern[str], change: Mapping[str, Any]) -> bool:
    return any(pattern.fullmatch(path) for path in (change["path"], change["path_before"]) if path)
