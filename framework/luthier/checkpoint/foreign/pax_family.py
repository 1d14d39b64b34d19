"""The map from the names and layouts of Pax to ours.

Queries, keys and values stand in one array or in three; heads and their elements are two dimensions
or one; the residual stream is the first or the last dimension of what comes out of attention.
"""

from __future__ import annotations

from collections.abc import Iterator

from luthier.checkpoint.foreign.family import Family, Tensor, tensor
from luthier.checkpoint.foreign.pax import PaxParameters, of_layer
from luthier.errors import CheckpointError, Problem

_OURS = "blocks.{layer}"
_QKV = "self_attention.combined_qkv"
_POST = "self_attention.post.w"
_BIAS = "self_attention.relative_bias.wrb"

_NORMS = {
    "layer_norm": "attention_norm",
    "pre_layer_norm": "attention_norm",
    "post_layer_norm": "attention_post_norm",
    "ff_layer.layer_norm": "mlp_norm",
    "ff_layer.pre_layer_norm": "mlp_norm",
    "ff_layer.post_layer_norm": "mlp_post_norm",
    "self_attention.layer_norm_q": "attention.query_key.query_norm",
    "self_attention.layer_norm_k": "attention.query_key.key_norm",
}
_LINEARS = {"ffn_layer1": "up", "ffn_layer1_gate": "gate", "ffn_layer2": "down"}
_EXPERTS = {"wi_0": "up", "wi_gate_0": "gate", "wo_0": "down"}
_ROUTER = "mlp.router.logits.projection.kernel"


def family_of(parameters: PaxParameters, heads_first: bool | None = None) -> Family:
    """Return the map for the parameters of a checkpoint.

    Args:
      parameters: The result of `pax.read`.
      heads_first: Whether heads are the first dimension of the output projection of attention
        (`output_proj_use_nhd_shape`); None infers it from the shapes.

    Raises:
      CheckpointError: The shapes are ambiguous.
    """
    return Family("pax", (), "", tuple(_tensors(parameters, heads_first)))


def _tensors(found: PaxParameters, heads_first: bool | None) -> Iterator[Tensor]:
    at = of_layer
    # Names follow Praxis, whose layers have several spellings of one thing: which of them a
    # checkpoint has is looked up in `found.parts`, where one layer stands for all.
    yield tensor("lm.final_ln.scale", "norm.scale", "embed")
    yield tensor("lm.final_ln.bias", "norm.bias", "embed")
    yield tensor("lm.position_emb.emb_var", "embedding.position.table", "length embed")
    yield from _ends(found)
    for theirs, ours in _NORMS.items():
        if f"{theirs}.scale" in found.parts:
            for end in ("scale", "bias"):
                yield tensor(at(f"{theirs}.{end}"), f"{_OURS}.{ours}.{end}", "dim")
    for theirs, ours in _LINEARS.items():
        there, here = f"ff_layer.{theirs}", f"{_OURS}.mlp.{ours}"
        yield tensor(at(f"{there}.linear.w"), f"{here}.kernel", "inputs outputs")
        yield tensor(at(f"{there}.bias.b"), f"{here}.bias", "outputs")
    yield tensor(at("ff_layer.gate"), f"{_OURS}.{_ROUTER}", "embed experts")
    for theirs, ours in _EXPERTS.items():
        here = f"{_OURS}.mlp.experts.{ours}.kernel"
        yield tensor(at(f"ff_layer.{theirs}"), here, "experts inputs outputs")
    yield from _attention(found, heads_first)


def _ends(found: PaxParameters) -> Iterator[Tensor]:
    """Yield the embedding and the head: one array for both, or two."""
    head, bias = "lm.softmax.logits_ffn.linear.w", "lm.softmax.logits_ffn.bias.b"
    tables = ("lm.embedding_lookup.emb_var", "lm.softmax.embedding.w", "lm.softmax.w")
    table = next((name for name in tables if name in found.arrays), None)
    # Without a table of its own the head's matrix is the embedding, transposed.
    if table is None:
        yield tensor(head, "embedding.table", "embed vocab -> vocab embed")
    else:
        yield tensor(table, "embedding.table", "vocab embed")
        yield tensor(head, "unembedding.kernel", "embed vocab")
    if table == "lm.softmax.w":
        bias = "lm.softmax.bias.b"
    yield tensor(bias, "unembedding.bias", "vocab")


def _attention(found: PaxParameters, heads_first: bool | None) -> Iterator[Tensor]:
    at, ours = of_layer, f"{_OURS}.attention"
    if _BIAS in found.parts:
        yield tensor(at(_BIAS), f"{ours}.bias.table", "heads buckets -> buckets heads")
        ours = f"{ours}.attention"
    scale = at("self_attention.per_dim_scale.per_dim_scale")
    yield tensor(scale, f"{ours}.query_key.theta", "head_dim")
    # `pax.read` has cut a joined array into three already, so that its parts can be reordered for
    # the rotation.
    is_joined = f"{_QKV}.w[0]" in found.parts
    for place, name in enumerate(("query", "key", "value")):
        for end, parameter in (("w", "kernel"), ("b", "bias")):
            part = f"{_QKV}.{end}[{place}]" if is_joined else f"self_attention.{name}.{end}"
            layout = _inner(len(_shape(found, part)), end == "b")
            yield tensor(at(part), f"{ours}.{name}.{parameter}", layout)
    if _POST in found.parts:
        yield tensor(at(_POST), f"{ours}.output.kernel", _outer(found, heads_first))
    yield tensor(at("self_attention.post.b"), f"{ours}.output.bias", "embed")


def _inner(rank: int, is_bias: bool) -> str:
    """Return the layout of a projection; of one head, or of heads that are merged, rank is less."""
    if is_bias:
        return "heads head_dim" if rank == 2 else "(heads head_dim) -> heads head_dim"
    if rank == 3:
        return "embed heads head_dim"
    return "embed (heads head_dim) -> embed heads head_dim"


def _outer(found: PaxParameters, heads_first: bool | None) -> str:
    """Return the layout of what maps the results of attention back to the residual stream."""
    shape = _shape(found, _POST)
    if heads_first is None:
        dim = (_shape(found, f"{_QKV}.w[0]") or _shape(found, "self_attention.query.w"))[:1]
        # Two layouts of Pax, `DNH` and `NHD`; where the width equals the other end, shapes alone
        # cannot tell them apart, and a wrong guess would load without an error.
        heads_first = shape[:1] != dim
        if dim == shape[:1] == shape[-1:]:
            what = f"{of_layer(_POST, 0)} {list(shape)} does not show which dimension is which"
            remedy = "set it to what output_proj_use_nhd_shape is: true or false"
            raise CheckpointError(Problem(what, "restore.heads_first", remedy=remedy))
    heads = "heads head_dim" if len(shape) == 3 else "(heads head_dim)"
    if heads_first:
        return f"{heads} embed -> heads head_dim embed"
    return f"embed {heads} -> heads head_dim embed"


def _shape(found: PaxParameters, part: str) -> tuple[int, ...]:
    return found.parts[part].shape if part in found.parts else ()
