"""Attention: projections, what attends, masks and biases."""

from luthier.layers.attention.auto import CHOICE_REASONS, AutoAttention, CoreChoice
from luthier.layers.attention.biases import (
    Alibi,
    Bias,
    Buckets,
    PastBuckets,
    RelativeBias,
    SignedBuckets,
)
from luthier.layers.attention.blockwise import BlockwiseAttention
from luthier.layers.attention.context_parallel import (
    AllToAllAttention,
    Contiguous,
    RingAttention,
    RingOrder,
    Zigzag,
)
from luthier.layers.attention.cores import (
    Core,
    EinsumAttention,
    FusedAttention,
    soft_cap,
    softmax,
)
from luthier.layers.attention.cudnn import CudnnAttention
from luthier.layers.attention.kernels import are_kernels_allowed, without_kernels
from luthier.layers.attention.masks import (
    AttentionMask,
    Causal,
    SameDocument,
    Window,
    pair_share,
)
from luthier.layers.attention.multi_head import (
    Attention,
    CrossAttention,
    HeadNorms,
    KeyValues,
    OwnBias,
    ProjectionNorms,
    QueryKey,
    QueryScale,
    RotatedFirstAttention,
)
from luthier.layers.attention.splash import SplashAttention

__all__ = [
    "CHOICE_REASONS",
    "Alibi",
    "AllToAllAttention",
    "Attention",
    "AttentionMask",
    "AutoAttention",
    "Bias",
    "BlockwiseAttention",
    "Buckets",
    "Causal",
    "Contiguous",
    "Core",
    "CoreChoice",
    "CrossAttention",
    "CudnnAttention",
    "EinsumAttention",
    "FusedAttention",
    "HeadNorms",
    "KeyValues",
    "OwnBias",
    "PastBuckets",
    "ProjectionNorms",
    "QueryKey",
    "QueryScale",
    "RelativeBias",
    "RingAttention",
    "RingOrder",
    "RotatedFirstAttention",
    "SameDocument",
    "SignedBuckets",
    "SplashAttention",
    "Window",
    "Zigzag",
    "are_kernels_allowed",
    "pair_share",
    "soft_cap",
    "softmax",
    "without_kernels",
]
