import fiddle as fdl
import pytest

from luthier import tasks
from luthier.recipes.encoders import (
    albert,
    albert_base,
    albert_large,
    albert_xlarge,
    albert_xxlarge,
)

TINY = {"vocab_size": 62, "max_length": 24, "embed_dim": 8, "dim": 16, "num_heads": 4}

# As counted in the published weights with the head for masked tokens.
PUBLISHED = [
    (albert_base, 11_812_272),
    (albert_large, 17_845_424),
    (albert_xlarge, 59_017_392),
    (albert_xxlarge, 223_150_256),
]


@pytest.mark.parametrize(("recipe", "expected"), PUBLISHED)
def test_number_of_parameters(recipe, expected, num_parameters):
    assert num_parameters(recipe()) == expected


@pytest.mark.full
def test_depth_costs_no_parameters(num_parameters):
    sizes = {**TINY, "hidden_dim": 24}
    one, many = (num_parameters(albert(**sizes, num_layers=n)) for n in (1, 12))
    assert one == many
    assert num_parameters(albert(**sizes, num_layers=12, num_groups=3)) > many


@pytest.mark.slow
def test_trains(assert_trains, text_batch):
    task = fdl.Config(tasks.MaskedModelling, mask_token=61, vocab_size=62, rate=0.3)
    model = albert(**TINY, hidden_dim=24, num_layers=4, num_groups=2, dropout=0.1)
    assert_trains(model, task, text_batch(24, 61))
