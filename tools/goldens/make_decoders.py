"""Make the golden files of tests/models/test_decoder_goldens.py from `transformers`.

Tiny GPT-2 and Llama models with random weights are run in float64 by PyTorch. The files hold their
weights under luthier's parameter names, the inputs, the logits and a greedy continuation.

Needs torch and transformers, which luthier does not: run it in an environment of its own,

    pip install torch transformers && python tools/goldens/make_decoders.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig, LlamaForCausalLM

FOLDER = Path(__file__).resolve().parents[2] / "tests" / "models" / "goldens"
LAYERS, DIM, HEADS, HIDDEN, VOCAB, LENGTH, NEW = 2, 32, 4, 48, 61, 24, 8


def gpt2_config():
    return GPT2Config(
        n_layer=LAYERS,
        n_embd=DIM,
        n_head=HEADS,
        n_inner=HIDDEN,
        vocab_size=VOCAB,
        n_positions=40,
        activation_function="gelu_new",
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation="eager",
    )


def gpt2_weights(state):
    """Rename and reshape; Conv1D kernels are (in, out)."""
    head_dim = DIM // HEADS
    heads = (DIM, HEADS, head_dim)

    def layer(i):
        prefix = f"transformer.h.{i}."
        kernels = np.split(state[prefix + "attn.c_attn.weight"], 3, axis=1)
        biases = np.split(state[prefix + "attn.c_attn.bias"], 3)
        found = {}
        for name, kernel, bias in zip(("query", "key", "value"), kernels, biases, strict=True):
            found[f"attention.{name}.kernel"] = kernel.reshape(heads)
            found[f"attention.{name}.bias"] = bias.reshape(HEADS, head_dim)
        output = state[prefix + "attn.c_proj.weight"]
        return found | {
            "attention.output.kernel": output.reshape(HEADS, head_dim, DIM),
            "attention.output.bias": state[prefix + "attn.c_proj.bias"],
            "attention_norm.scale": state[prefix + "ln_1.weight"],
            "attention_norm.bias": state[prefix + "ln_1.bias"],
            "mlp_norm.scale": state[prefix + "ln_2.weight"],
            "mlp_norm.bias": state[prefix + "ln_2.bias"],
            "mlp.up.kernel": state[prefix + "mlp.c_fc.weight"],
            "mlp.up.bias": state[prefix + "mlp.c_fc.bias"],
            "mlp.down.kernel": state[prefix + "mlp.c_proj.weight"],
            "mlp.down.bias": state[prefix + "mlp.c_proj.bias"],
        }

    return stack(layer) | {
        "embedding.table": state["transformer.wte.weight"],
        "embedding.position.table": state["transformer.wpe.weight"],
        "norm.scale": state["transformer.ln_f.weight"],
        "norm.bias": state["transformer.ln_f.bias"],
    }


def llama_config():
    return LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=DIM,
        num_attention_heads=HEADS,
        num_key_value_heads=2,
        intermediate_size=HIDDEN,
        vocab_size=VOCAB,
        rms_norm_eps=1e-5,
        rope_parameters={"rope_type": "default", "rope_theta": 500.0},
        tie_word_embeddings=False,
        attn_implementation="eager",
    )


def llama_weights(state):
    """Rename and reshape; Linear kernels are (out, in)."""
    head_dim = DIM // HEADS

    def layer(i):
        prefix = f"model.layers.{i}."
        found = {}
        for ours, theirs in (("query", "q"), ("key", "k"), ("value", "v")):
            kernel = state[f"{prefix}self_attn.{theirs}_proj.weight"].T
            found[f"attention.{ours}.kernel"] = kernel.reshape(DIM, -1, head_dim)
        output = state[prefix + "self_attn.o_proj.weight"].T
        return found | {
            "attention.output.kernel": output.reshape(HEADS, head_dim, DIM),
            "attention_norm.scale": state[prefix + "input_layernorm.weight"],
            "mlp_norm.scale": state[prefix + "post_attention_layernorm.weight"],
            "mlp.gate.kernel": state[prefix + "mlp.gate_proj.weight"].T,
            "mlp.up.kernel": state[prefix + "mlp.up_proj.weight"].T,
            "mlp.down.kernel": state[prefix + "mlp.down_proj.weight"].T,
        }

    return stack(layer) | {
        "embedding.table": state["model.embed_tokens.weight"],
        "norm.scale": state["model.norm.weight"],
        "unembedding.kernel": state["lm_head.weight"].T,
    }


def stack(layer):
    """Stack the weights of all layers, as scanned layers have them."""
    layers = [layer(i) for i in range(LAYERS)]
    return {f"blocks.{name}": np.stack([each[name] for each in layers]) for name in layers[0]}


def randomize(model):
    """Draw all weights, also those that start as ones or zeros; keep them float32 values."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in model.named_parameters():
        noise = torch.randn(weight.shape, generator=generator) * 0.3
        scale = weight.dim() == 1 and not name.endswith("bias")
        weight.data = (noise + 1.0 if scale else noise).to(weight.dtype)


def make(name, model, rename):
    randomize(model)
    model = model.double().eval()
    inputs = torch.randint(0, VOCAB, (2, LENGTH), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        logits = model(inputs).logits
        continued = model.generate(
            inputs,
            attention_mask=torch.ones_like(inputs),
            max_new_tokens=NEW,
            min_new_tokens=NEW,
            do_sample=False,
            pad_token_id=0,
            eos_token_id=None,
        )
    state = {key: value.numpy() for key, value in model.state_dict().items()}
    weights = {key: value.astype(np.float32) for key, value in rename(state).items()}
    np.savez_compressed(
        FOLDER / f"{name}.npz",
        inputs=inputs.numpy().astype(np.int32),
        logits=logits.numpy().astype(np.float32),
        greedy=continued[:, LENGTH:].numpy().astype(np.int32),
        **{f"parameters/{key}": value for key, value in weights.items()},
    )


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    make("gpt2", GPT2LMHeadModel(gpt2_config()), gpt2_weights)
    make("llama", LlamaForCausalLM(llama_config()), llama_weights)
