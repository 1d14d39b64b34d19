"""T5: the first version, whose feed-forward parts are plain, and version 1.1 with gated ones."""

from __future__ import annotations

from luthier.checkpoint.foreign.families import bert
from luthier.checkpoint.foreign.family import Family, Tensor, tensor

_ENCODER = ("encoder.block.{layer}.layer", "encoder.blocks.{layer}")
_DECODER = ("decoder.block.{layer}.layer", "decoder.blocks.{layer}")
_UP = "mlp embed -> embed mlp"


def _attention(foreign: str, ours: str) -> tuple[Tensor, ...]:
    kernels = {"q": ("query", bert.HEADS), "k": ("key", bert.HEADS), "v": ("value", bert.HEADS)}
    kernels["o"] = ("output", bert.OUTPUT)
    return tuple(
        tensor(f"{foreign}.{theirs}.weight", f"{ours}.{name}.kernel", layout)
        for theirs, (name, layout) in kernels.items()
    )


def _norm(foreign: str, ours: str) -> Tensor:
    return tensor(f"{foreign}.weight", f"{ours}.scale", "embed")


def _tensors(*up: tuple[str, str]) -> tuple[Tensor, ...]:
    """Return all tensors; `up` names the maps into the feed-forward parts, there and here."""
    # One embedding for both stacks (`shared`), which files repeat under the name of each. The
    # relative bias belongs to the first layer there and to the stack here. The number of the last
    # sublayer differs because decoders have cross-attention between the two others.
    found = [tensor("shared.weight", "embedding.table", "vocab embed")]
    for stack, (foreign, ours), last in (("encoder", _ENCODER, 1), ("decoder", _DECODER, 2)):
        found += [
            *_attention(f"{foreign}.0.SelfAttention", f"{ours}.attention"),
            _norm(f"{foreign}.0.layer_norm", f"{ours}.attention_norm"),
            _norm(f"{foreign}.{last}.layer_norm", f"{ours}.mlp_norm"),
            *(
                tensor(
                    f"{foreign}.{last}.DenseReluDense.{w}.weight", f"{ours}.mlp.{name}.kernel", _UP
                )
                for w, name in up
            ),
            tensor(
                f"{foreign}.{last}.DenseReluDense.wo.weight",
                f"{ours}.mlp.down.kernel",
                "embed mlp -> mlp embed",
            ),
            _norm(f"{stack}.final_layer_norm", f"{stack}.norm"),
            tensor(
                f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                f"{stack}.bias.table",
                "buckets heads",
            ),
            bert.copy(f"{stack}.embed_tokens.weight", "shared.weight"),
        ]
    foreign, ours = _DECODER
    found += [
        *_attention(f"{foreign}.1.EncDecAttention", f"{ours}.cross_attention"),
        _norm(f"{foreign}.1.layer_norm", f"{ours}.cross_norm"),
    ]
    head = "vocab embed -> embed vocab"
    found.append(tensor("lm_head.weight", "unembedding.kernel", head, copy_of="shared.weight"))
    return tuple(found)


# A bias between the texts, which old files hold and no version uses.
_IGNORED = (r"EncDecAttention\.relative_attention_bias\.weight$",)

# Both versions have the model type t5; config.json differs only in `feed_forward_proj`,
# which the first version may leave out.
T5 = Family(
    name="t5",
    model_types=("t5",),
    architecture="T5ForConditionalGeneration",
    is_tied=True,
    ignored=_IGNORED,
    config_patterns={"feed_forward_proj": "(?!gated)"},
    tensors=_tensors(("wi", "up")),
)

T5_GATED = Family(
    name="t5_gated",
    model_types=("t5",),
    architecture="T5ForConditionalGeneration",
    is_tied=False,
    ignored=_IGNORED,
    config_patterns={"feed_forward_proj": "gated"},
    tensors=_tensors(("wi_0", "gate"), ("wi_1", "up")),
)
