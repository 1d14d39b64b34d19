import importlib.util
import io
import pickle
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Bytes, Concatenate, Documents, FirstFit, Packed, SentencePiece, Unpacked
from luthier.errors import DataError

library = pytest.importorskip("sentencepiece")
TEXT = "To be, or not to be: that is the question. naïve 東京 "


def train(path, **settings):
    model = io.BytesIO()
    settings = {
        "vocab_size": 320,
        "model_type": "bpe",
        "byte_fallback": True,
        "normalization_rule_name": "identity",
        "remove_extra_whitespaces": False,
        "minloglevel": 2,
        **settings,
    }
    library.SentencePieceTrainer.train(
        sentence_iterator=iter([TEXT] * 20), model_writer=model, **settings
    )
    path.write_bytes(model.getvalue())
    return str(path)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("spm")


@pytest.fixture(scope="module", params=[True, False], ids=["prefix", "no prefix"])
def path(request, folder):
    return train(folder / f"{request.param}.model", add_dummy_prefix=request.param)


@pytest.fixture(scope="module")
def tokenizer(path):
    return SentencePiece(path)


def test_the_same_tokens_as_the_library(tokenizer, path):
    reference = library.SentencePieceProcessor(model_file=path)
    for text in (TEXT, " be", "  two", "a\n\tb", "", "🎻", "<s>"):
        assert tokenizer.encode(text) == list(reference.encode(text))
        assert tokenizer.decode(tokenizer.encode(text)) == text


def test_any_bytes_round_trip_with_exact_bytes(tokenizer):
    mixed = st.lists(st.one_of(st.binary(), st.text("to be\u2581 \n東").map(str.encode)))

    @given(mixed.map(b"".join))
    def check(data):
        tokens = tokenizer.encode(data)
        assert tokenizer.decode_bytes(tokens) == data
        total = tokenizer.byte_lengths[tokens].sum() - (tokenizer.prefix_bytes if data else 0)
        assert total == len(data)

    check()


def test_many_at_once_are_as_one_by_one(tokenizer):
    documents = [b"", b"to be", b"\xff\xfe", TEXT.encode(), "\u2581".encode(), b" x"]
    for document, tokens in zip(documents, tokenizer.encode_many(documents), strict=True):
        assert tokens.tolist() == tokenizer.encode(document)
        assert tokens.dtype == np.int32


def test_vocabulary(tokenizer, path):
    assert tokenizer.vocab_size == len(tokenizer.byte_lengths) == 320
    assert (tokenizer.bos, tokenizer.eos) == (1, 2)
    assert tokenizer.byte_lengths[:3].tolist() == [0, 0, 0]
    assert tokenizer.keeps_bytes
    assert pickle.loads(pickle.dumps(tokenizer)) == SentencePiece(path)


@pytest.mark.parametrize("packing", [Concatenate(), FirstFit(), Unpacked()], ids=repr)
def test_target_bytes_are_those_of_the_documents(tokenizer, packing):
    documents = [TEXT[: number * 5] for number in range(9)] + [" leading", b"\xff bytes"]
    sizes = [Packed(Documents(documents), t, 16, packing) for t in (tokenizer, Bytes())]
    totals = [
        sum(int(b["target_bytes"].sum()) for b in data.batches(global_batch_size=4))
        for data in sizes
    ]
    assert totals[0] == totals[1] == sum(len(Documents(documents)[i]) for i in range(11))
    assert min(b["target_bytes"].min() for b in sizes[0].batches(global_batch_size=4)) == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"normalization_rule_name": "nmt_nfkc"}, "its normalization changes characters"),
        ({"remove_extra_whitespaces": True}, "it removes extra whitespace"),
        ({"treat_whitespace_as_suffix": True}, "whitespace as a prefix"),
    ],
)
def test_models_that_change_text_are_refused(tmp_path, settings, message):
    with pytest.raises(DataError, match=message):
        SentencePiece(train(tmp_path / "x.model", **settings)).vocab_size  # noqa: B018


def test_other_errors(tmp_path, path):
    with pytest.raises(DataError, match="cannot be read"):
        SentencePiece(str(tmp_path / "none")).bos  # noqa: B018
    (tmp_path / "text").write_text("plain text")
    with pytest.raises(DataError, match="not a SentencePiece model"):
        SentencePiece(str(tmp_path / "text")).bos  # noqa: B018
    with pytest.raises(DataError) as error:
        SentencePiece(path, "<bos>", "<eos>").bos  # noqa: B018
    assert len(error.value.problems) == 2


def test_a_published_vocabulary():
    found = importlib.util.find_spec("mistral_common")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("mistral-common is not installed")
    path = Path(found.submodule_search_locations[0]) / "data" / "tokenizer.model.v1"
    tokenizer = SentencePiece(str(path))
    assert tokenizer.vocab_size == 32000
    assert tokenizer.prefix_bytes == 1
    text = "To be, or not to be: naïve 東京 123\u2581"
    assert tokenizer.encode("To be") == [1791, 347]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.byte_lengths[tokenizer.encode(text)].sum() == len(text.encode()) + 1
