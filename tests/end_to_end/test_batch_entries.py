"""What data nodes give is what tasks read: the same entries, with as many axes."""

from __future__ import annotations

import numpy as np
import pytest

from luthier import data, tasks
from luthier.contrib import series

TEXT = data.Packed(data.Documents(["to be"]), data.Bytes(), 8, data.FirstFit())


@pytest.mark.parametrize(
    ("task", "node"),
    [
        (lambda: tasks.LanguageModelling(), TEXT),
        (
            lambda: tasks.Classification(),
            data.Classification(data.Arrays(np.zeros((4, 3, 3, 1)), [0, 1, 0, 1])),
        ),
        (lambda: series.Forecasting(), series.ForecastWindows(series.Seasons(99), 8, 4)),
        (
            lambda: tasks.SequenceToSequence(),
            data.SequencePairs(data.Translation(4), data.Bytes(), 96, 80, data.PackPairs()),
        ),
        (
            lambda: tasks.Preferences(),
            data.Preferences(data.Arithmetic(4), data.Bytes(), 16),
        ),
        (
            lambda: tasks.Preferences(reference=tasks.PrecomputedReference()),
            data.WithArrays(
                data.Preferences(data.Arithmetic(4), data.Bytes(), 16),
                "reference.npz",
                ("chosen_log_probabilities", "rejected_log_probabilities"),
            ),
        ),
    ],
    ids=[
        "language",
        "classification",
        "forecasting",
        "sequence to sequence",
        "preferences",
        "precomputed",
    ],
)
def test_entries(task, node):
    axes, given = task().batch_axes, node.batch_spec(4)
    assert set(axes) == set(given)
    assert {name: len(names) for name, names in axes.items()} == {
        name: len(shape) for name, (shape, _) in given.items()
    }
