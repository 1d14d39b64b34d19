"""Assemblies of layers, and what is done with them."""

from luthier.models.decoder import Cache, Decoder
from luthier.models.generate import generate
from luthier.models.language_model import LanguageModel
from luthier.models.sampling import restrict, sample

__all__ = ["Cache", "Decoder", "LanguageModel", "generate", "restrict", "sample"]
