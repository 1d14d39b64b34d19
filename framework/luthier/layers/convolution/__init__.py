"""Layers of convolutional networks."""

from luthier.layers.convolution.conformer import ConformerBlock, ConvolutionModule
from luthier.layers.convolution.convolution import Convolution, DepthwiseConvolution
from luthier.layers.convolution.norms import BatchNorm, GroupNorm
from luthier.layers.convolution.residual import (
    BasicBlock,
    BottleneckBlock,
    LargeStem,
    SmallStem,
)

__all__ = [
    "BasicBlock",
    "BatchNorm",
    "BottleneckBlock",
    "ConformerBlock",
    "Convolution",
    "ConvolutionModule",
    "DepthwiseConvolution",
    "GroupNorm",
    "LargeStem",
    "SmallStem",
]
