import fiddle as fdl
import numpy as np
import pytest

from luthier import tasks
from luthier.recipes import encoders
from luthier.recipes.encoders import vit, vit_mean

TINY = {
    "dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "hidden_dim": 24,
    "image_size": (4, 6),
    "patch_size": (2, 2),
    "num_channels": 1,
    "num_classes": 5,
}

# As counted in the published weights with heads for 1,000 classes.
PUBLISHED = {
    "vit_ti16": 5_717_416,
    "vit_s16": 22_050_664,
    "vit_b16": 86_567_656,
    "vit_l16": 304_326_632,
    "vit_h14": 632_045_800,
}


@pytest.mark.parametrize(("recipe", "expected"), PUBLISHED.items())
def test_number_of_parameters(recipe, expected, num_parameters):
    assert num_parameters(getattr(encoders, recipe)()) == expected


def test_the_mean_saves_the_token_and_its_position(num_parameters):
    assert num_parameters(vit(**TINY)) - num_parameters(vit_mean(**TINY)) == 2 * TINY["dim"]


@pytest.mark.parametrize("recipe", [vit, pytest.param(vit_mean, marks=pytest.mark.slow)])
def test_trains(recipe, assert_trains):
    rng = np.random.default_rng(0)
    batch = {
        "inputs": rng.standard_normal((8, 4, 6, 1)).astype(np.float32),
        "labels": rng.integers(0, 5, 8).astype(np.int32),
        "weights": np.array([1.0] * 7 + [0.0], np.float32),
        "examples": np.array([*range(1, 8), 0], np.int32),
    }
    assert_trains(recipe(**TINY, dropout=0.1), fdl.Config(tasks.Classification), batch)
