"""From the config.json of others to a model's graph, and back where it can be said."""

from luthier.recipes.foreign.conversion import config_of, model_of

__all__ = ["config_of", "model_of"]
