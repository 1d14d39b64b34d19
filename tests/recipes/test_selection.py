import fiddle as fdl

from luthier import graph as graphs
from luthier import layers
from luthier.recipes import decoders
from luthier.recipes.selection import is_experiment, is_selected


class Marked(fdl.Tag):
    """Marks a place."""


def test_places_are_selected_by_path_class_and_tag():
    model = decoders.gpt2(vocab_size=11, max_length=8, dim=8, num_layers=2, num_heads=2)
    fdl.add_tag(model.block.mlp, "down", Marked)
    places = {place.path: place for place in graphs.walk(model)}
    up, down = places["block.mlp.up"], places["block.mlp.down"]
    assert is_selected(up, r"mlp\.up$")
    assert not is_selected(down, r"mlp\.up$")
    assert is_selected(up, layers.Mlp)
    assert not is_selected(up, layers.Attention)
    assert is_selected(down, Marked)
    assert not is_selected(up, Marked)


def test_experiments_and_models_are_distinguished():
    experiment = graphs.resolve("configs.lm.quickstart")
    assert is_experiment(experiment)
    assert not is_experiment(experiment.model)
