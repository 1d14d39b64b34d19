"""Attention: projections, what attends, masks and biases."""

from luthier.layers.attention.biases import (
    Alibi,
    Bias,
    Buckets,
    PastBuckets,
    RelativeBias,
    SignedBuckets,
)
from luthier.layers.attention.context_parallel import (
    AllToAllAttention,
    Contiguous,
    Order,
    RingAttention,
    Zigzag,
)
from luthier.layers.attention.cores import Core, EinsumAttention, FusedAttention, soft_cap
from luthier.layers.attention.cross import CrossAttention
from luthier.layers.attention.cudnn import CudnnAttention
from luthier.layers.attention.masks import Causal, Mask, SameDocument, Window
from luthier.layers.attention.multi_head import Attention, KeyValues
from luthier.layers.attention.own_bias import OwnBias
from luthier.layers.attention.query_key import HeadNorms, ProjectionNorms, QueryKey, QueryScale
from luthier.layers.attention.rotated_first import RotatedFirstAttention

__all__ = [
    "Alibi",
    "AllToAllAttention",
    "Attention",
    "Bias",
    "Buckets",
    "Causal",
    "Contiguous",
    "Core",
    "CrossAttention",
    "CudnnAttention",
    "EinsumAttention",
    "FusedAttention",
    "HeadNorms",
    "KeyValues",
    "Mask",
    "Order",
    "OwnBias",
    "PastBuckets",
    "ProjectionNorms",
    "QueryKey",
    "QueryScale",
    "RelativeBias",
    "RingAttention",
    "RotatedFirstAttention",
    "SameDocument",
    "SignedBuckets",
    "Window",
    "Zigzag",
    "soft_cap",
]
