import numpy as np
import pytest

from luthier.data import (
    Bytes,
    Documents,
    Packed,
    Prepared,
    ShiftLeft,
    ShiftRight,
    SplitTokens,
    Visit,
    plan_layout,
    prepare,
    survey,
)

TEXTS = [f"document {number} " * (number % 9) for number in range(60)] + ["naïve", b"\xff"]
PACKING = SplitTokens(ShiftLeft(end=257), documents_per_group=7)


@pytest.fixture(scope="module")
def nodes(tmp_path_factory):
    source, directory = Documents(TEXTS), str(tmp_path_factory.mktemp("shards") / "p")
    prepare(source, Bytes(), directory, plan_layout(source, Bytes(), survey(source, Bytes()), 5))
    return Packed(source, Bytes(), 16, PACKING), Prepared(directory, 16, PACKING)


def test_batches_are_what_the_spec_says(nodes):
    for node in nodes:
        for batch in (
            next(node.iterator(global_batch_size=8, seed=0)),
            *node.batches(global_batch_size=8),
        ):
            found = {name: (array.shape, array.dtype) for name, array in batch.items()}
            assert found == node.batch_spec(8)


def test_prepared_shards_give_the_rows_of_the_text(nodes):
    packed, prepared = (node.rows.gather(np.arange(node.num_rows)) for node in nodes)
    for name, entry in packed.items():
        np.testing.assert_array_equal(entry, prepared[name])
    assert nodes[0].rows.digest != nodes[1].rows.digest
    text = "".join(t if isinstance(t, str) else "\udcff" for t in TEXTS)
    tokens = packed["inputs"][packed["segments"] > 0]
    assert bytes(tokens.tolist()) == text.encode("utf-8", "surrogateescape")


def test_describe_counts_the_targets(nodes):
    batch = nodes[0].rows.gather(np.arange(nodes[0].num_rows))
    for node in nodes:
        described = node.describe()
        assert described["targets"] == batch["weights"].sum()
        assert described["fill"] == pytest.approx(batch["weights"].mean())
        assert described["bytes_per_token"] == 1


def test_rows_do_not_change_with_the_epoch_but_with_the_shift(nodes):
    rows = nodes[0].rows
    visit = Visit(np.array([3, 3]), 1)
    first, again = rows.gather(np.array([0, 1])), rows.gather(np.array([0, 1]), visit)
    for name, entry in first.items():
        np.testing.assert_array_equal(entry, again[name])
    right = Packed(Documents(TEXTS), Bytes(), 16, SplitTokens(ShiftRight(), 7)).rows
    assert right.num_targets == rows.num_targets + rows.num_rows
    assert right.digest != rows.digest
