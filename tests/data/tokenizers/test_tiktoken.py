import base64
import gzip
import importlib.util
import pickle
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Tiktoken
from luthier.errors import DataError

library = pytest.importorskip("tiktoken")
PATTERN = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
WORDS = [b"th", b"the", b" the", b"in", b"ing", b"\xc3\xa9", b" t", b" th", b"to"]
RANKS = {bytes([byte]): byte for byte in range(256)} | {w: 256 + i for i, w in enumerate(WORDS)}
SPECIALS = {"<|endoftext|>": 270, "<|begin|>": 271}
TEXT = "the thing thing to the naïve café 東京 🎻\n\n  the<|endoftext|>"


def write(path, ranks=RANKS):
    text = b"".join(base64.b64encode(t) + b" %d\n" % rank for t, rank in ranks.items())
    path.write_bytes(gzip.compress(text) if path.suffix == ".gz" else text)
    return str(path)


@pytest.fixture(params=["x.tiktoken", "x.tiktoken.gz"])
def tokenizer(tmp_path, request):
    return Tiktoken(write(tmp_path / request.param), PATTERN, SPECIALS, "<|begin|>")


def test_the_same_tokens_as_the_library(tokenizer):
    reference = library.Encoding(
        "test", pat_str=PATTERN, mergeable_ranks=RANKS, special_tokens=SPECIALS
    )
    assert tokenizer.encode(TEXT) == reference.encode_ordinary(TEXT)
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert tokenizer.vocab_size == reference.n_vocab == 272
    assert (tokenizer.bos, tokenizer.eos) == (271, 270)


def test_any_bytes_round_trip_with_exact_bytes(tmp_path):
    tokenizer = Tiktoken(write(tmp_path / "x"), PATTERN, SPECIALS)
    mixed = st.lists(st.one_of(st.binary(), st.text().map(str.encode))).map(b"".join)

    @given(mixed)
    def check(data):
        tokens = tokenizer.encode(data)
        assert tokenizer.decode_bytes(tokens) == data
        assert tokenizer.byte_lengths[tokens].sum() == len(data)

    check()


def test_gaps_and_specials_stand_for_nothing(tokenizer):
    assert not tokenizer.byte_lengths[265:].any()
    assert tokenizer.byte_lengths[:256].tolist() == [1] * 256
    assert pickle.loads(pickle.dumps(tokenizer)).encode("the") == [257]


def test_many_at_once(tokenizer):
    documents = [b"", TEXT.encode(), b"\xff\xc3\xa9"]
    assert [t.tolist() for t in tokenizer.encode_many(documents)] == [
        tokenizer.encode(document) for document in documents
    ]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"special_tokens": {"<|endoftext|>": 5}}, "has number 5 of"),
        ({"bos_token": "<|bos|>"}, r"no special token '<\|bos\|>'"),
        ({"pattern": "("}, "the pattern cannot be used"),
    ],
)
def test_settings_that_do_not_fit(tmp_path, change, message):
    settings = {"pattern": PATTERN, "special_tokens": SPECIALS, **change}
    with pytest.raises(DataError, match=message):
        Tiktoken(write(tmp_path / "x"), **settings).encode("a")


def test_files_that_are_none(tmp_path):
    (tmp_path / "x").write_bytes(b"IQ== 0\nplain text here\n")
    with pytest.raises(DataError, match="x:2: not a token and its rank"):
        Tiktoken(str(tmp_path / "x"), PATTERN, SPECIALS).bos  # noqa: B018
    with pytest.raises(DataError, match="255 of the 256 bytes have no token"):
        Tiktoken(write(tmp_path / "x", {b"a": 0}), PATTERN, SPECIALS).bos  # noqa: B018
    with pytest.raises(DataError, match="several tokens have one rank"):
        Tiktoken(write(tmp_path / "x", {**RANKS, b"zz": 9}), PATTERN, SPECIALS).bos  # noqa: B018
    (tmp_path / "x.gz").write_bytes(b"plain text")
    with pytest.raises(DataError, match="cannot be unpacked"):
        Tiktoken(str(tmp_path / "x.gz"), PATTERN, SPECIALS).bos  # noqa: B018


def test_a_published_vocabulary():
    found = importlib.util.find_spec("bpe_openai")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("bpe-openai is not installed")
    path = next(Path(found.submodule_search_locations[0]).rglob("cl100k*.gz"))
    tokenizer = Tiktoken(str(path), PATTERN, {"<|endoftext|>": 100257})
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
