"""Where tokens stand, told to the model: rotations, and vectors that are added."""

from luthier.layers.positions.additive import (
    InterleavedSinusoids,
    LearnedPositions,
    Sinusoids,
)
from luthier.layers.positions.rotary import (
    LinearScaling,
    Llama3Scaling,
    Rotary,
    RotaryScaling,
)
from luthier.layers.positions.tokens import Tokens

__all__ = [
    "InterleavedSinusoids",
    "LearnedPositions",
    "LinearScaling",
    "Llama3Scaling",
    "Rotary",
    "RotaryScaling",
    "Sinusoids",
    "Tokens",
]
