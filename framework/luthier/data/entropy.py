"""Entropies of a corpus's bytes, in nats per byte, as baselines for the losses of models."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

_START = 256  # the context of a document's first byte


class ByteCounts:
    """Counts of bytes and of pairs of neighbouring bytes within documents.

    A document's first byte is counted after a start symbol, so that every byte has a context.

    Example:
      >>> from luthier import data
      >>> counts = data.ByteCounts()
      >>> counts.add([b"abab"])
      >>> round(counts.unigram_entropy(), 4)
      0.6931
    """

    def __init__(self) -> None:
        self._pairs_xy = np.zeros((_START + 1, 256), np.int64)  # byte before, byte

    @property
    def pairs(self) -> np.ndarray:
        """The counts of a byte (second axis) after another or the start; int64 [257, 256]."""
        return self._pairs_xy

    def merge(self, pairs: np.ndarray) -> None:
        """Add the counts of other documents.

        Args:
          pairs: The property `pairs` of their counts, int64 [257, 256].
        """
        self._pairs_xy += pairs

    def add(self, documents: Sequence[bytes]) -> None:
        """Count documents; many in one call are faster.

        Args:
          documents: Documents, as bytes.
        """
        # All documents as one run of bytes, so that NumPy counts millions of pairs in a few calls
        # instead of one call a document. That counts, besides, the pairs across the seams (the last
        # byte of one document, the first of the next), which are known and taken off again.
        # Empty documents have no first or last byte.
        documents = [document for document in documents if document]
        text = b"".join(documents)
        if not text:
            return
        # Two bytes read as one little-endian number are a pair, the earlier byte in the low half.
        # Pairs overlap, so the text is read twice: from byte 0 and from byte 1, each without a
        # copy.
        even = np.frombuffer(text, "<u2", len(text) // 2)
        # Up to two bytes have no pair that begins at byte 1.
        odd = (
            np.frombuffer(text, "<u2", (len(text) - 1) // 2, offset=1)
            if len(text) > 2
            else even[:0]
        )
        pairs = np.bincount(even, minlength=65536) + np.bincount(odd, minlength=65536)
        firsts = np.frombuffer(bytes(document[0] for document in documents), np.uint8)
        lasts = np.frombuffer(bytes(document[-1] for document in documents), np.uint8)
        # The first byte of the next document is the later one, so the high half; widened before the
        # product, which would wrap in uint8.
        across = firsts[1:].astype(np.int64) * 256 + lasts[:-1]
        pairs -= np.bincount(across, minlength=65536)
        # The earlier byte is the low half, so it is the second index after the reshape; hence the
        # .T.
        self._pairs_xy[:_START] += pairs.reshape(256, 256).T
        self._pairs_xy[_START] += np.bincount(firsts, minlength=256)

    @property
    def num_bytes(self) -> int:
        """The number of bytes counted."""
        return int(self._pairs_xy.sum())

    def unigram_entropy(self) -> float:
        """Return H(X) = -sum_x p(x) ln p(x), in nats per byte; 0 without bytes.

        Returns:
          Nats per byte; 0 without bytes.
        """
        return _entropy(self._pairs_xy.sum(axis=0, keepdims=True))

    def bigram_entropy(self) -> float:
        """Return H(X | Y) = -sum_yx p(y, x) ln p(x | y), y the byte before, in nats per byte.

        Returns:
          Nats per byte; 0 without bytes.
        """
        return _entropy(self._pairs_xy)


def unigram_entropy(documents: bytes | Iterable[bytes]) -> float:
    """Return the empirical entropy of the bytes: the loss of the best model without context.

    Args:
      documents: A document, or several.

    Returns:
      H(X) = -sum_x p(x) ln p(x), in nats per byte.

    Example:
      >>> from luthier import data
      >>> round(data.unigram_entropy(b"abab"), 4)  # log 2
      0.6931

    Source: Shannon 1951, Prediction and entropy of printed English, equation 1 (F_1).
    """
    return _count(documents).unigram_entropy()


def bigram_entropy(documents: bytes | Iterable[bytes]) -> float:
    """Return the empirical entropy of a byte given the byte before it in its document.

    Args:
      documents: A document, or several; the first byte of each follows a start symbol.

    Returns:
      H(X | Y) = -sum_yx p(y, x) ln p(x | y), in nats per byte.

    Example:
      >>> from luthier import data
      >>> data.bigram_entropy(b"abab")  # each byte follows from the one before
      0.0

    Source: Shannon 1951, Prediction and entropy of printed English, equation 1 (F_2).
    """
    return _count(documents).bigram_entropy()


def _count(documents: bytes | Iterable[bytes]) -> ByteCounts:
    counts = ByteCounts()
    counts.add([documents] if isinstance(documents, bytes) else list(documents))
    return counts


def _entropy(counts_yx: np.ndarray) -> float:
    """Return the entropy of x given y from counts [y, x], in nats."""
    rows, cells = counts_yx.sum(axis=1), counts_yx[counts_yx > 0]
    rows = rows[rows > 0]
    if not cells.size:
        return 0.0
    # H(X|Y) = (sum_y n_y ln n_y - sum_yx n_yx ln n_yx) / n, from counts without forming
    # probabilities. Rounding may give -1e-17 for a corpus of one byte value.
    nats = np.sum(rows * np.log(rows)) - np.sum(cells * np.log(cells))
    return max(float(nats / cells.sum()), 0.0)
