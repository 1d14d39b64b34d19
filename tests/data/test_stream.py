import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Bytes, Documents, Tokenizer, tokenize
from luthier.errors import DataError


class Wide(Bytes):
    """Bytes in a vocabulary that does not fit into 16 bits."""

    vocab_size = 70_000
    bos, eos = 69_998, 69_999
    byte_lengths = np.repeat(np.array([1, 0], np.int32), [256, 69_744])


@given(st.lists(st.binary(max_size=20), min_size=1))
def test_documents_stand_between_start_and_end(documents):
    stream = tokenize(Documents(documents), Bytes())
    expected = [token for document in documents for token in (256, *document, 257)]
    assert stream.tokens.tolist() == expected
    assert stream.tokens.dtype == np.uint16
    assert stream.num_targets.tolist() == [len(document) + 1 for document in documents]
    assert stream.num_bytes == sum(map(len, documents))


def test_large_documents_and_nothing_to_spare():
    documents = [b"x" * 300_000, b"y" * 700_000, b"z"]
    stream = tokenize(Documents(documents), Bytes())
    assert stream.tokens.nbytes == 2 * (1_000_001 + 6)
    assert bytes(stream.tokens[300_003:1_000_003].astype(np.uint8)) == documents[1]


def test_large_vocabularies():
    stream = tokenize(Documents(["a"]), Wide())
    assert stream.tokens.tolist() == [69_998, 97, 69_999]
    assert stream.tokens.dtype == np.int32


class Lossy(Tokenizer):
    """Drops what is not ASCII."""

    vocab_size, bos, eos = 258, 256, 257
    byte_lengths = Bytes().byte_lengths

    def encode(self, text):
        return [byte for byte in text if byte < 128]

    def decode(self, tokens):
        return bytes(tokens).decode()


def test_a_tokenizer_that_drops_bytes_is_refused():
    assert tokenize(Documents(["plain"]), Lossy()).num_bytes == 5
    with pytest.raises(DataError, match="document 2: 6 bytes became tokens for 4 bytes"):
        tokenize(Documents(["plain", "naïve"]), Lossy())


def test_documents_are_observed_as_they_are_read():
    seen = []
    tokenize(Documents(["ab", "", "c"]), Bytes(), seen.extend)
    assert seen == [b"ab", b"", b"c"]
