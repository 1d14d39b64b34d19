import pickle
import sys

import numpy as np
import pytest

from luthier.data import (
    Bpe,
    Bytes,
    Concatenate,
    Documents,
    FirstFit,
    JsonLines,
    Packed,
    Shakespeare,
    TextFiles,
    Unpacked,
    train_bpe,
)
from luthier.errors import DataError

WORDS = [f"document {number} " * (number % 7) for number in range(40)]


def packed(length=16, packing=None, documents=WORDS, **settings):
    return Packed(Documents(documents), Bytes(), length, packing or Concatenate(), **settings)


def test_nothing_is_read_before_the_first_use():
    data = Packed(TextFiles("/no/such/*"), Bpe("/no/such.json"), 8, FirstFit())
    assert data == Packed(TextFiles("/no/such/*"), Bpe("/no/such.json"), 8, FirstFit())
    assert data.tokens_per_row == 8
    spec = data.batch_spec(4)
    assert spec["inputs"] == ((4, 8), np.dtype(np.int32))
    assert spec["weights"] == ((4, 8), np.dtype(np.float32))
    assert pickle.loads(pickle.dumps(data)) == data
    with pytest.raises(DataError):
        data.num_rows  # noqa: B018


def test_batches_are_what_the_spec_says():
    data = packed()
    spec = data.batch_spec(8)
    for batch in (
        next(data.iterator(global_batch_size=8, seed=0)),
        next(iter(data.batches(global_batch_size=8))),
    ):
        assert {name: (array.shape, array.dtype) for name, array in batch.items()} == spec


@pytest.mark.parametrize("packing", [Concatenate(), FirstFit(), Unpacked()], ids=repr)
@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_evaluation_sees_every_row_once(packing, process_count):
    data = packed(packing=packing)
    shards = [
        list(data.batches(global_batch_size=8, process_index=i, process_count=process_count))
        for i in range(process_count)
    ]
    assert {len(shard) for shard in shards} == {-(-data.num_rows // 8)}
    whole = {
        name: np.concatenate(
            [shard[step][name] for step in range(len(shards[0])) for shard in shards]
        )
        for name in data.batch_spec(1)
    }
    expected = data.rows.gather(np.arange(data.num_rows))
    for name, array in whole.items():
        np.testing.assert_array_equal(array[: data.num_rows], expected[name])
        assert not array[data.num_rows :].any()
    assert whole["target_bytes"].sum() == sum(len(text) for text in WORDS)


def test_evaluation_of_less_than_a_batch():
    (batch,) = packed(documents=["ab"]).batches(global_batch_size=8)
    assert batch["weights"].sum() == 3


def test_one_epoch_of_training_has_every_row_once():
    data = packed()
    size = next(n for n in (2, 3, 5, 7, 1) if data.num_rows % n == 0)
    iterator = data.iterator(global_batch_size=size, seed=3)
    seen = [next(iterator)["documents"] for _ in range(data.num_rows // size)]
    expected = data.rows.gather(np.arange(data.num_rows))["documents"]
    assert sorted(map(tuple, np.concatenate(seen))) == sorted(map(tuple, expected))
    assert not np.array_equal(np.concatenate(seen), expected)


def test_threads_change_nothing():
    streams = [
        packed(num_threads=threads, prefetch_batches=ahead).iterator(global_batch_size=4, seed=1)
        for threads, ahead in ((0, 1), (1, 4), (4, 16))
    ]
    for _ in range(30):
        first, *others = [next(stream) for stream in streams]
        for other in others:
            for name, array in first.items():
                np.testing.assert_array_equal(other[name], array)


def test_describe():
    data = packed()
    described = data.describe()
    assert described["documents"] == 40
    assert described["bytes"] == sum(map(len, WORDS))
    assert described["targets"] == described["bytes"] + 40
    assert described["rows"] == -(-described["targets"] // 16) == data.num_rows
    assert described["length"] == 16
    assert described["vocab_size"] == 258
    assert described["bytes_per_token"] == 1.0
    assert 0.99 < described["fill"] <= 1.0
    assert 0 < described["bigram_entropy"] < described["unigram_entropy"] < np.log(256)
    assert all(type(value) in (int, float) for value in described.values())


def test_bytes_are_counted_with_bpe(tmp_path):
    play = Shakespeare("held_out")
    tokenizer = train_bpe(Documents([play[0]]), 512, str(tmp_path / "t.json"))
    data = Packed(play, tokenizer, 128, FirstFit())
    described = data.describe()
    total = sum(int(b["target_bytes"].sum()) for b in data.batches(global_batch_size=256))
    assert total == described["bytes"] == 460_516
    assert described["bytes_per_token"] > 1.7
    assert described["unigram_entropy"] == pytest.approx(3.2963, abs=1e-4)


def test_only_empty_documents():
    data = packed(documents=["", ""])
    assert data.describe()["bytes_per_token"] == 0.0
    assert data.num_rows == 1


ERRORS = [
    (
        {},
        {"global_batch_size": 12, "process_count": 8},
        "cannot be split equally among 8 processes",
    ),
    ({}, {"global_batch_size": 12, "process_count": 8}, "choose a multiple of 8"),
    ({}, {"global_batch_size": 0}, "a global batch of 0 rows; set it to 1 or more"),
    ({}, {"global_batch_size": -4}, "a global batch of -4 rows"),
    ({}, {"global_batch_size": 8, "process_index": 2, "process_count": 2}, "process 2 of 2"),
    ({"length": 0}, {"global_batch_size": 1}, "rows of 0 tokens; set length >= 1"),
    ({"documents": []}, {"global_batch_size": 1}, "no documents"),
]


@pytest.mark.parametrize(("settings", "sizes", "message"), ERRORS)
def test_errors(settings, sizes, message):
    for begin in (
        lambda: packed(**settings).iterator(**sizes, seed=0),
        lambda: packed(**settings).batches(**sizes),
    ):
        with pytest.raises(DataError) as error:
            begin()
        assert message in str(error.value)
        assert "\n" not in str(error.value)


def test_too_little_data_for_a_batch():
    with pytest.raises(DataError) as error:
        packed(length=64, documents=["short"] * 20).iterator(global_batch_size=8, seed=0)
    assert "has 2 rows of 64 tokens, too few for a batch of 8 rows; add data" in str(error.value)


def test_all_size_problems_at_once():
    data = packed(length=64, documents=["short"] * 20)
    with pytest.raises(DataError) as error:
        data.iterator(global_batch_size=9, seed=0, process_count=2)
    assert len(error.value.problems) == 2


def test_bad_records_are_named_through_the_whole_path(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n{"text": 1}\n{"txt": "x"}\n')
    data = Packed(JsonLines(f"{tmp_path}/*.jsonl"), Bytes(), 8, Concatenate())
    with pytest.raises(DataError) as error:
        data.iterator(global_batch_size=1, seed=0)
    assert [":2:" in str(error.value.problems[0]), ":3:" in str(error.value.problems[1])] == [1, 1]


def test_grain_is_imported_at_the_first_batch():
    import subprocess

    code = (
        "import sys, luthier.data as d\n"
        "data = d.Packed(d.Documents(['abc']), d.Bytes(), 4, d.Concatenate())\n"
        "data.describe()\n"
        "print([m for m in ('jax', 'grain', 'tokenizers', 'orbax') if m in sys.modules])\n"
    )
    found = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert found.stdout == "[]\n"
