import pytest

from luthier.data import (
    Bytes,
    Decoded,
    Documents,
    JsonObject,
    OnePair,
    PackPairs,
    PairFields,
    SentencePiece,
    SequencePairs,
    Skip,
    Translation,
)
from luthier.errors import DataError


def node(packing=None, source=None, **settings):
    settings = {"input_length": 96, "target_length": 80, "num_threads": 0, **settings}
    return SequencePairs(
        source or Translation(30), Bytes(), packing=packing or PackPairs(), **settings
    )


def pairs_of(batches):
    """Source and target tokens of every pair, by its number."""
    found = {}
    for batch in batches:
        for row in range(len(batch["inputs"])):
            for segment in range(1, batch["segments"][row].max() + 1):
                here = batch["segments"][row] == segment
                there = batch["input_segments"][row] == segment
                (number,) = set(batch["documents"][row][here])
                assert number not in found
                found[int(number)] = (
                    batch["inputs"][row][there].tolist(),
                    batch["targets"][row][here].tolist(),
                )
                targets = batch["targets"][row][here]
                inputs = batch["decoder_inputs"][row][here]
                assert inputs.tolist() == [256, *targets[:-1]]
                assert batch["positions"][row][here].tolist() == list(range(here.sum()))
                assert batch["input_positions"][row][there].tolist() == list(range(there.sum()))
    return found


@pytest.mark.parametrize("packing", [PackPairs(), OnePair()], ids=repr)
def test_every_pair_is_seen_once(packing):
    data = node(packing)
    batches = list(data.batches(global_batch_size=4))
    found = pairs_of(batches)
    for index in range(30):
        source, target = Translation(30)[index]
        assert found[index + 1] == ([*source, 257], [*target, 257])
    total = sum(len(Translation(30)[index][1]) for index in range(30))
    assert sum(int(batch["target_bytes"].sum()) for batch in batches) == total
    assert sum(batch["weights"].sum() for batch in batches) == total + 30
    for batch in batches:
        padding = batch["segments"] == 0
        names = ("decoder_inputs", "targets", "positions", "documents", "target_bytes", "weights")
        assert not any(batch[name][padding].any() for name in names)


def test_packing_saves_rows():
    packed, single = node(PackPairs()).describe(), node(OnePair()).describe()
    assert packed["rows"] < single["rows"] == 30
    assert packed["targets"] == single["targets"]
    assert packed["fill"] > single["fill"]


def test_batches_are_what_the_spec_says():
    data = node()
    expected = data.batch_spec(4)
    assert expected["inputs"][0] == (4, 96)
    assert expected["targets"][0] == (4, 80)
    batches = [next(data.iterator(global_batch_size=4, seed=0)), *data.batches(global_batch_size=4)]
    for batch in batches:
        assert {name: (a.shape, a.dtype) for name, a in batch.items()} == expected
    assert pairs_of(batches[1:]).keys() == set(range(1, 31))


def test_pairs_without_room():
    with pytest.raises(
        DataError, match=r"pair 1: \d+ input tokens and \d+ targets do not fit into"
    ):
        node(input_length=20).num_rows  # noqa: B018
    data = node(target_length=20, too_long=Skip())
    described = data.describe()
    lengths = [len(Translation(30)[index][1]) + 1 for index in range(30)]
    assert described["too_long"] == sum(length > 20 for length in lengths) > 0
    assert described["pairs"] == 30 - described["too_long"]


def test_a_space_in_front_is_not_counted(tmp_path):
    pytest.importorskip("sentencepiece")
    from tests.data.tokenizers.test_sentence_piece import train

    tokenizer = SentencePiece(train(tmp_path / "x.model"))
    records = Decoded(Documents(['{"source": "to be", "target": "or not"}']), JsonObject())
    data = SequencePairs(PairFields(records), tokenizer, 16, 16, OnePair())
    (batch,) = data.batches(global_batch_size=1)
    assert batch["target_bytes"].sum() == 6


def test_different_data_has_different_digests():
    digests = {
        node().rows.digest,
        node(OnePair()).rows.digest,
        node(source=Translation(30, seed=1)).rows.digest,
        node(target_length=81).rows.digest,
    }
    assert len(digests) == 4
    assert node().rows.digest in digests
