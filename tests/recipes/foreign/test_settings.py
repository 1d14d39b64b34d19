import fiddle as fdl
import pytest

from luthier import layers
from luthier.errors import BadInput
from luthier.recipes.foreign import Settings
from luthier.recipes.foreign.settings import is_tied, rope_parameters, value_at


def test_all_missing_or_unknown_settings_are_reported_at_once():
    settings = Settings({"a": None, "b": "text", "c": 3})
    assert settings.need("a") == settings.need("b") == 1
    assert settings.need("c") == 3
    settings.only("d", (True,), False)
    with pytest.raises(BadInput) as caught:
        settings.raise_any()
    assert len(caught.value.problems) == 3


@pytest.mark.parametrize(
    "scaling",
    [
        None,
        fdl.Config(layers.LinearScaling, factor=3.0),
        fdl.Config(
            layers.Llama3Scaling,
            factor=8.0,
            low_frequency_factor=1.0,
            high_frequency_factor=4.0,
            original_length=64,
        ),
    ],
)
def test_rotations_come_back(scaling):
    rotary = fdl.Config(layers.Rotary, base=700.0, scaling=scaling)
    base, found = Settings({"rope_parameters": rope_parameters(rotary)}).rotary()
    assert base == 700.0
    assert found == scaling


def test_kinds_of_layers_have_their_own_rotation():
    both = {"sliding_attention": {"rope_theta": 1.0}, "full_attention": {"rope_theta": 2.0}}
    settings = Settings({"rope_parameters": both})
    assert settings.rotary("sliding_attention") == (1.0, None)
    assert settings.rotary("full_attention") == (2.0, None)
    old = Settings({"rope_theta": 2.0, "rope_local_base_freq": 1.0})
    assert old.rotary("sliding_attention", 5.0) == (1.0, None)
    assert old.rotary("full_attention", 5.0) == (2.0, None)


def test_paths_that_are_not_there_have_a_default(families):
    model = families["llama"](vocab_size=11, width=2, depth=1, tied=True, pad=1)
    assert value_at(model, "block.attention.num_heads") == 4
    assert value_at(model, "block.nothing", 5) == 5
    assert value_at(None, "base", 5) == 5
    assert is_tied(model)
