from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from luthier.data import Table
from luthier.errors import DataError


@dataclasses.dataclass(frozen=True)
class Sets(Table):
    """Points with a mask, and a target that is a number; `changes` replaces arrays."""

    num_sets: int = 21
    changes: tuple = ()

    @property
    def entries(self):
        return {
            "points": ((5, 2), np.float32),
            "mask": ((5,), np.bool_),
            "targets": ((), np.float32),
        }

    def read(self):
        rng = np.random.default_rng(0)
        points = rng.normal(size=(self.num_sets, 5, 2))
        mask = np.arange(5) < rng.integers(1, 6, self.num_sets)[:, None]
        targets = (points.sum(-1) * mask).sum(-1)
        return {"points": points, "mask": mask, "targets": targets, **dict(self.changes)}


def test_batches_are_what_the_spec_says_and_hold_every_example_once():
    data = Sets(num_threads=0)
    batches = list(data.batches(global_batch_size=8))
    for batch in (*batches, next(data.iterator(global_batch_size=8, seed=0))):
        assert {name: (a.shape, a.dtype) for name, a in batch.items()} == data.batch_spec(8)
    whole = {name: np.concatenate([batch[name] for batch in batches]) for name in batches[0]}
    read = data.read()
    for name in data.entries:
        np.testing.assert_array_equal(whole[name][:21], read[name].astype(whole[name].dtype))
        assert not whole[name][21:].any()
    assert whole["examples"].tolist() == [*range(1, 22), 0, 0, 0]
    assert whole["weights"].tolist() == [1.0] * 21 + [0.0] * 3
    shapes = {"points": [5, 2], "mask": [5], "targets": []}
    assert data.describe() == {"rows": 21, "shapes": shapes}


def test_training_draws_rows_in_the_order_of_the_node():
    data = Sets(num_threads=0)
    batch = next(data.iterator(global_batch_size=8, seed=3))
    order, _ = data.order(seed=3, global_batch_size=8)(np.arange(8))
    assert (batch["examples"] - 1).tolist() == order.tolist()
    np.testing.assert_array_equal(batch["mask"], data.read()["mask"][order])


def test_weights_of_its_own_are_kept():
    class Weighted(Sets):
        @property
        def entries(self):
            return {**super().entries, "weights": ((), np.float32)}

    weights = np.linspace(0.5, 1.5, 21)
    data = Weighted(changes=(("weights", weights),), num_threads=0)
    found = np.concatenate([b["weights"] for b in data.batches(global_batch_size=8)])
    np.testing.assert_array_equal(found, [*weights.astype(np.float32), 0, 0, 0])


def test_the_digest_depends_on_all_arrays():
    digests = {Sets(num_sets=n).rows.digest for n in (20, 21)}
    digests.add(Sets(changes=(("targets", np.zeros(21)),)).rows.digest)
    assert len(digests) == 3
    assert Sets().rows.digest == Sets().rows.digest


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"mask": np.zeros((21, 4), bool)}, r"Sets.read returns bool\[21,4\] for mask, not bool\["),
        ({"mask": np.full((21, 5), 0.5)}, r"float64\[21,5\] for mask, not bool\[examples,5\]"),
        ({"targets": np.float32(1)}, r"float32\[\] for targets, not float32\[examples\]"),
        ({"targets": np.zeros(20)}, "Sets.read returns 21 of points, 21 of mask, 20 of targets"),
        ({"angles": np.zeros(21)}, "returns points, mask, targets, angles, and `entries` has"),
    ],
)
def test_arrays_that_are_not_as_declared_are_refused(changes, message):
    with pytest.raises(DataError, match=message):
        Sets(changes=tuple(changes.items())).rows  # noqa: B018


def test_too_few_examples():
    with pytest.raises(DataError, match="returns 0 of points, 0 of mask, 0 of targets"):
        Sets(num_sets=0).iterator(global_batch_size=1, seed=0)
    with pytest.raises(DataError, match="Sets has 5 examples, too few for a batch of 8 rows"):
        Sets(num_sets=5).iterator(global_batch_size=8, seed=0)
