"""Tokenizers: one vocabulary format per module."""

from luthier.data.tokenizers.bpe import Bpe, BpeMerges, TrainedBpe, train_bpe
from luthier.data.tokenizers.sentence_piece import SentencePiece
from luthier.data.tokenizers.tiktoken import Tiktoken
from luthier.data.tokenizers.tokenizer import Bytes, Tokenizer
from luthier.data.tokenizers.tokenizer_json import TokenizerJson

__all__ = [
    "Bpe",
    "BpeMerges",
    "Bytes",
    "SentencePiece",
    "Tiktoken",
    "Tokenizer",
    "TokenizerJson",
    "TrainedBpe",
    "train_bpe",
]
