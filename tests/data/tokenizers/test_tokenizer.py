import numpy as np
import pytest

from luthier.data import Bytes, Documents, Tokenizer, TrainedBpe


class Words(Tokenizer):
    """A tokenizer of one's own, with nothing but what must be there."""

    vocab_size, bos, eos = 4, 2, 3
    byte_lengths = np.array([1, 2, 0, 0], np.int32)

    def encode(self, text):
        return [len(word) - 1 for word in text.split(b" ")]

    def decode(self, tokens):
        return " ".join("xx"[: token + 1] for token in tokens)


def test_one_of_ones_own_encodes_many():
    first, second = Words().encode_many([b"a bb", b"bb"])
    np.testing.assert_array_equal(first, [0, 1])
    np.testing.assert_array_equal(second, [1])
    assert isinstance(Words(), Tokenizer)


def test_a_missing_method_is_named():
    with pytest.raises(TypeError, match="decode"):
        type("Half", (Tokenizer,), dict.fromkeys(("vocab_size", "bos", "eos", "encode")))()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("é", b"\xc3\xa9"),
        (b"\xff", b"\xff"),
        ("a\udcff", b"a\xff"),  # a command line argument that is not UTF-8
        ("\ud800", b"\xed\xa0\x80"),
        ("", b""),
    ],
)
def test_text_becomes_bytes(text, expected):
    assert bytes(Bytes().encode(text)) == expected


def test_tokens_beyond_the_vocabulary_have_no_text():
    tokenizer = TrainedBpe(Documents(["abb"]), vocab_size=258)
    a, b, size = *tokenizer.encode("ab"), tokenizer.vocab_size
    assert tokenizer.decode_bytes(np.array([b, size, b, a, size + 7])) == b"bba"
