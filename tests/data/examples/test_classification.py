import numpy as np
import pytest

from luthier.data import Arrays, Classification, Mixture, Noise, Shift, Stage, Standardize
from luthier.errors import DataError

INPUTS = np.random.default_rng(0).random((21, 4, 3)).astype(np.float32)
LABELS = np.arange(21) % 3


def node(**settings):
    return Classification(Arrays(INPUTS, LABELS, 3), num_threads=0, **settings)


def test_batches_are_what_the_spec_says():
    data = node(augmentations=[Noise(0.1)])
    expected = data.batch_spec(8)
    assert expected["inputs"] == ((8, 4, 3), np.dtype(np.float32))
    for batch in (
        next(data.iterator(global_batch_size=8, seed=0)),
        *data.batches(global_batch_size=8),
    ):
        assert {name: (a.shape, a.dtype) for name, a in batch.items()} == expected


@pytest.mark.parametrize("process_count", [1, 2, 4])
def test_evaluation_sees_every_example_once_and_unchanged(process_count):
    data = node(augmentations=[Noise(0.1), Shift(1)])
    shards = [
        list(data.batches(global_batch_size=8, process_index=i, process_count=process_count))
        for i in range(process_count)
    ]
    whole = {
        name: np.concatenate([s[step][name] for step in range(3) for s in shards])
        for name in data.batch_spec(1)
    }
    np.testing.assert_array_equal(whole["inputs"][:21], INPUTS)
    np.testing.assert_array_equal(whole["labels"][:21], LABELS)
    np.testing.assert_array_equal(whole["examples"], [*range(1, 22), 0, 0, 0])
    np.testing.assert_array_equal(whole["weights"], [1] * 21 + [0] * 3)
    assert not whole["inputs"][21:].any()


def test_transforms_are_always_applied():
    data = node(transforms=[Standardize(0.5, 2.0)])
    (batch,) = data.batches(global_batch_size=21)
    np.testing.assert_allclose(batch["inputs"], (INPUTS - 0.5) / 2, rtol=1e-5, atol=1e-6)


def test_augmentation_is_a_function_of_example_epoch_and_seed():
    data = node(augmentations=[Noise(1.0)])

    def seen(seed, size, steps, **host):
        iterator = data.iterator(global_batch_size=size, seed=seed, **host)
        found = {}
        for step in range(steps):
            batch = next(iterator)
            for place, example in enumerate(batch["examples"]):
                found[int(example), step * size // 21] = batch["inputs"][place]
        return found

    first, again, other = seen(1, 21, 2), seen(1, 7, 6), seen(2, 21, 2)
    assert first.keys() == again.keys()
    for key, values in first.items():
        np.testing.assert_array_equal(values, again[key])
        assert not np.array_equal(values, other[key])
    assert not np.array_equal(first[1, 0], first[1, 1])


def test_in_a_mixture_components_are_augmented_apart():
    parts = {"a": node(augmentations=[Noise(1.0)]), "b": node(augmentations=[Noise(1.0)])}
    data = Mixture(parts, [Stage({"a": 1, "b": 1})], num_threads=0)
    batch = next(data.iterator(global_batch_size=42, seed=0))
    assert sorted(batch["examples"]) == list(range(1, 43))
    found = dict(zip(batch["examples"].tolist(), batch["inputs"], strict=True))
    assert not np.array_equal(found[1], found[22])


def test_digest_and_describe():
    digests = {node().rows.digest, node(augmentations=[Noise(1.0)]).rows.digest}
    assert len(digests | {node(transforms=[Standardize(0, 1)]).rows.digest}) == 3
    assert node().describe() == {
        "rows": 21,
        "shape": [4, 3],
        "num_classes": 3,
        "counts": [7, 7, 7],
    }
    assert node().num_classes == 3
    with pytest.raises(DataError, match="has 21 examples, too few for a batch of 22"):
        node().iterator(global_batch_size=22, seed=0)
