"""Llama 1 to 3 and Mistral; and the parts that most later decoders have in common with them."""

from __future__ import annotations

from luthier.checkpoint.foreign.family import Family, Tensor, tensor

LAYER = "model.layers.{layer}"
OURS = "blocks.{layer}"

BUFFERS = (r"\.rotary_emb\.inv_freq$",)
"""Buffers that old files keep: frequencies, which are computed."""


# The head is declared as a copy: where our model ties embedding and head it has no
# `unembedding.kernel`, and the line only says that `lm_head.weight` may be there, and must then be
# equal. Where it does not tie them, the tensor is read like any other.
def ends() -> tuple[Tensor, ...]:
    """Return embedding, last norm and head."""
    return (
        tensor("model.embed_tokens.weight", "embedding.table", "vocab embed"),
        tensor("model.norm.weight", "norm.scale", "embed"),
        tensor(
            "lm_head.weight",
            "unembedding.kernel",
            "vocab embed -> embed vocab",
            copy_of="model.embed_tokens.weight",
        ),
    )


def attention() -> tuple[Tensor, ...]:
    """Return the projections of attention; biases where the model has them."""
    # `torch.nn.Linear` keeps its weight as [outputs, inputs], hence the transposes. Lines for
    # biases cost nothing in models without them: a line counts only where ours has the parameter.
    kernel = "(heads head_dim) embed -> embed heads head_dim"
    found = []
    for theirs, ours in (("q", "query"), ("k", "key"), ("v", "value")):
        there, here = f"{LAYER}.self_attn.{theirs}_proj", f"{OURS}.attention.{ours}"
        found.append(tensor(f"{there}.weight", f"{here}.kernel", kernel))
        found.append(tensor(f"{there}.bias", f"{here}.bias", "(heads head_dim) -> heads head_dim"))
    there, here = f"{LAYER}.self_attn.o_proj", f"{OURS}.attention.output"
    kernel = "embed (heads head_dim) -> heads head_dim embed"
    found.append(tensor(f"{there}.weight", f"{here}.kernel", kernel))
    found.append(tensor(f"{there}.bias", f"{here}.bias", "embed"))
    return tuple(found)


def query_key_norms() -> tuple[Tensor, ...]:
    """Return the norms of queries and keys."""
    return tuple(
        tensor(
            f"{LAYER}.self_attn.{theirs}_norm.weight",
            f"{OURS}.attention.query_key.{ours}_norm.scale",
            "dim",
        )
        for theirs, ours in (("q", "query"), ("k", "key"))
    )


def gated_mlp() -> tuple[Tensor, ...]:
    """Return the gated feed-forward part; biases where the model has them."""
    found = []
    for name, output in (("gate", "mlp"), ("up", "mlp"), ("down", "embed")):
        there, here = f"{LAYER}.mlp.{name}_proj", f"{OURS}.mlp.{name}"
        inputs = "embed" if output == "mlp" else "mlp"
        kernel = f"{output} {inputs} -> {inputs} {output}"
        found.append(tensor(f"{there}.weight", f"{here}.kernel", kernel))
        found.append(tensor(f"{there}.bias", f"{here}.bias", output))
    return tuple(found)


def norms(**ours: str) -> tuple[Tensor, ...]:
    """Return the norms of a layer: their name there (without `_layernorm`), and that of ours."""
    return tuple(
        tensor(f"{LAYER}.{theirs}_layernorm.weight", f"{OURS}.{name}.scale", "embed")
        for theirs, name in ours.items()
    )


_TENSORS = (
    *ends(),
    *norms(input="attention_norm", post_attention="mlp_norm"),
    *attention(),
    *gated_mlp(),
)

# `is_tied` stays False: a Llama whose config.json leaves out tie_word_embeddings has a head of its
# own.
LLAMA = Family(
    name="llama",
    model_types=("llama",),
    architecture="LlamaForCausalLM",
    prefix="model.",
    ignored=BUFFERS,
    tensors=_TENSORS,
)

MISTRAL = Family(
    name="mistral",
    model_types=("mistral",),
    architecture="MistralForCausalLM",
    prefix="model.",
    ignored=BUFFERS,
    tensors=_TENSORS,
)
