"""Data: sources of documents, tokenizers, packing into rows, and batches in a global order."""

from luthier.data.entropy import ByteCounts, bigram_entropy, unigram_entropy
from luthier.data.order import host_positions, shuffled_rows
from luthier.data.packed import Packed
from luthier.data.packing import Concatenate, FirstFit, Packing, Plan, Unpacked
from luthier.data.sources import Documents, JsonLines, Shakespeare, Source, TextFiles
from luthier.data.tokenizers import Bpe, Bytes, Tokenizer, train_bpe

__all__ = [
    "Bpe",
    "ByteCounts",
    "Bytes",
    "Concatenate",
    "Documents",
    "FirstFit",
    "JsonLines",
    "Packed",
    "Packing",
    "Plan",
    "Shakespeare",
    "Source",
    "TextFiles",
    "Tokenizer",
    "Unpacked",
    "bigram_entropy",
    "host_positions",
    "shuffled_rows",
    "train_bpe",
    "unigram_entropy",
]
