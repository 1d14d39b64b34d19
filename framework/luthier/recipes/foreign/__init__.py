"""Conversion between config.json files of pretrained models and graphs."""

from luthier.recipes.foreign.comparison import compare
from luthier.recipes.foreign.conversion import config_of, model_of
from luthier.recipes.foreign.essence import differences, essence
from luthier.recipes.foreign.settings import Settings

__all__ = ["Settings", "compare", "config_of", "differences", "essence", "model_of"]
