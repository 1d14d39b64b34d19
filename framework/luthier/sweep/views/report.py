"""The report of a study: one HTML page that needs nothing else."""

from __future__ import annotations

import html
import pathlib

from luthier.records.files import write_atomically
from luthier.sweep.views.standing import read_standing
from luthier.sweep.views.text import lines_of

NAME = "report.html"


def write(directory: pathlib.Path, path: pathlib.Path | None = None) -> pathlib.Path:
    """Write the report of a study; return where it is.

    Args:
      directory: The study's folder.
      path: Where to; `report.html` in the study's folder where it is None.
    """
    standing = read_standing(directory)
    text = html.escape("\n".join(lines_of(standing, None)))
    path = path or directory / NAME
    write_atomically(
        path, f"<!doctype html><title>{html.escape(standing.name)}</title><pre>{text}</pre>"
    )
    return path
