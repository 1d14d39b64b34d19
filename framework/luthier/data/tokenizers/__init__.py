"""How text becomes tokens: one family of tokenizers a file."""

from luthier.data.tokenizers.bpe import Bpe, train_bpe
from luthier.data.tokenizers.byte import Bytes
from luthier.data.tokenizers.tokenizer import Tokenizer

__all__ = ["Bpe", "Bytes", "Tokenizer", "train_bpe"]
