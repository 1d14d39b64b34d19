"""Make the golden files of encoders, encoder-decoders and vision transformers from `transformers`.

Tiny BERT, ALBERT, T5 and ViT models with random weights are run in float64 by PyTorch. The files
in tests/models/goldens hold their weights under their own names, their settings as JSON, the inputs
and what comes out. With the folder of the package `rxnmapper`, whose ALBERT has real weights, its
outputs are stored too, without the weights.

Needs torch and transformers, which luthier does not: run it in an environment of its own,

    pip install torch transformers && python tools/goldens/make_encoders.py
    pip download --no-deps rxnmapper && unzip rxnmapper*.whl -d UNPACKED
    python tools/goldens/make_encoders.py UNPACKED/rxnmapper
"""

from __future__ import annotations

import contextlib
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import (
    AlbertConfig,
    AlbertForMaskedLM,
    AlbertModel,
    BertConfig,
    BertForMaskedLM,
    BertModel,
    T5Config,
    T5ForConditionalGeneration,
    ViTConfig,
    ViTForImageClassification,
)
from transformers.models.t5.modeling_t5 import T5LayerNorm

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "models" / "goldens"
LAYERS, DIM, HEADS, HIDDEN, VOCAB, LENGTH, NEW = 2, 32, 4, 48, 61, 24, 8
ENCODER = {
    "num_hidden_layers": LAYERS,
    "hidden_size": DIM,
    "num_attention_heads": HEADS,
    "intermediate_size": HIDDEN,
    "vocab_size": VOCAB,
    "max_position_embeddings": 40,
    "attn_implementation": "eager",
}
REACTION = "[CLS] C C ( = O ) [MASK] C C . N >> C C ( = O ) N [SEP]"
MOLECULE = "[CLS] O = [MASK] ( O ) C [SEP]"


def randomize(model, small=(), factor=1.0):
    """Draw all weights, also those that start as ones; `small` ends the names of smaller ones."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator) * 0.3
        noise = noise * factor if name.endswith(small) else noise
        scale = weight.dim() == 1 and not name.endswith(("bias", "token"))
        weight.data = (noise + 1.0 if scale else noise).to(weight.dtype)
    return model.double().eval()


@contextlib.contextmanager
def all_in_float64():
    """Undo the steps in float32 that T5 takes whatever its type: norms and the softmax."""
    norm, narrow = T5LayerNorm.forward, torch.Tensor.float

    def forward(self, x):
        mean_square = x.pow(2).mean(-1, keepdim=True)
        return self.weight * x * torch.rsqrt(mean_square + self.variance_epsilon)

    T5LayerNorm.forward, torch.Tensor.float = forward, lambda self: self
    try:
        yield
    finally:
        T5LayerNorm.forward, torch.Tensor.float = norm, narrow


def ids(seed, *shape):
    """Draw token ids."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, VOCAB, shape, generator=generator)


def first(*lengths, of):
    """Return a mask [rows, of] of ones for the first tokens of each row."""
    return torch.tensor([[1] * n + [0] * (of - n) for n in lengths])


def written(model):
    """Return what the model writes to a file; its parameters may be named otherwise in memory."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def save(name, config, model, **arrays):
    """Write a golden file; weights go below `foreign/`, named as in the model's own files."""
    weights = {} if model is None else written(model)
    kinds = {torch.float64: np.float32, torch.float32: np.float32, torch.int64: np.int32}
    plain = {
        key: value.detach().numpy().astype(kinds[value.dtype]) for key, value in arrays.items()
    }
    foreign = {f"foreign/{key}": value.astype(np.float32) for key, value in weights.items()}
    settings = json.dumps(config.to_diff_dict(), sort_keys=True, default=str)
    np.savez_compressed(FOLDER / f"{name}.npz", config=np.array(settings), **plain, **foreign)


