import json

import numpy as np
import pytest

from luthier.contrib.series import ForecastWindows, Seasons
from luthier.data import (
    Arithmetic,
    Arrays,
    Bytes,
    Classification,
    Concatenate,
    Documents,
    FirstFit,
    Mixture,
    OnePair,
    Packed,
    Preferences,
    SequencePairs,
    Stage,
    Translation,
)
from luthier.data.inspection import histogram, inspect, picture

TEXTS = [f"document {number} " * (1 + number % 5) for number in range(40)]
PACKED = Packed(Documents(TEXTS), Bytes(), 32, FirstFit())


def look(node, size=4, **settings):
    report = inspect(node, seed=0, global_batch_size=size, **settings)
    return json.loads(json.dumps(report))


def test_text():
    report = look(PACKED, num_batches=2, steps=100)
    assert len(report["batches"]) == 2
    first = next(PACKED.iterator(global_batch_size=4, seed=0))
    for row, shown in enumerate(report["batches"][0]):
        targets = first["targets"][row][first["segments"][row] > 0]
        assert shown["targets"] == Bytes().decode(targets)
        assert len(shown["segments"]) == 32
        assert shown["segments"].count(".") == (first["segments"][row] == 0).sum()
    assert sum(bin_["count"] for bin_ in report["lengths"]) == 40
    assert report["epochs"] == pytest.approx(400 / PACKED.num_rows)
    assert set(report["seconds"]) == {
        "reading", "tokenizing", "laying out rows", "first batches", "assembling one batch"
    }  # fmt: skip
    assert all(seconds >= 0 for seconds in report["seconds"].values())
    assert report["spec"]["weights"] == {"shape": [4, 32], "dtype": "float32"}


def test_a_mixture():
    other = Packed(Documents(TEXTS[:9]), Bytes(), 32, Concatenate())
    node = Mixture(
        {"a": PACKED, "b": other}, [Stage({"a": 3, "b": 1}), Stage({"b": 1}, start_step=50)]
    )
    found = {entry["name"]: entry for entry in look(node, steps=100)["mixture"]}
    assert found["a"]["planned"] == pytest.approx([0.75, 0.0])
    assert found["a"]["observed"] == pytest.approx([0.75, 0.0], abs=0.01)
    assert found["a"]["epochs"] == pytest.approx(150 / PACKED.num_rows)
    assert found["b"]["epochs"] == pytest.approx(250 / other.num_rows)


def test_a_mixture_that_ends_within_the_sample_of_a_stage_or_before_it_starts():
    other = Packed(Documents(TEXTS[:9]), Bytes(), 32, Concatenate())
    stages = [Stage({"a": 1, "b": 1}), Stage({"a": 1}, start_step=1000)]
    node = Mixture({"a": PACKED, "b": other}, stages, max_epochs={"a": 1, "b": 2})
    rows = {"a": PACKED.num_rows, "b": 2 * other.num_rows}
    found = {entry["name"]: entry for entry in look(node, steps=2000)["mixture"]}
    for name, count in rows.items():
        assert found[name]["observed"] == pytest.approx([count / sum(rows.values()), 0.0])
    assert [found[name]["epochs"] for name in rows] == [1, 2]


@pytest.mark.parametrize(
    ("node", "entries"),
    [
        (Classification(Arrays(np.zeros((9, 2, 1)), np.arange(9) % 2)), {"labels", "examples"}),
        (ForecastWindows(Seasons(200), 8, 4), {"examples"}),
        (SequencePairs(Translation(9), Bytes(), 96, 80, OnePair()),
         {"inputs", "targets", "segments"}),
        (Preferences(Arithmetic(9), Bytes(), 16),
         {"chosen_targets", "rejected_targets", "examples"}),
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_every_kind_of_node(node, entries):
    report = look(node)
    assert len(report["batches"][0]) == 4
    assert set(report["batches"][0][0]) == entries


def test_pairs_are_shown_as_text():
    shown = look(SequencePairs(Translation(9), Bytes(), 96, 80, OnePair()))["batches"][0][0]
    assert (shown["inputs"].encode(), shown["targets"].encode()) in [
        Translation(9)[index] for index in range(9)
    ]


def test_histogram():
    assert histogram(np.array([2, 3, 4, 7, 8, 100])) == [
        {"from": 2, "to": 3, "count": 2},
        {"from": 4, "to": 7, "count": 2},
        {"from": 8, "to": 15, "count": 1},
        {"from": 16, "to": 31, "count": 0},
        {"from": 32, "to": 63, "count": 0},
        {"from": 64, "to": 127, "count": 1},
    ]


def test_picture():
    assert picture(np.array([1, 1, 2, 53, 0])) == "AABA."
    assert len(picture(np.ones(1000, int))) == 64
