import json
from pathlib import Path

import numpy as np
import pytest

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.recipes import encoders
from luthier.recipes.foreign import config_of, differences, essence, model_of

GOLDENS = Path(__file__).parents[2] / "models" / "goldens"
SIZES = {"dim": 32, "num_layers": 2, "num_heads": 4, "hidden_dim": 48, "num_classes": 7}


def golden():
    with np.load(GOLDENS / "vit.npz") as file:
        return json.loads(str(file["config"]))


def proven():
    model = encoders.vit(**SIZES, image_size=(8, 12), patch_size=(4, 4))
    return graphs.apply(model, ["block.norm.epsilon=1e-12"])


def test_a_config_of_others_gives_the_model_that_has_their_logits():
    config = golden()
    model = model_of(config)
    assert differences(essence(model), essence(proven())) == []
    family, written = config_of(model)
    assert family == "vit"
    assert {key: config[key] for key in written} == written


def test_every_setting_comes_back():
    changes = {
        "hidden_act": "gelu_new",
        "layer_norm_eps": 1e-6,
        "image_size": 12,
        "patch_size": [3, 4],
        "num_channels": 1,
        "hidden_dropout_prob": 0.1,
        "attention_probs_dropout_prob": 0.2,
    }
    written = config_of(model_of(golden() | changes))[1]
    assert {key: written[key] for key in changes} == changes


def test_without_biases_of_queries_it_is_refused():
    with pytest.raises(BadInput, match="qkv_bias to False"):
        model_of(golden() | {"qkv_bias": False})


def test_the_mean_over_patches_is_of_no_family():
    with pytest.raises(BadInput, match="is of no family"):
        config_of(encoders.vit_mean(**SIZES))
