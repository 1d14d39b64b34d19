"""Make the golden files of tests/recipes and of tests/layers/attention from `transformers`.

For every family, a tiny model with random weights is run in float64 by PyTorch. A file holds the
tensors under their own names (`foreign/...`), the configuration as JSON (`config`), the inputs and
the logits. `biases.npz` holds buckets of T5 and slopes of ALiBi.

Needs torch and transformers, which luthier does not: run it in an environment of its own,

    pip install torch transformers && python tools/goldens/make_families.py [FAMILY ...]
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM
from transformers.models.auto.configuration_auto import CONFIG_MAPPING
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.t5.modeling_t5 import T5Attention

TESTS = Path(__file__).resolve().parents[2] / "tests"
VOCAB, LENGTH = 61, 24

SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "attn_implementation": "eager",
}
GEMMA = SIZES | {"head_dim": 8, "pad_token_id": None, "bos_token_id": None, "eos_token_id": None}
PLAIN_ROTARY = {"rope_type": "default", "rope_theta": 500.0}

FAMILIES = {
    "gpt2": {
        "vocab_size": VOCAB,
        "n_embd": 24,
        "n_inner": 40,
        "n_layer": 2,
        "n_head": 4,
        "n_positions": 40,
        "bos_token_id": 0,
        "eos_token_id": 0,
        "attn_implementation": "eager",
    },
    "llama": SIZES
    | {
        "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False,
        "max_position_embeddings": 512,
        "head_dim": 8,
        "rope_parameters": {
            "rope_type": "llama3",
            "rope_theta": 500.0,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "mistral": SIZES
    | {"sliding_window": 7, "rope_parameters": PLAIN_ROTARY, "tie_word_embeddings": False},
    "gemma": GEMMA | {"num_key_value_heads": 1, "rope_parameters": PLAIN_ROTARY},
    "gemma2": GEMMA
    | {
        "num_hidden_layers": 3,
        "sliding_window": 7,
        "query_pre_attn_scalar": 6,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 3.0,
        "rope_parameters": PLAIN_ROTARY,
    },
    "gemma3_text": GEMMA
    | {
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "num_hidden_layers": 7,
        "layer_types": ["full_attention" if i % 3 == 2 else "sliding_attention" for i in range(7)],
        "sliding_window": 7,
        "query_pre_attn_scalar": 6,
        "rope_parameters": {
            "sliding_attention": PLAIN_ROTARY,
            "full_attention": {"rope_type": "linear", "rope_theta": 2000.0, "factor": 4.0},
        },
    },
    "qwen2": SIZES | {"rope_parameters": PLAIN_ROTARY, "tie_word_embeddings": True},
    "qwen3": SIZES | {"head_dim": 8, "rope_parameters": PLAIN_ROTARY, "tie_word_embeddings": False},
    "mixtral": SIZES
    | {
        "head_dim": 8,
        "experts_implementation": "eager",
        "num_local_experts": 5,
        "num_experts_per_tok": 2,
        "rope_parameters": PLAIN_ROTARY,
        "tie_word_embeddings": False,
    },
    "qwen3_moe": SIZES
    | {
        "head_dim": 8,
        "experts_implementation": "eager",
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 16,
        "norm_topk_prob": False,
        "rope_parameters": PLAIN_ROTARY,
        "tie_word_embeddings": False,
    },
    "olmo2": SIZES
    | {
        "rms_norm_eps": 1e-6,
        "rope_parameters": PLAIN_ROTARY,
        "tie_word_embeddings": False,
        "pad_token_id": None,
    },
}


def randomize(model, centre):
    """Draw all weights, also scales and biases, as float32 values; scales around `centre`.

    Small enough that rounding in float32, ours and that inside of the float64 models (they compute
    angles, norms and softmax in float32), stays below 1e-5 at the depth of the models.
    """
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        # With 0.3, rounding in float32 over seven layers exceeds 1e-5.
        noise = torch.randn(weight.shape, generator=generator) * 0.2
        is_scale = weight.dim() == 1 and not name.endswith("bias")
        weight.data = (noise + centre if is_scale else noise).to(weight.dtype)


def written(model):
    """Return the tensors that the model writes, which have other names in memory for experts."""
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        return load_file(Path(folder) / "model.safetensors")


def make(model_type, settings):
    config = CONFIG_MAPPING[model_type](**settings)
    model = AutoModelForCausalLM.from_config(config)
    randomize(model, centre=0.0 if "gemma" in model_type else 1.0)
    tensors = {
        name: tensor.astype(np.float32)
        for name, tensor in written(model).items()
        if not (name == "lm_head.weight" and config.tie_word_embeddings)
    }
    inputs = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model.double().eval()(inputs).logits
    text = json.dumps(config.to_diff_dict(), sort_keys=True)
    folder = TESTS / "recipes" / "goldens"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        folder / f"{model_type.removesuffix('_text')}.npz",
        config=np.array(text),
        inputs=inputs.numpy().astype(np.int32),
        logits=logits.numpy().astype(np.float32),
        **{f"foreign/{name}": array for name, array in tensors.items()},
    )


def biases():
    """Buckets by (signed, number, distance) over offsets -300 ... 300, and slopes by heads."""
    offsets = torch.arange(-300, 301)
    arrays = {"offsets": offsets.numpy().astype(np.int32)}
    for signed, number, distance in ((True, 32, 128), (False, 32, 128), (False, 8, 20)):
        buckets = T5Attention._relative_position_bucket(offsets, signed, number, distance)
        arrays[f"buckets/{int(signed)}/{number}/{distance}"] = buckets.numpy().astype(np.int32)
    for heads in (1, 2, 3, 8, 12, 16):
        alibi = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)
        arrays[f"slopes/{heads}"] = alibi[:, 0, 1].numpy().astype(np.float32)
    folder = TESTS / "layers" / "goldens"
    folder.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(folder / "biases.npz", **arrays)


if __name__ == "__main__":
    if not sys.argv[1:]:
        biases()
    for model_type in sys.argv[1:] or FAMILIES:
        make(model_type, FAMILIES[model_type])
