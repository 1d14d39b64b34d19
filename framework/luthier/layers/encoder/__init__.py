"""Layers of encoders of text and images, and of decoders that attend to them."""

from luthier.layers.encoder.cross_block import (
    CrossCache,
    Encoded,
    PreNormCrossBlock,
    query_and_others,
)
from luthier.layers.encoder.embedding import FactorizedEmbedding, TypedEmbedding
from luthier.layers.encoder.heads import MaskedHead, MeanOfTokens, Pooler, ScaledTiedUnembedding
from luthier.layers.encoder.patches import ClassToken, MeanPool, PatchEmbedding, Pooling
from luthier.layers.encoder.shared import Shared, SharedLayers

__all__ = [
    "ClassToken",
    "CrossCache",
    "Encoded",
    "FactorizedEmbedding",
    "MaskedHead",
    "MeanOfTokens",
    "MeanPool",
    "PatchEmbedding",
    "Pooler",
    "Pooling",
    "PreNormCrossBlock",
    "ScaledTiedUnembedding",
    "Shared",
    "SharedLayers",
    "TypedEmbedding",
    "query_and_others",
]
