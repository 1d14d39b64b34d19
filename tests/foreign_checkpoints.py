"""Checkpoints in the public layouts of T5X, big_vision and MaxText, written without our code.

Their content is that of goldens, whose tensors and logits an independent implementation made: what
the Hugging Face hub calls the same weights is put under the names, in the shapes and into the files
that those programs write.
"""

import warnings
from pathlib import Path

import numpy as np

TESTS = Path(__file__).parent


def golden(path):
    """Return the foreign tensors of a golden, and what else is in it."""
    with np.load(TESTS / path) as file:
        arrays = dict(file)
    tensors = {k.removeprefix("foreign/"): arrays.pop(k) for k in list(arrays) if "/" in k}
    return {k: v.astype(np.float32) for k, v in tensors.items()}, arrays


def nested(flat):
    """Return nested dicts from names with slashes."""
    tree = {}
    for name, value in flat.items():
        *above, last = name.split("/")
        inside = tree
        for key in above:
            inside = inside.setdefault(key, {})
        inside[last] = value
    return tree


def t5x_parameters(theirs):
    """Return the parameters of T5X by name: heads are joined, and kernels are not transposed."""
    found = {"token_embedder/embedding": theirs["shared.weight"]}
    if "lm_head.weight" in theirs:
        found["decoder/logits_dense/kernel"] = theirs["lm_head.weight"].T
    for name, value in theirs.items():
        words = name.split(".")
        if name.endswith("relative_attention_bias.weight"):
            found[f"{words[0]}/relpos_bias/rel_embedding"] = value.T
        elif name.endswith("final_layer_norm.weight"):
            found[f"{words[0]}/{words[0]}_norm/scale"] = value
        elif words[1] == "block":
            stack, layer, part, kind = words[0], words[2], int(words[4]), words[5]
            own = "attention" if stack == "encoder" else "self_attention"
            is_cross = stack == "decoder" and part == 1
            is_mlp = part == (1 if stack == "encoder" else 2)
            sub = "mlp" if is_mlp else "cross_attention" if is_cross else own
            at = f"{stack}/layers_{layer}"
            if kind == "layer_norm":
                found[f"{at}/pre_{sub}_layer_norm/scale"] = value
            else:
                sub = "encoder_decoder_attention" if is_cross else sub
                last = {"q": "query", "k": "key", "v": "value", "o": "out"}
                found[f"{at}/{sub}/{last.get(words[6], words[6])}/kernel"] = value.T
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def write_t5x(folder, parameters, inline=("encoder/encoder_norm/scale",)):
    """Write what T5X's own checkpointer writes: msgpack, and zarr arrays for what is partitioned.

    Args:
      folder: `checkpoint_N`, which is made.
      parameters: By name.
      inline: Those that are in the msgpack itself.
    """
    import tensorstore
    from flax import serialization

    folder.mkdir(parents=True)
    target = {}
    for name, value in parameters.items():
        if name in inline:
            target[name] = value
            continue
        place = "target." + name.replace("/", ".")
        metadata = {
            "compressor": {"id": "gzip"},
            "shape": list(value.shape),
            "chunks": [max(1, size // 2) for size in value.shape],
        }
        spec = {
            "driver": "zarr",
            "dtype": str(value.dtype),
            "kvstore": {"driver": "file", "path": place},
            "metadata": metadata,
        }
        there = {**spec, "kvstore": {"driver": "file", "path": str(folder / place)}}
        tensorstore.open(there, create=True, open=True).result().write(value).result()
        target[name] = tensorstore.Spec(spec).to_json()
    optimizer = {
        "state": {"step": np.int32(7), "param_states": {"token_embedder": {"embedding": None}}},
        "target": nested(target),
    }
    content = serialization.msgpack_serialize({"version": 3, "optimizer": optimizer})
    (folder / "checkpoint").write_bytes(content)


def write_orbax(folder, tree, **settings):
    """Write a tree as Orbax's handler of trees does."""
    import orbax.checkpoint as ocp

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        handler = ocp.PyTreeCheckpointHandler(**{"use_ocdbt": True, **settings})
        ocp.Checkpointer(handler).save(folder, args=ocp.args.PyTreeSave(tree))


def big_vision_parameters(theirs, is_old=False):
    """Return the parameters of big_vision by name; kernels of heads have heads as a dimension.

    Args:
      theirs: The tensors of a ViT of four heads.
      is_old: With the class token among the patches, and modules numbered together.
    """
    token = theirs["vit.embeddings.cls_token"]
    positions = theirs["vit.embeddings.position_embeddings"]
    patches = "vit.embeddings.patch_embeddings.projection"
    found = {
        "embedding/kernel": theirs[f"{patches}.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": theirs[f"{patches}.bias"],
        "head/kernel": theirs["classifier.weight"].T,
        "head/bias": theirs["classifier.bias"],
        "Transformer/encoder_norm/scale": theirs["vit.layernorm.weight"],
        "Transformer/encoder_norm/bias": theirs["vit.layernorm.bias"],
    }
    if is_old:
        found["cls"] = token
        found["Transformer/posembed_input/pos_embedding"] = positions
    else:
        found["cls"] = token + positions[:, :1]
        found["pos_embedding"] = positions[:, 1:]
    numbers = (1, 2, 3) if is_old else (0, 1, 0)
    attention, second, mlp = (
        f"{name}_{number}"
        for name, number in zip(
            ("MultiHeadDotProductAttention", "LayerNorm", "MlpBlock"), numbers, strict=True
        )
    )
    heads = 4
    for layer in range(2):
        there, here = f"vit.encoder.layer.{layer}", f"Transformer/encoderblock_{layer}"
        for ours, name in (("layernorm_before", "LayerNorm_0"), ("layernorm_after", second)):
            found[f"{here}/{name}/scale"] = theirs[f"{there}.{ours}.weight"]
            found[f"{here}/{name}/bias"] = theirs[f"{there}.{ours}.bias"]
        for name in ("query", "key", "value"):
            kernel = theirs[f"{there}.attention.attention.{name}.weight"].T
            bias = theirs[f"{there}.attention.attention.{name}.bias"]
            found[f"{here}/{attention}/{name}/kernel"] = kernel.reshape(len(kernel), heads, -1)
            found[f"{here}/{attention}/{name}/bias"] = bias.reshape(heads, -1)
        output = theirs[f"{there}.attention.output.dense.weight"].T
        found[f"{here}/{attention}/out/kernel"] = output.reshape(heads, -1, output.shape[1])
        found[f"{here}/{attention}/out/bias"] = theirs[f"{there}.attention.output.dense.bias"]
        for ours, name in (("intermediate", "Dense_0"), ("output", "Dense_1")):
            found[f"{here}/{mlp}/{name}/kernel"] = theirs[f"{there}.{ours}.dense.weight"].T
            found[f"{here}/{mlp}/{name}/bias"] = theirs[f"{there}.{ours}.dense.bias"]
    return found


def stacked(parameters, beginning, axis):
    """Return parameters with layers stacked: `NAME_3/...` of all layers become `NAME/...`."""
    found, layers = {}, {}
    for name, value in parameters.items():
        head, _, rest = name.removeprefix(beginning).partition("/")
        if name.startswith(f"{beginning}_") and head[1:].isdigit():
            layers.setdefault(rest, {})[int(head[1:])] = value
        else:
            found[name] = value
    for rest, own in layers.items():
        found[f"{beginning}/{rest}"] = np.stack([own[i] for i in sorted(own)], axis)
    return found


def maxtext_parameters(theirs, num_heads, is_interleaved=False):
    """Return the parameters of MaxText by name, below `params/params`.

    Queries hold the root of a head's size, but where there are norms of queries and keys.

    Args:
      theirs: The tensors of a Llama, a Mistral or a Qwen 3.
      num_heads: Heads of the queries.
      is_interleaved: Whether rotated pairs stand side by side.
    """
    found = {
        "token_embedder/embedding": theirs["model.embed_tokens.weight"],
        "decoder/decoder_norm/scale": theirs["model.norm.weight"],
        "decoder/logits_dense/kernel": theirs["lm_head.weight"].T,
    }
    num_layers = 1 + max(int(k.split(".")[2]) for k in theirs if k.startswith("model.layers."))
    for layer in range(num_layers):
        there, here = f"model.layers.{layer}", f"decoder/layers_{layer}"
        at = f"{there}.self_attn"
        size = theirs[f"{at}.q_proj.weight"].shape[0] // num_heads
        for short, name in (("q", "query"), ("k", "key"), ("v", "value")):
            kernel = theirs[f"{at}.{short}_proj.weight"].T
            kernel = kernel.reshape(len(kernel), -1, size)
            if is_interleaved and short != "v":
                halves = kernel[..., : size // 2], kernel[..., size // 2 :]
                kernel = np.stack(halves, -1).reshape(kernel.shape)
            if short == "q" and f"{at}.q_norm.weight" not in theirs:
                kernel = kernel / np.sqrt(np.float32(size))
            found[f"{here}/self_attention/{name}/kernel"] = kernel
            if short != "v" and f"{at}.{short}_norm.weight" in theirs:
                norm = theirs[f"{at}.{short}_norm.weight"]
                found[f"{here}/self_attention/{name}_norm/scale"] = norm
        output = theirs[f"{at}.o_proj.weight"].T
        found[f"{here}/self_attention/out/kernel"] = output.reshape(num_heads, size, -1)
        for ours, name in (("gate", "wi_0"), ("up", "wi_1"), ("down", "wo")):
            found[f"{here}/mlp/{name}/kernel"] = theirs[f"{there}.mlp.{ours}_proj.weight"].T
        for ours, name in (("input", "pre_self"), ("post_attention", "post_self")):
            norm = theirs[f"{there}.{ours}_layernorm.weight"]
            found[f"{here}/{name}_attention_layer_norm/scale"] = norm
    return {name: np.ascontiguousarray(value) for name, value in found.items()}


def write_maxtext(folder, parameters, step=0, **settings):
    """Write what MaxText's checkpoint manager writes for a step: the item `items`."""
    state = {"params": {"params": nested(parameters)}, "opt_state": {}, "step": np.int32(step)}
    write_orbax(folder / str(step) / "items", state, use_zarr3=True, **settings)
