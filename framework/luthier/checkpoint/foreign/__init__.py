"""The weights of others: declarative, invertible maps between their tensors and our parameters."""

from luthier.checkpoint.foreign import families
from luthier.checkpoint.foreign.family import Family, Part, Tensor, joined, tensor
from luthier.checkpoint.foreign.layers import Stacked
from luthier.checkpoint.foreign.layout import Layout
from luthier.checkpoint.foreign.tensors import Tensors, read_config
from luthier.checkpoint.foreign.tokenizer_files import copy_tokenizer, tokenizer_files
from luthier.checkpoint.foreign.writing import PLAIN, foreign_tensors, plain_tensors, write

__all__ = [
    "PLAIN",
    "Family",
    "Layout",
    "Part",
    "Stacked",
    "Tensor",
    "Tensors",
    "copy_tokenizer",
    "families",
    "foreign_tensors",
    "joined",
    "plain_tensors",
    "read_config",
    "tensor",
    "tokenizer_files",
    "write",
]
