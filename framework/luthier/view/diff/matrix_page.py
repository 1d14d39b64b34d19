"""The matrix of what varies among many trials as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from luthier.view.page import document


def render(matrix: Mapping[str, Any]) -> str:
    """Return the page of a matrix as the text of one HTML file.

    Args:
      matrix: `title`; `columns`, the trials, each with `title`, `state` and `link`; `objectives`,
        each with `name`, `values` and `direction`; `rows`, the paths that vary, each with `path`,
        `texts` and `values`, which are None where a text is no number.
    """
    return document(
        matrix["title"],
        dict(matrix),
        ("matrix.css", "matrix.js", "matrix_page.js"),
        "This page needs JavaScript. The command `luthier diff` prints the same.",
    )
