import os
import pickle
import resource

import numpy as np
import pytest

from luthier.data import (
    Bytes,
    Concatenate,
    Documents,
    FirstFit,
    Packed,
    Prepared,
    SentencePiece,
    Unpacked,
    plan_layout,
    prepare,
    survey,
    train_bpe,
)
from luthier.errors import DataError

TEXTS = [f"document {number} " * (number % 9) for number in range(60)] + ["naïve", b"\xff"]


def make(directory, tokenizer=None, texts=TEXTS, shards=5):
    source, tokenizer = Documents(texts), tokenizer or Bytes()
    layout = plan_layout(source, tokenizer, survey(source, tokenizer), shards)
    prepare(source, tokenizer, str(directory), layout)
    return str(directory)


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return make(tmp_path_factory.mktemp("prepared") / "bytes")


def assert_same(first, second):
    for evaluation in (False, True):
        streams = [
            data.batches(global_batch_size=4)
            if evaluation
            else (
                next(it) for it in [data.iterator(global_batch_size=4, seed=3)] for _ in range(40)
            )
            for data in (first, second)
        ]
        for a, b in zip(*streams, strict=True):
            for name in a:
                assert a[name].dtype == b[name].dtype
                np.testing.assert_array_equal(a[name], b[name])


@pytest.mark.parametrize("packing", [Concatenate(), FirstFit(), Unpacked()], ids=repr)
def test_batches_are_those_of_packed(directory, packing):
    packed = Packed(Documents(TEXTS), Bytes(), 16, packing)
    prepared = Prepared(directory, 16, packing)
    assert_same(packed, prepared)
    assert prepared.describe() == pytest.approx(packed.describe())


def test_other_tokenizers(tmp_path):
    bpe = train_bpe(Documents(TEXTS), 270, str(tmp_path / "bpe.json"))
    prepared = Prepared(make(tmp_path / "bpe", bpe), 16, FirstFit(), bpe)
    assert_same(Packed(Documents(TEXTS), bpe, 16, FirstFit()), prepared)
    with pytest.raises(DataError, match=r"was made with Bpe\(.*, not Bytes"):
        Prepared(str(tmp_path / "bpe"), 16, FirstFit(), Bytes()).num_rows  # noqa: B018


def test_a_space_in_front_is_not_counted(tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.data.tokenizers.test_sentence_piece import train

    tokenizer = SentencePiece(train(tmp_path / "x.model"))
    prepared = Prepared(make(tmp_path / "spm", tokenizer), 16, FirstFit())
    assert_same(Packed(Documents(TEXTS), tokenizer, 16, FirstFit()), prepared)


def test_tokens_stay_on_disk(directory):
    prepared = Prepared(directory, 16, FirstFit())
    parts = prepared.stream.tokens._parts
    assert len(parts) == 5
    assert all(isinstance(part, np.memmap) for part in parts)


def test_different_corpora_and_rows_have_different_digests(directory, tmp_path):
    other = make(tmp_path / "other", texts=[*TEXTS, "more"])
    digests = {
        Prepared(folder, length, packing).rows.digest
        for folder in (directory, other)
        for length in (16, 17)
        for packing in (FirstFit(), Concatenate())
    }
    assert len(digests) == 8
    assert Prepared(directory, 16, FirstFit()).rows.digest in digests


def test_it_travels_to_other_processes(directory):
    prepared = Prepared(directory, 16, FirstFit())
    assert prepared.num_rows
    copy = pickle.loads(pickle.dumps(prepared))
    assert copy == prepared
    assert copy.num_rows == prepared.num_rows


def test_nothing_is_read_before_the_first_use(tmp_path):
    prepared = Prepared(str(tmp_path / "none"), 16, FirstFit())
    assert prepared.batch_spec(2)["inputs"][0] == (2, 16)
    with pytest.raises(DataError, match="not a prepared corpus"):
        prepared.num_rows  # noqa: B018


def test_too_few_rows(directory):
    with pytest.raises(DataError, match=r"bytes has \d+ rows of 4096 tokens, too few for a batch"):
        Prepared(directory, 4096, Concatenate()).iterator(global_batch_size=64, seed=0)


def test_more_shards_than_files_that_may_be_open(directory):
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    opened = len(os.listdir("/proc/self/fd"))
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (opened + 3, limits[1]))
        assert Prepared(directory, 16, FirstFit()).num_rows
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (opened + 8, limits[1])
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
