"""Pages in one HTML file: no server, no network, nothing to install."""

from luthier.view.page.shell import document

__all__ = ["document"]
