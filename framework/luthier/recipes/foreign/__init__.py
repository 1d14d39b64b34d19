"""Conversion between config.json files of pretrained models and graphs."""

from luthier.recipes.foreign.comparison import compare
from luthier.recipes.foreign.conversion import config_of, model_of
from luthier.recipes.foreign.essence import differences, essence
from luthier.recipes.foreign.pretrained import Pretrained, load, mask_token_of, tokenizer_of
from luthier.recipes.foreign.settings import Settings, text_settings

__all__ = [
    "Pretrained",
    "Settings",
    "compare",
    "config_of",
    "differences",
    "essence",
    "load",
    "mask_token_of",
    "model_of",
    "text_settings",
    "tokenizer_of",
]
