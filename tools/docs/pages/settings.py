"""The page of all settings of all components."""

from __future__ import annotations

from luthier.cli.showing.settings import components, page


def render() -> str:
    """Return the page."""
    return page(components())
