"""How the layers of an unchanged model are run: pipelines, and what is kept for backward passes."""

from luthier.recipes.stacks.pipeline import pipeline
from luthier.recipes.stacks.remat import remat

__all__ = ["pipeline", "remat"]
