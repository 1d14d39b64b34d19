"""The plan of an experiment for a slice as one HTML file."""

from __future__ import annotations

from luthier.plan import Report
from luthier.view.page import document

_FILES = ("plan_page.css", "plan_page.js")


def render(report: Report) -> str:
    """Return the page of a plan as the text of one HTML file.

    Args:
      report: The plan.
    """
    return document(
        f"{report.subject.experiment} on {report.subject.slice}",
        report.to_dict(),
        _FILES,
        "This page needs JavaScript. The command `luthier plan` prints the same.",
    )
