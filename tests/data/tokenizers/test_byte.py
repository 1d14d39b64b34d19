import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Bytes


@given(st.binary())
def test_any_bytes_round_trip(data):
    tokenizer = Bytes()
    tokens = tokenizer.encode(data)
    assert tokens == list(data)
    assert tokenizer.decode_bytes([tokenizer.bos, *tokens, tokenizer.eos]) == data
    np.testing.assert_array_equal(tokenizer.encode_many([data])[0], tokens)
    assert tokenizer.byte_lengths[tokens].sum() == len(data)


@given(st.text())
def test_any_text_round_trips(text):
    assert Bytes().decode(Bytes().encode(text)) == text


def test_vocabulary():
    tokenizer = Bytes()
    assert (tokenizer.vocab_size, tokenizer.bos, tokenizer.eos) == (258, 256, 257)
    assert tokenizer.byte_lengths.dtype == np.int32
    assert tokenizer.byte_lengths.shape == (258,)
    assert tokenizer.byte_lengths.sum() == 256
    assert not tokenizer.byte_lengths[256:].any()


def test_half_a_character_shows_as_a_replacement():
    assert Bytes().decode("é".encode()[:1]) == "�"


def test_equal_and_hashable():
    assert Bytes() == Bytes()
    assert hash(Bytes()) == hash(Bytes())
