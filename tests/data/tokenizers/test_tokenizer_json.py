import json
import pickle

import pytest
import tokenizers as library
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import decoders, models, normalizers, pre_tokenizers, trainers

from luthier.data import (
    Bpe,
    Bytes,
    Concatenate,
    Documents,
    Packed,
    TokenizerJson,
    train_bpe,
)
from luthier.errors import DataError

TEXT = "To be, or not to be: that is the question. naïve 東京 "
FALLBACK = [f"<0x{byte:02X}>" for byte in range(256)]


def fallback_model():
    """A vocabulary as Llama's: spaces as U+2581 and byte fallback."""
    pieces = ["<unk>", "<s>", "</s>", *FALLBACK, *"\u2581tobeTqusin", "to", "\u2581to", "be"]
    merges = [("t", "o"), ("\u2581", "to"), ("b", "e")]
    return library.Tokenizer(
        models.BPE(
            {piece: number for number, piece in enumerate(pieces)},
            merges,
            byte_fallback=True,
            fuse_unk=True,
            unk_token="<unk>",
        )
    )


def llama(path):
    tokenizer = fallback_model()
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return save(tokenizer, path)


def metaspace(path):
    tokenizer = fallback_model()
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(split=False)
    tokenizer.decoder = decoders.Metaspace()
    return save(tokenizer, path)


def gemma(path):
    tokenizer = fallback_model()
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    return save(tokenizer, path)


def byte_level(path):
    train_bpe(Documents([TEXT * 9]), 290, str(path), bos_token="<s>", eos_token="</s>")
    return str(path)


def save(tokenizer, path):
    tokenizer.add_special_tokens(["<s>", "</s>"])
    tokenizer.save(str(path))
    return str(path)


def bert(path):
    tokenizer = library.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=60, special_tokens=["[UNK]", "[CLS]", "[SEP]"], show_progress=False
    )
    tokenizer.train_from_iterator([TEXT], trainer)
    tokenizer.enable_padding(length=64)
    tokenizer.enable_truncation(4)
    tokenizer.save(str(path))
    return str(path)


KINDS = {"llama": llama, "metaspace": metaspace, "gemma": gemma, "byte level": byte_level}
PREFIX = {"llama": 1, "metaspace": 1, "gemma": 0, "byte level": 0}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def path(kind, tmp_path_factory):
    return KINDS[kind](tmp_path_factory.mktemp("json") / "tokenizer.json")


@pytest.fixture(scope="module")
def tokenizer(path):
    return TokenizerJson(path)


def test_the_same_tokens_as_the_library(tokenizer, path, kind):
    reference = library.Tokenizer.from_file(path)
    texts = [TEXT, "be", "a\n\tb", "🎻"] + ([" be", "  two"] if kind != "metaspace" else [])
    for text in texts:
        expected = reference.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == expected
        assert tokenizer.decode(expected) == text
    assert tokenizer.prefix_bytes == PREFIX[kind]
    assert tokenizer.keeps_bytes


def test_any_bytes_round_trip_with_exact_bytes(tokenizer):
    mixed = st.lists(st.one_of(st.binary(), st.text("to be\u2581 \n東").map(str.encode)))

    @given(mixed.map(b"".join))
    def check(data):
        tokens = tokenizer.encode(data)
        spelled = b"".join(tokenizer._pieces[token] for token in tokens)
        assert spelled == b" " * (tokenizer.prefix_bytes if data else 0) + data
        assert tokenizer.byte_lengths[tokens].sum() == len(spelled)

    check()


def test_target_bytes_are_those_of_the_documents(tokenizer):
    documents = [TEXT[: number * 5] for number in range(9)] + [" leading", b"\xff bytes"]
    totals = [
        sum(
            int(b["target_bytes"].sum())
            for b in Packed(Documents(documents), t, 16, Concatenate()).batches(global_batch_size=4)
        )
        for t in (tokenizer, Bytes())
    ]
    assert totals[0] == totals[1]


def test_it_is_as_bpe_where_both_can_read_the_file(tmp_path):
    path = byte_level(tmp_path / "x.json")
    first, second = TokenizerJson(path), Bpe(path, "<s>", "</s>")
    assert first.encode(TEXT) == second.encode(TEXT)
    assert first.byte_lengths.tolist() == second.byte_lengths.tolist()
    assert (first.bos, first.eos, first.vocab_size) == (second.bos, second.eos, second.vocab_size)


def test_a_vocabulary_that_does_not_keep_bytes_says_so(tmp_path):
    path = bert(tmp_path / "x.json")
    tokenizer = TokenizerJson(path, "[CLS]", "[SEP]")
    assert not tokenizer.keeps_bytes
    assert tokenizer.prefix_bytes == 0
    reference = library.Tokenizer.from_file(path)
    reference.no_padding()
    reference.no_truncation()
    assert tokenizer.encode(TEXT) == reference.encode(TEXT, add_special_tokens=False).ids
    assert tokenizer.decode(tokenizer.encode("To BE")) == "to be"
    assert tokenizer.byte_lengths[[tokenizer.bos, tokenizer.eos]].tolist() == [0, 0]
    assert tokenizer.byte_lengths[tokenizer.encode("to be")].sum() == 4
    data = Packed(Documents([TEXT, b"\xff?"]), tokenizer, 16, Concatenate())
    assert data.describe()["documents"] == 2
    assert pickle.loads(pickle.dumps(tokenizer)) == tokenizer


def test_errors(tmp_path):
    with pytest.raises(DataError, match="cannot be read"):
        TokenizerJson(str(tmp_path / "none")).bos  # noqa: B018
    for content in ("{", json.dumps({"a": 1}), "[1]"):
        (tmp_path / "x").write_text(content)
        with pytest.raises(DataError, match="not a tokenizer file"):
            TokenizerJson(str(tmp_path / "x")).bos  # noqa: B018
    with pytest.raises(DataError, match=r"no special token '\[CLS\]'"):
        TokenizerJson(llama(tmp_path / "y"), "[CLS]").bos  # noqa: B018
