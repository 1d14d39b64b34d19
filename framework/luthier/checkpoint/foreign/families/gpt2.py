"""GPT-2: queries, keys and values in one tensor, kernels as (in, out)."""

from __future__ import annotations

from luthier.checkpoint.foreign.family import Family, Tensor, joined, tensor

# GPT-2 stores `Conv1D` layers, whose weights are [inputs, outputs], the transpose of
# `torch.nn.Linear`; so most kernels need no transpose.
_HEADS = "embed (heads head_dim) -> embed heads head_dim"


def _norm(foreign: str, ours: str) -> tuple[Tensor, ...]:
    return (
        tensor(f"{foreign}.weight", f"{ours}.scale", "embed"),
        tensor(f"{foreign}.bias", f"{ours}.bias", "embed"),
    )


_LAYER = "transformer.h.{layer}"
_OURS = "blocks.{layer}"

GPT2 = Family(
    name="gpt2",
    model_types=("gpt2",),
    architecture="GPT2LMHeadModel",
    is_tied=True,
    prefix="transformer.",
    # The causal mask, which old files keep as a buffer.
    ignored=(r"\.attn\.(masked_)?bias$",),
    tensors=(
        tensor("transformer.wte.weight", "embedding.table", "vocab embed"),
        tensor("transformer.wpe.weight", "embedding.position.table", "length embed"),
        *_norm(f"{_LAYER}.ln_1", f"{_OURS}.attention_norm"),
        joined(
            f"{_LAYER}.attn.c_attn.weight",
            1,
            (f"{_OURS}.attention.query.kernel", _HEADS),
            (f"{_OURS}.attention.key.kernel", _HEADS),
            (f"{_OURS}.attention.value.kernel", _HEADS),
        ),
        joined(
            f"{_LAYER}.attn.c_attn.bias",
            0,
            (f"{_OURS}.attention.query.bias", "(heads head_dim) -> heads head_dim"),
            (f"{_OURS}.attention.key.bias", "(heads head_dim) -> heads head_dim"),
            (f"{_OURS}.attention.value.bias", "(heads head_dim) -> heads head_dim"),
        ),
        tensor(
            f"{_LAYER}.attn.c_proj.weight",
            f"{_OURS}.attention.output.kernel",
            "(heads head_dim) embed -> heads head_dim embed",
        ),
        tensor(f"{_LAYER}.attn.c_proj.bias", f"{_OURS}.attention.output.bias", "embed"),
        *_norm(f"{_LAYER}.ln_2", f"{_OURS}.mlp_norm"),
        tensor(f"{_LAYER}.mlp.c_fc.weight", f"{_OURS}.mlp.up.kernel", "embed mlp"),
        tensor(f"{_LAYER}.mlp.c_fc.bias", f"{_OURS}.mlp.up.bias", "mlp"),
        tensor(f"{_LAYER}.mlp.c_proj.weight", f"{_OURS}.mlp.down.kernel", "mlp embed"),
        tensor(f"{_LAYER}.mlp.c_proj.bias", f"{_OURS}.mlp.down.bias", "embed"),
        *_norm("transformer.ln_f", "norm"),
        tensor(
            "lm_head.weight",
            "unembedding.kernel",
            "vocab embed -> embed vocab",
            copy_of="transformer.wte.weight",
        ),
    ),
)
