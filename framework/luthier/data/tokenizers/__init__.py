"""Tokenizers: one vocabulary format a file."""

from luthier.data.tokenizers.bpe import Bpe, BpeMerges, train_bpe
from luthier.data.tokenizers.byte import Bytes
from luthier.data.tokenizers.sentence_piece import SentencePiece
from luthier.data.tokenizers.tiktoken import Tiktoken
from luthier.data.tokenizers.tokenizer import Tokenizer
from luthier.data.tokenizers.tokenizer_json import TokenizerJson
from luthier.data.tokenizers.trained_bpe import TrainedBpe

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
