import json
from pathlib import Path

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.recipes import encoders
from luthier.recipes.foreign import config_of, differences, essence, model_of

GOLDENS = Path(__file__).parents[2] / "models" / "goldens"
SIZES = {"vocab_size": 61, "dim": 32, "num_layers": 2, "num_heads": 4, "hidden_dim": 48}
# The models that have the logits of others: tests/models/test_encoder_goldens.py.
PROVEN = {
    "bert": encoders.bert(**SIZES, max_length=40),
    "albert": encoders.albert(**SIZES, max_length=40, embed_dim=16),
}


def golden(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        return json.loads(str(file["config"]))


@pytest.mark.parametrize("name", PROVEN)
def test_a_config_of_others_gives_the_model_that_has_their_logits(name):
    config = golden(name)
    model = model_of(config)
    assert differences(essence(model), essence(PROVEN[name])) == []
    family, written = config_of(model)
    assert family == name
    assert {key: config[key] for key in written} == written


def test_every_setting_comes_back():
    changes = {
        "hidden_act": "relu",
        "layer_norm_eps": 1e-5,
        "initializer_range": 0.03,
        "hidden_dropout_prob": 0.2,
        "attention_probs_dropout_prob": 0.3,
        "type_vocab_size": 3,
        "max_position_embeddings": 17,
    }
    for name in PROVEN:
        written = config_of(model_of(golden(name) | changes))[1]
        assert {key: written[key] for key in changes} == changes


def test_groups_of_layers_count():
    found = config_of(encoders.albert(**SIZES, embed_dim=16, num_groups=2))
    assert (found[0], found[1]["num_hidden_groups"]) == ("albert", 2)
    with pytest.raises(BadInput, match=r"model\.stack"):
        config_of(graphs.apply(PROVEN["albert"], ["stack=luthier.layers.Scanned()"]), "albert")


def test_a_model_without_pooler_is_of_the_family_still():
    for name, model in PROVEN.items():
        assert config_of(graphs.apply(model, ["pooler=None"]))[0] == name


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_act": "gelu_fast"}, "sets hidden_act to 'gelu_fast'"),
        ({"position_embedding_type": "relative_key"}, "position_embedding_type"),
        ({"is_decoder": True}, "sets is_decoder to True"),
        ({"tie_word_embeddings": False}, "tie_word_embeddings"),
    ],
)
def test_what_our_models_cannot_do_is_refused(change, message):
    with pytest.raises(BadInput, match=message):
        model_of(golden("bert") | change)


def test_another_activation_has_no_name():
    model = graphs.apply(PROVEN["bert"], ["block.mlp.activation:=jax.nn.hard_tanh"])
    with pytest.raises(BadInput, match="is of no family"):
        config_of(model)
    assert model.block.mlp.activation is jax.nn.hard_tanh