def make_masked(name, config, make, make_pooled):
    """Run a masked language model, and the pooler that such a model leaves out."""
    model = make(config)
    model.base_model.pooler = make_pooled(config).pooler
    if hasattr(model.base_model, "pooler_activation"):
        model.base_model.pooler_activation = torch.nn.Tanh()
    randomize(model)
    described = {
        "input_ids": ids(1, 2, LENGTH),
        "attention_mask": first(LENGTH, LENGTH - 7, of=LENGTH),
        "token_type_ids": 1 - first(9, 4, of=LENGTH),
    }
    with torch.no_grad():
        logits = model(**described).logits
        pooled = model.base_model(**described).pooler_output
    save(name, config, model, **described, logits=logits, pooled=pooled)


def make_t5(name, **settings):
    """Run an encoder-decoder, and continue greedily."""
    config = T5Config(
        d_model=24,
        d_kv=8,
        d_ff=32,
        num_layers=LAYERS,
        num_heads=HEADS,
        vocab_size=VOCAB,
        relative_attention_num_buckets=12,
        relative_attention_max_distance=20,
        pad_token_id=0,
        eos_token_id=None,
        decoder_start_token_id=0,
        **settings,
    )
    model = T5ForConditionalGeneration._from_config(config, attn_implementation="eager")
    if not settings.get("tie_word_embeddings", True):  # which this version ties all the same
        model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.clone())
    # Scores are not scaled: with larger queries, they amplify the last bits of float32.
    randomize(model, ("q.weight",), 1 / 8)
    described = {
        "input_ids": ids(1, 2, LENGTH),
        "attention_mask": first(LENGTH, LENGTH - 7, of=LENGTH),
    }
    decoder_input_ids = ids(2, 2, 17)
    with torch.no_grad(), all_in_float64():
        logits = model(**described, decoder_input_ids=decoder_input_ids).logits
        greedy = model.generate(
            **described, max_new_tokens=NEW, min_new_tokens=NEW, do_sample=False, num_beams=1
        )[:, 1:]
    outputs = {"decoder_input_ids": decoder_input_ids, "logits": logits, "greedy": greedy}
    save(name, config, model, **described, **outputs)


def make_vit():
    """Run a classifier of images that are not square."""
    settings = {
        k: v for k, v in ENCODER.items() if k not in ("vocab_size", "max_position_embeddings")
    }
    config = ViTConfig(image_size=(8, 12), patch_size=4, num_channels=3, num_labels=7, **settings)
    model = randomize(ViTForImageClassification(config))
    images = torch.randn((2, 3, 8, 12), generator=torch.Generator().manual_seed(1)).float()
    with torch.no_grad():
        logits = model(pixel_values=images.double()).logits
    save("vit", config, model, pixel_values=images, logits=logits)


def make_rxnmapper(package):
    """Run the model with real weights on a reaction and a molecule with masked atoms."""
    (folder,) = (package / "models" / "transformers").iterdir()
    vocabulary = (folder / "vocab.txt").read_text().split("\n")
    rows = [[vocabulary.index(token) for token in text.split()] for text in (REACTION, MOLECULE)]
    length = max(map(len, rows))
    inputs = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    mask = first(*map(len, rows), of=length)
    options = {"attn_implementation": "eager", "dtype": torch.float64}
    model = AlbertForMaskedLM.from_pretrained(folder, **options).eval()
    base = AlbertModel.from_pretrained(folder, **options).eval()
    with torch.no_grad():
        logits = model(input_ids=inputs, attention_mask=mask).logits
        pooled = base(input_ids=inputs, attention_mask=mask).pooler_output
    described = {"input_ids": inputs, "attention_mask": mask}
    save("rxnmapper", model.config, None, **described, logits=logits, pooled=pooled)


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    make_masked("bert", BertConfig(**ENCODER), BertForMaskedLM, BertModel)
    albert = AlbertConfig(**ENCODER, embedding_size=16, hidden_act="gelu_new", layer_norm_eps=1e-12)
    make_masked("albert", albert, AlbertForMaskedLM, AlbertModel)
    make_t5("t5", feed_forward_proj="relu")
    make_t5("t5_gated", feed_forward_proj="gated-gelu", tie_word_embeddings=False)
    make_vit()
    for argument in sys.argv[1:]:
        make_rxnmapper(Path(argument))
