"""Pages that are one file: no server, no network, nothing to install; what they show stays data."""

from luthier.view.page.shell import document

__all__ = ["document"]
