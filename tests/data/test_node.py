import dataclasses

import numpy as np
import pytest

from luthier.data import Bytes, Concatenate, DataNode, Documents, Packed, Shuffled, spec
from luthier.errors import DataError


@dataclasses.dataclass(frozen=True, eq=False)
class Numbers:
    num_rows: int
    digest: str = "numbers"

    @property
    def num_examples(self):
        return self.num_rows

    def gather(self, rows, visit=None):
        epochs = np.zeros(len(rows)) if visit is None else visit.epochs + 1
        return {"number": rows.astype(np.int32), "epoch": epochs.astype(np.int32)}


@dataclasses.dataclass(frozen=True)
class Counting(DataNode):
    """A data node of the user's own."""

    count: int
    tokens_per_row = 1

    def __str__(self):
        return f"{self.count} numbers"

    @property
    def rows(self):
        return Numbers(self.count)

    def batch_spec(self, global_batch_size):
        return spec(global_batch_size, number=((), np.int32), epoch=((), np.int32))

    def describe(self):
        return {"rows": self.count}


def test_a_node_of_ones_own_has_iterator_and_batches():
    node = Counting(5)
    assert node.batch_spec(4)["number"] == ((4,), np.dtype(np.int32))
    iterator = node.iterator(global_batch_size=5, seed=1)
    first, second = next(iterator), next(iterator)
    assert sorted(first["number"]) == sorted(second["number"]) == [0, 1, 2, 3, 4]
    assert first["epoch"].tolist() == [1] * 5
    assert second["epoch"].tolist() == [2] * 5
    order, _ = node.order(seed=1, global_batch_size=5)(np.arange(5))
    np.testing.assert_array_equal(first["number"], order)
    batches = list(node.batches(global_batch_size=4))
    assert np.concatenate([batch["number"] for batch in batches]).tolist() == [
        *range(5),
        *[-1] * 3,
    ]
    assert not any(batch["epoch"].any() for batch in batches)


def test_rows_of_ones_own_that_are_a_list_are_refused_by_name():
    class Listed(Counting):
        @property
        def rows(self):
            return [{"number": 1}]

    message = "Listed.rows is a list, not luthier.data.Rows; give it num_rows, num_examples, digest"
    with pytest.raises(DataError, match=message):
        Listed(5).iterator(global_batch_size=1, seed=0)


def test_rows_of_ones_own_without_a_digest_are_refused_by_name():
    class Unknown:
        num_rows = num_examples = 5

        def gather(self, rows, visit=None):
            return {"number": rows}

    class Unsigned(Counting):
        @property
        def rows(self):
            return Unknown()

    message = "Unsigned.rows is a Unknown, not luthier.data.Rows; give it digest"
    with pytest.raises(DataError, match=message):
        Unsigned(5).iterator(global_batch_size=1, seed=0)


def test_too_few_rows():
    with pytest.raises(DataError, match="5 numbers, too few for a batch of 6 rows"):
        Counting(5).iterator(global_batch_size=6, seed=0)


def test_the_settings_of_all_nodes_stand_last():
    names = [field.name for field in dataclasses.fields(Packed)]
    assert set(names) == {
        "source", "tokenizer", "length", "packing", "num_threads", "prefetch_batches"
    }  # fmt: skip
    node = Packed(Documents(["abc"]), Bytes(), 4, Concatenate(), num_threads=0)
    assert (node.length, node.num_threads, node.prefetch_batches) == (4, 0, 4)
    assert set(Packed.RANGES) == {"length", "num_threads", "prefetch_batches"}


def test_the_default_order():
    assert Counting(5).order(seed=3, global_batch_size=1) == Shuffled(5, 3)
