import numpy as np
import pytest

from luthier.data import Cutout, Draws, Flip, Noise, Scale, Shift, Standardize, Visit

IMAGES = np.random.default_rng(0).random((200, 6, 5, 2)).astype(np.float32) + 1
SERIES = np.random.default_rng(1).random((200, 9, 2)).astype(np.float32) + 1
ALL = [Flip(0.5), Shift(2), Cutout(3), Noise(0.1), Scale(0.5, 2.0)]


def draws(examples, epoch=0):
    return Draws(examples, Visit(np.full(len(examples), epoch), 3))


@pytest.mark.parametrize("inputs", [IMAGES, SERIES], ids=["images", "series"])
@pytest.mark.parametrize("augmentation", ALL, ids=repr)
def test_what_is_drawn_depends_on_example_and_epoch_alone(augmentation, inputs):
    numbers = np.arange(200)
    whole = augmentation(inputs, draws(numbers))
    assert whole.shape == inputs.shape
    assert whole.dtype == np.float32
    some = np.array([17, 3, 199])
    np.testing.assert_array_equal(augmentation(inputs[some], draws(some)), whole[some])
    assert not np.array_equal(whole, inputs)
    assert not np.array_equal(augmentation(inputs, draws(numbers, 1)), whole)


def test_standardize():
    np.testing.assert_allclose(Standardize(2.0, 4.0)(IMAGES), (IMAGES - 2) / 4, rtol=1e-6)


def test_flip():
    found = Flip(0.25)(IMAGES, draws(np.arange(200)))
    mirrored = [np.array_equal(a, b[:, ::-1]) for a, b in zip(found, IMAGES, strict=True)]
    same = [np.array_equal(a, b) for a, b in zip(found, IMAGES, strict=True)]
    assert sum(mirrored) + sum(same) == 200
    assert 30 <= sum(mirrored) <= 70


def test_shift():
    found = Shift(1)(IMAGES, draws(np.arange(200)))
    seen = set()
    padded = np.pad(IMAGES, ((0, 0), (1, 1), (1, 1), (0, 0)))
    for number in range(200):
        moves = [
            (down, right)
            for down in (-1, 0, 1)
            for right in (-1, 0, 1)
            if np.array_equal(
                found[number], padded[number, 1 - down : 7 - down, 1 - right : 6 - right]
            )
        ]
        assert len(moves) == 1
        seen.update(moves)
    assert len(seen) == 9


def test_cutout():
    found = Cutout(3)(SERIES, draws(np.arange(200)))
    for number in range(200):
        gone = np.flatnonzero((found[number] == 0).all(axis=-1))
        assert len(gone) in (2, 3)
        assert np.all(np.diff(gone) == 1)
        kept = np.setdiff1d(np.arange(9), gone)
        np.testing.assert_array_equal(found[number, kept], SERIES[number, kept])


def test_noise_and_scale():
    noise = Noise(0.5)(IMAGES, draws(np.arange(200))) - IMAGES
    assert noise.std() == pytest.approx(0.5, rel=0.03)
    factors = Scale(0.5, 2.0)(IMAGES, draws(np.arange(200))) / IMAGES
    assert np.ptp(factors.reshape(200, -1), axis=1).max() < 1e-5
    assert 0.5 <= factors.min() < 0.6
    assert 1.9 < factors.max() <= 2.0
