import dataclasses

import numpy as np
import pytest

from luthier.data import Bytes, Concatenate, Pretokenized, Records, ShiftLeft, TrimTokens
from luthier.errors import DataError

TEXTS = ["to be", "", "or not to be, that is the question"]


@dataclasses.dataclass(frozen=True)
class Listed(Records):
    values: tuple

    def __len__(self):
        return len(self.values)

    def __getitem__(self, index):
        return {"ids": self.values[index]}

    def name(self, index):
        return f"record {index}"


IDS = tuple(list(text.encode()) for text in TEXTS)


def make(values=IDS, length=8, packing=None):
    return Pretokenized(Listed(values), Bytes(), length, packing or TrimTokens(ShiftLeft(end=257)))


def test_rows_begin_as_the_records_do():
    (batch,) = make().batches(global_batch_size=4)
    assert {n: (a.shape, a.dtype) for n, a in batch.items()} == make().batch_spec(4)
    assert bytes(batch["inputs"][0].tolist()) == b"to be\0\0\0"
    assert bytes(batch["inputs"][1].tolist()) == b"or not t"
    assert batch["targets"][1].tolist() == [*b"r not t", 257]
    assert batch["weights"].tolist() == [[1] * 4 + [0] * 4, [1] * 7 + [0], [0] * 8, [0] * 8]
    assert batch["target_bytes"].sum() == 11


def test_other_packings_know_the_end_of_a_document():
    data = make(packing=Concatenate(), length=64)
    row = data.rows.gather(np.array([0]))
    ended = [token for ids in IDS for token in [*ids, 257]]
    assert row["targets"][0, : len(ended)].tolist() == ended
    assert row["weights"].sum() == len(ended)


def test_describe():
    described = make().describe()
    assert described["documents"] == 3
    assert described["bytes"] == sum(map(len, TEXTS))
    assert described["targets"] == 11
    assert described["bytes_per_token"] == 1
    expected = make(packing=Concatenate()).describe()["unigram_entropy"]
    assert described["unigram_entropy"] == expected > 0
    assert str(make()).endswith("has 2 rows of 8 tokens")


def test_one_token_is_a_list_of_one():
    assert make((np.int64(65),)).stream.num_targets.tolist() == [2]


def test_problems():
    with pytest.raises(DataError) as error:
        make(([1, 2], "text", [1.5], [1, 258], [-1])).num_rows  # noqa: B018
    assert [str(problem) for problem in error.value.problems] == [
        "record 1: field 'ids' is not a list of tokens but str; name a field of tokens",
        "record 2: field 'ids' is not a list of tokens but list; name a field of tokens",
        "record 3: field 'ids' has a token beyond the vocabulary's 258: 258; "
        "set the tokenizer to that of the tokens",
        "record 4: field 'ids' has a token beyond the vocabulary's 258: -1; "
        "set the tokenizer to that of the tokens",
    ]
    with pytest.raises(DataError) as error:
        make(("text",) * 30).num_rows  # noqa: B018
    assert len(error.value.problems) == 20
    with pytest.raises(DataError, match="has no records; name others"):
        make(()).num_rows  # noqa: B018
    with pytest.raises(DataError, match=r"record 0: no field 'tokens' .its fields: 'ids'."):
        dataclasses.replace(make(), field="tokens").num_rows  # noqa: B018
