"""Encoders against an independent implementation; tools/goldens/make_encoders.py made the files."""

import importlib.util
from pathlib import Path

import jax
import numpy as np
import pytest

from luthier.checkpoint.foreign import families
from luthier.recipes import encoders
from tests.torch_file import read_torch_file

SIZES = {"vocab_size": 61, "dim": 32, "num_layers": 2, "num_heads": 4, "hidden_dim": 48}
KINDS = {
    "bert": (encoders.bert(**SIZES, max_length=40), families.named("bert")),
    "albert": (encoders.albert(**SIZES, max_length=40, embed_dim=16), families.named("albert")),
}
REAL = "rxnmapper"


@jax.jit
def run(model, arrays):
    described = {"segments_BL": arrays["attention_mask"], "types_BL": arrays.get("token_type_ids")}
    hidden = model.hidden(arrays["input_ids"], **described)
    return model.logits(hidden), model.pooled(hidden, segments_BL=arrays["attention_mask"])


def compare(found, arrays, tolerance):
    (logits, pooled), real = found, arrays["attention_mask"] != 0
    assert real.sum() < real.size, "a row must be padded"
    close = {"rtol": tolerance, "atol": tolerance}
    np.testing.assert_allclose(logits[real], arrays["logits"][real], **close)
    np.testing.assert_allclose(pooled, arrays["pooled"], **close)
    assert np.isfinite(logits).all()


@pytest.mark.parametrize("name", KINDS)
def test_logits_and_pooled_vectors(name, foreign_golden):
    model, arrays, _ = foreign_golden(name, *KINDS[name])
    compare(run(model, arrays), arrays, 1e-5)


def test_real_weights(foreign_golden):
    """The ALBERT of a package that maps atoms of reactions: `pip install --no-deps rxnmapper`."""
    spec = importlib.util.find_spec(REAL)
    if spec is None or spec.origin is None:
        pytest.skip(f"no package {REAL}: pip install --no-deps {REAL}==0.4.3")
    files = Path(spec.origin).parent.glob("models/transformers/albert_*/pytorch_model.bin")
    (weights,) = files
    tensors = read_torch_file(weights)
    ties = {
        "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
        "predictions.decoder.bias": "predictions.bias",
    }
    for copy, original in ties.items():
        assert (tensors.pop(copy) == tensors[original]).all()
    recipe = encoders.albert(
        vocab_size=591,
        dim=256,
        num_layers=12,
        num_heads=8,
        hidden_dim=512,
        activation=KINDS["bert"][0].head.activation,
    )
    model, arrays, config = foreign_golden(REAL, recipe, families.named("albert"), tensors)
    assert config["hidden_act"] == "gelu"
    compare(run(model, arrays), arrays, 1e-4)
