"""The diff as one HTML file, to be read, searched and sent to others."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luthier.view.page import document

_FILES = ("diff.css", "diff.js", "effects.js", "diff_page.js")


def render(comparison: Mapping[str, Any], effects: Mapping[str, Any] | None = None) -> str:
    """Return the page of a comparison as the text of one HTML file.

    Args:
      comparison: What `Comparison.as_json` returns.
      effects: What follows from the changes: `quantities`, `charts` and `verdicts`; None for
        nothing.
    """
    first, second = (side["title"] for side in comparison["sides"])
    return document(
        f"{first} → {second}",
        {"comparison": dict(comparison), "effects": effects},
        _FILES,
        "This page needs JavaScript. The command `luthier diff` prints the same.",
    )
