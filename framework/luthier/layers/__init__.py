"""NNX layers, one family per file; parents make children from templates by `create`."""

from luthier.layers.attention import (
    Attention,
    Causal,
    Core,
    EinsumAttention,
    FusedAttention,
    KeyValues,
    Mask,
    SameDocument,
)
from luthier.layers.blocks import Block, PreNormBlock
from luthier.layers.dropout import Dropout, DropoutKeys, fold
from luthier.layers.embedding import Embedding, TiedUnembedding, Unembedding
from luthier.layers.initializers import (
    FanAverage,
    FanIn,
    Initializer,
    Normal,
    Ones,
    TruncatedNormal,
    Zeros,
)
from luthier.layers.linear import Linear
from luthier.layers.mlp import GatedMlp, Mlp
from luthier.layers.norms import LayerNorm, RMSNorm
from luthier.layers.parameters import AXES, Template, create, parameter, vector
from luthier.layers.positions import LearnedPositions, Rotary, Tokens
from luthier.layers.remat import FullRemat, NoRemat, Remat, SaveNamed, SaveProjections
from luthier.layers.stacks import Scanned, Stack, Unrolled

__all__ = [
    "AXES",
    "Attention",
    "Block",
    "Causal",
    "Core",
    "Dropout",
    "DropoutKeys",
    "EinsumAttention",
    "Embedding",
    "FanAverage",
    "FanIn",
    "FullRemat",
    "FusedAttention",
    "GatedMlp",
    "Initializer",
    "KeyValues",
    "LayerNorm",
    "LearnedPositions",
    "Linear",
    "Mask",
    "Mlp",
    "NoRemat",
    "Normal",
    "Ones",
    "PreNormBlock",
    "RMSNorm",
    "Remat",
    "Rotary",
    "SameDocument",
    "SaveNamed",
    "SaveProjections",
    "Scanned",
    "Stack",
    "Template",
    "TiedUnembedding",
    "Tokens",
    "TruncatedNormal",
    "Unembedding",
    "Unrolled",
    "Zeros",
    "create",
    "fold",
    "parameter",
    "vector",
]
