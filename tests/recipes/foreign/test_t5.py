import json
from pathlib import Path

import numpy as np
import pytest

from luthier.errors import BadInput
from luthier.recipes import encoders
from luthier.recipes.foreign import config_of, differences, essence, model_of

GOLDENS = Path(__file__).parents[2] / "models" / "goldens"
SIZES = {
    "vocab_size": 61,
    "dim": 24,
    "num_layers": 2,
    "num_heads": 4,
    "head_dim": 8,
    "hidden_dim": 32,
    "num_buckets": 12,
    "max_distance": 20,
}
PROVEN = {"t5": encoders.t5(**SIZES), "t5_gated": encoders.t5_gated(**SIZES)}


def golden(name):
    with np.load(GOLDENS / f"{name}.npz") as file:
        config = json.loads(str(file["config"]))
    # The golden's head repeats the embedding; the published weights of version 1.1 have their own.
    return config | ({"tie_word_embeddings": False} if name == "t5_gated" else {})


@pytest.mark.full
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
        "num_decoder_layers": 3,
        "layer_norm_epsilon": 1e-5,
        "dropout_rate": 0.2,
        "relative_attention_num_buckets": 8,
        "d_kv": 6,
    }
    activations = {"t5": "gelu_new", "t5_gated": "gated-silu"}
    for name, activation in activations.items():
        changed = changes | {"feed_forward_proj": activation}
        family, written = config_of(model_of(golden(name) | changed))
        assert family == name
        assert {key: written[key] for key in changed} == changed


def test_tied_logits_of_version_1_1_are_refused_where_they_are_scaled():
    tied = {"tie_word_embeddings": True, "scale_decoder_outputs": True}
    with pytest.raises(BadInput, match="tie_word_embeddings to True"):
        model_of(golden("t5_gated") | tied)
    # As transformers 5 writes a head that is not tied.
    written = golden("t5_gated") | {"tie_word_embeddings": True, "scale_decoder_outputs": False}
    assert model_of(written) == model_of(golden("t5_gated"))


def test_an_unknown_nonlinearity_is_refused():
    with pytest.raises(BadInput, match="sets feed_forward_proj to 'mish'"):
        model_of(golden("t5_gated") | {"feed_forward_proj": "gated-mish"})
