"""Small twins of large experiments, and constants that are set by their names."""

from luthier.recipes.twins.shared import shared
from luthier.recipes.twins.steps import shorten
from luthier.recipes.twins.tiny import tiny

__all__ = ["shared", "shorten", "tiny"]
