"""Conversion of foreign weights by declarative, invertible maps to and from our parameters."""

from luthier.checkpoint.foreign import families
from luthier.checkpoint.foreign.family import (
    Family,
    Stacked,
    Tensor,
    TensorLayout,
    TensorPart,
    joined,
    tensor,
)
from luthier.checkpoint.foreign.safetensors_folder import (
    PLAIN,
    Tensors,
    copy_tokenizer,
    foreign_tensors,
    plain_tensors,
    read_config,
    tokenizer_files,
    write,
)

__all__ = [
    "PLAIN",
    "Family",
    "Stacked",
    "Tensor",
    "TensorLayout",
    "TensorPart",
    "Tensors",
    "copy_tokenizer",
    "families",
    "foreign_tensors",
    "joined",
    "plain_tensors",
    "read_config",
    "safetensors_folder",
    "tensor",
    "tokenizer_files",
    "write",
]
