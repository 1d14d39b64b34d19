"""Models, as assemblies of layers, and generation of text with them."""

from luthier.models.copies import Held, WithCopy, hold
from luthier.models.decoder import Cache, Decoder
from luthier.models.encoder import Encoder
from luthier.models.encoder_decoder import EncoderDecoder, SourceLayers, TargetCache, TargetLayers
from luthier.models.generate import generate, part_without_cache
from luthier.models.language_model import LanguageModel
from luthier.models.pretrained import load
from luthier.models.resnet import ResNet
from luthier.models.sampling import restrict, sample
from luthier.models.transduce import Conditional, transduce
from luthier.models.vision_transformer import VisionTransformer

__all__ = [
    "Cache",
    "Conditional",
    "Decoder",
    "Encoder",
    "EncoderDecoder",
    "Held",
    "LanguageModel",
    "ResNet",
    "SourceLayers",
    "TargetCache",
    "TargetLayers",
    "VisionTransformer",
    "WithCopy",
    "generate",
    "hold",
    "load",
    "part_without_cache",
    "restrict",
    "sample",
    "transduce",
]
