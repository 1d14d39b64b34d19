"""Conversion of the attention layers of Praxis to templates of ours."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import fiddle as fdl

from luthier import layers
from luthier.recipes.foreign.pax.initializers import kernel
from luthier.recipes.foreign.pax.nodes import Node, is_number
from luthier.recipes.foreign.pax.parts import cap, norm

_FROM_ABOVE = ("input_dim", "hidden_dim", "num_heads", "dim_per_head", "atten_dropout_prob")
_PROJECTION = ("input_dim", "num_heads", "dim_per_head", "is_output_projection", "use_bias")


@dataclasses.dataclass(frozen=True)
class AttentionSizes:
    """Sizes that a layer passes to its attention.

    Args:
      dim: Size of the residual stream.
      num_heads: Heads.
      head_dim: Size of a head, as it is set; None where it is not.
      dropout: Probability of dropping a weight of the attention.
    """

    dim: int
    num_heads: int
    head_dim: int | None
    dropout: float

    @property
    def head(self) -> int:
        """Size of a head."""
        return self.head_dim or max(self.dim // self.num_heads, 1)


def attention(node: Any, above: Node, field: str, sizes: AttentionSizes) -> fdl.Partial[Any]:
    """Return the template of an attention.

    Args:
      node: The value of the setting.
      above: The layer that has it.
      field: The setting.
      sizes: Sizes that the layer passes to it.
    """
    if isinstance(node, Node):
        node.pass_over(*_FROM_ABOVE)
        if node.kind == "DotProductAttention":
            return _dot_product(node, sizes)
        if node.kind == "MultiQueryDotProductAttention":
            return _multi_query(node, sizes)
        if node.kind == "GroupedQueryAttention":
            return _grouped_query(node, sizes)
    known = "DotProductAttention, MultiQueryDotProductAttention and GroupedQueryAttention"
    above.refuse(field, f"supported: {known}")
    return fdl.Partial(layers.Attention, num_heads=sizes.num_heads)


def _dot_product(node: Node, sizes: AttentionSizes) -> fdl.Partial[Any]:
    """Return the template of a `DotProductAttention`."""
    # Praxis rotates queries and keys before it norms or scales them by dimension, ours after; so
    # with both, it is the layer that rotates first.
    for field in ("dconv_qkv", "attention_extra_logit", "ngrammer_tpl"):
        node.only(field, *((False, None) if field == "dconv_qkv" else (None,)))
    node.pass_over("dconv_kernel_size", "causal_depthwise_conv1d_tpl")
    made = _with_heads(node, sizes)
    projection, output = _projections(node, sizes)
    made.projection, made.output = projection, output
    late = _query_key(node)
    if late is not None:
        made.query_key = late
    turn = _rotary(node)
    if turn is not None:
        made.rotary = turn
        if late is not None:
            made = fdl.Partial(layers.RotatedFirstAttention, **made.__arguments__)
    made.core = _core(node, sizes, _scale(node, sizes))
    return _with_bias(node, made, sizes)


def _multi_query(node: Node, sizes: AttentionSizes) -> fdl.Partial[Any]:
    """Return the template of a `MultiQueryDotProductAttention`."""
    # One head of keys and values has a variable of two dimensions there, so it is drawn by other
    # fans than the queries are. Queries are scaled by the width over the heads, even where heads
    # have a size of their own, unless `scale_query_by_dim_per_head` is set.
    for field, allowed in (("attention_extra_logit", None), ("dconv_qkv", False)):
        node.only(field, allowed)
    # Praxis asserts this one itself; a dump can still have it. The layer declares the next two
    # settings but never reads them, and the last one only cuts the same computation into parts.
    node.only("combine_qkv", False)
    node.pass_over("internal_gshard_gaussian_init", "internal_enable_query_scale")
    node.pass_over("chunked_attn_num_seq_split")
    made = _with_heads(node, sizes)
    groups = _groups(node, sizes)
    made.num_kv_heads = groups
    projection, output = _projections(node, sizes)
    if groups == 1:
        single = _projection(node.get("headless_proj_tpl"), (sizes.dim, sizes.head), node)
        projection = fdl.Partial(layers.query_and_others, query=projection, others=single)
    else:
        node.pass_over("headless_proj_tpl")
    made.projection, made.output = projection, output
    turn = _rotary(node)
    if turn is not None:
        made.rotary = turn
    by_head = node.get("scale_query_by_dim_per_head") and sizes.head_dim is not None
    scaled_by = sizes.head if by_head else sizes.dim // sizes.num_heads
    made.core = _core(node, sizes, None if scaled_by == sizes.head else scaled_by**-0.5)
    return _with_bias(node, made, sizes)


def _grouped_query(node: Node, sizes: AttentionSizes) -> fdl.Partial[Any]:
    """Return the template of a `GroupedQueryAttention`."""
    # It has its variables itself, without layers for the projections, and its own names for the
    # range of rotary positions and the temperature. Unlike the other two, it has neither norms of
    # queries and keys nor relative positions.
    made = _with_heads(node, sizes)
    made.num_kv_heads = _groups(node, sizes)
    # The shape of the output's variable is fixed here: [dim, heads, head_dim], heads in the middle.
    node.dump.heads_first = False
    # The output's variable has the shape of the queries', with the fans exchanged. That of keys and
    # of values has fewer heads, and no dimension for a single one.
    fans = (sizes.dim, sizes.num_heads * sizes.head)
    groups = (sizes.dim, made.num_kv_heads * sizes.head)
    has_bias = node.get("use_bias")
    shape = (sizes.dim, sizes.num_heads, sizes.head)
    heads = () if made.num_kv_heads == 1 else (made.num_kv_heads,)
    few = (sizes.dim, *heads, sizes.head)
    variables = ((shape, fans), (few, groups), (shape, fans[::-1]))
    query, others, made.output = (_biased(kernel(node, *one), has_bias) for one in variables)
    if fans == groups:
        made.projection = query
    else:
        made.projection = fdl.Partial(layers.query_and_others, query=query, others=others)
    times = node.get("rope_min_max_timescales")
    if isinstance(times, list) and len(times) == 2 and all(map(is_number, times)):
        made.rotary = _turned(*times)
    elif times is not None:
        node.refuse("rope_min_max_timescales", "supported: two numbers")
    heat = node.get("atten_temp", 1.0)
    scale = None if heat == 1.0 else sizes.head**-0.5 / heat
    made.core = _core(node, sizes, scale)
    return made


def _with_heads(node: Node, sizes: AttentionSizes) -> fdl.Partial[Any]:
    if sizes.head_dim is None and sizes.dim % sizes.num_heads:
        node.refuse("num_heads", f"{sizes.num_heads} heads do not divide {sizes.dim}")
    return fdl.Partial(layers.Attention, num_heads=sizes.num_heads, head_dim=sizes.head)


def _groups(node: Node, sizes: AttentionSizes) -> int:
    groups = node.get("num_kv_heads")
    if not isinstance(groups, int) or groups < 1 or sizes.num_heads % groups:
        node.refuse("num_kv_heads", f"it must divide {sizes.num_heads} heads")
        return 1
    return groups


def _projections(node: Node, sizes: AttentionSizes) -> tuple[fdl.Partial[Any], fdl.Partial[Any]]:
    """Return the templates of the input (queries, keys, values) and the output projections."""
    # The memory layout of the output kernel is noted in the dump: the checkpoint's reader needs it.
    apart, has_bias = node.get("proj_tpl"), node.get("use_bias")
    shape = (sizes.dim, sizes.num_heads, sizes.head)
    node.dump.heads_first = bool(node.get("output_proj_use_nhd_shape"))
    turned = (*shape[1:], sizes.dim) if node.dump.heads_first else shape
    output = _projection(apart, turned, node)
    if node.get("internal_gshard_gaussian_init", False):
        # Praxis draws queries smaller, because it does not scale them then.
        ours = sizes.dim**-0.5
        small = fdl.Config(layers.Normal, stddev=(sizes.dim * sizes.head) ** -0.5)
        plain = fdl.Config(layers.Normal, stddev=ours)
        back = fdl.Config(layers.Normal, stddev=(sizes.num_heads * sizes.head) ** -0.5)
        together = fdl.Partial(
            layers.query_and_others, query=_biased(small, has_bias), others=_biased(plain, has_bias)
        )
        output = _biased(back, has_bias)
        if not node.get("combine_qkv", False):
            node.pass_over("combined_qkv_proj_tpl")
            return together, output
    if node.get("combine_qkv", False):
        return _projection(node.get("combined_qkv_proj_tpl"), (3, *shape), node), output
    node.pass_over("combined_qkv_proj_tpl")
    return _projection(apart, shape, node), output


def _projection(node: Any, shape: tuple[int, ...], above: Node) -> fdl.Partial[Any]:
    """Return the template of a projection whose variable has a shape."""
    if not isinstance(node, Node):
        return fdl.Partial(layers.Linear)
    node.pass_over(*_PROJECTION, "output_dim", "use_nhd_shape")
    is_merged = node.get("attention_combine_dims", False)
    fans = None
    if is_merged or node.get("explicit_fan_in_fan_out_axes", False):
        first = shape[-1] if len(shape) == 3 and above.peek("output_proj_use_nhd_shape") else 0
        dim = first or shape[-3] if len(shape) > 2 else shape[0]
        fans = (dim, math.prod(shape[-3:]) // dim)
    return _biased(kernel(node, shape, fans), above.peek("use_bias"))


def _biased(initial: fdl.Config[Any], has_bias: Any) -> fdl.Partial[layers.Linear]:
    found = fdl.Partial(layers.Linear, kernel=initial)
    if has_bias:
        found.bias = fdl.Config(layers.Zeros)
    return found


def _query_key(node: Node) -> fdl.Partial[Any] | None:
    """Return what is applied to queries and keys, a scale by dimensions or norms; None for none."""
    is_scaled = node.get("internal_enable_query_scale")
    by_dimension = node.get("internal_enable_per_dim_scale") and is_scaled
    normed = node.get("ln_tpl")
    if by_dimension:
        node.get("per_dim_scale_tpl")
    else:
        node.pass_over("per_dim_scale_tpl")
    if normed is not None and by_dimension:
        node.refuse("ln_tpl", "with internal_enable_per_dim_scale, it has no equivalent here")
        return None
    if normed is not None:
        return fdl.Partial(layers.HeadNorms, norm=norm(normed, node, "ln_tpl"))
    return fdl.Partial(layers.QueryScale) if by_dimension else None


def _scale(node: Node, sizes: AttentionSizes) -> float | None:
    """Return the factor of the scores; None for our default, 1/sqrt(head_dim)."""
    # `QueryScale` (the scale by dimensions) leaves 1/sqrt(head_dim) to our core; Pax makes it part
    # of that scale. Pax takes the width over the heads for the size of a head, unless told
    # otherwise.
    by_head = node.get("scale_query_by_dim_per_head") and sizes.head_dim is not None
    if not node.get("internal_enable_query_scale"):
        scale = 1.0
    elif node.get("internal_enable_per_dim_scale") or by_head:
        scale = sizes.head**-0.5
    else:
        scale = (sizes.dim // sizes.num_heads) ** -0.5
    if node.get("scale_logits_by_head_dims", False):
        scale *= sizes.head**-0.5
    return None if scale == sizes.head**-0.5 else scale


def _core(node: Node, sizes: AttentionSizes, scale: float | None) -> fdl.Config[Any]:
    found = fdl.Config(layers.AutoAttention)
    limit = cap(node, "atten_logit_cap")
    settings = {"scale": scale, "cap": limit, "dropout": sizes.dropout or None}
    for name, value in settings.items():
        if value is not None:
            setattr(found, name, value)
    return found


def _rotary(node: Node) -> fdl.Config[layers.Rotary] | None:
    if not node.get("use_rotary_position_emb"):
        node.pass_over("rotary_position_emb_tpl")
        return None
    turn = node.get("rotary_position_emb_tpl")
    known = ("RotaryPositionalEmbedding", "LLaMARotaryEmbedding")
    if not isinstance(turn, Node) or turn.kind not in known:
        node.refuse("rotary_position_emb_tpl", f"supported: {' and '.join(known)}")
        return None
    # Both are the same but for the order of a head's elements, in which the weights are read.
    node.dump.interleaved = turn.kind == known[1]
    turn.pass_over("embedding_dims")
    return _turned(turn.get("min_timescale"), turn.get("max_timescale"))


def _turned(shortest: float, longest: float) -> fdl.Config[layers.Rotary]:
    # Praxis has wavelengths from `shortest` to `longest` (over 2 pi); ours from 1 to `base`, and a
    # linear scaling for another shortest one.
    found = fdl.Config(layers.Rotary, base=float(longest) / float(shortest))
    if shortest != 1:
        found.scaling = fdl.Config(layers.LinearScaling, factor=float(shortest))
    return found


def _with_bias(node: Node, made: fdl.Partial[Any], sizes: AttentionSizes) -> fdl.Partial[Any]:
    """Return the attention with its relative positions, if it has any."""
    # Praxis adds the bias before it caps or scales the logits, ours afterwards: with these it would
    # be another function. The queries' own scale is no obstacle: it comes before the bias in both.
    # The table is drawn as `RelativeBias` of Praxis draws it, which has initializers of its own for
    # a variable of [heads, buckets]: `params_init` of the layers above does not apply.
    bias = node.get("relative_bias_tpl")
    if bias is None:
        return made
    if not isinstance(bias, Node) or bias.kind != "RelativeBias":
        node.refuse("relative_bias_tpl", "supported: RelativeBias")
        return made
    for field in ("atten_logit_cap", "scale_logits_by_head_dims"):
        if node.get(field):
            node.refuse(field, "relative positions come before it there, and after it here")
    # Positions by the length of the row or of the segment: in one segment distances are the same.
    bias.pass_over("num_heads", "use_length_as_position")
    count, distance = (
        bias.get(f"relative_attention_{what}") for what in ("num_buckets", "max_distance")
    )
    kind = layers.SignedBuckets if bias.get("bidirectional") else layers.PastBuckets
    shape = (sizes.num_heads, count)
    initial = fdl.Config(layers.Normal, stddev=math.prod(shape) ** -0.5)
    if bias.get("use_xavier_init"):
        initial = fdl.Config(layers.Uniform, limit=math.sqrt(6 / sum(shape)))
    return fdl.Partial(
        layers.OwnBias,
        attention=made,
        bias=fdl.Partial(
            layers.RelativeBias,
            num_heads=sizes.num_heads,
            buckets=fdl.Config(kind, num_buckets=count, max_distance=distance),
            table=initial,
        ),
    )
