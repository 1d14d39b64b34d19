"""Conversion of the language model of Praxis to a template of our decoder."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import fiddle as fdl

from luthier import graph as graphs
from luthier import layers, models
from luthier.recipes.foreign.pax.attention import AttentionSizes, attention
from luthier.recipes.foreign.pax.feed_forward import experts, feed_forward
from luthier.recipes.foreign.pax.initializers import kernel
from luthier.recipes.foreign.pax.nodes import Node, is_number
from luthier.recipes.foreign.pax.parts import bias, cap, dropout, norm, number

_BLOCKS: dict[str, Any] = {
    "pre": layers.PreNormBlock,
    "primer_hybrid": layers.SandwichBlock,
    "post": layers.BranchNormBlock,
    "post_skip": layers.PostNormBlock,
}
_REMATS: dict[str, Any] = {
    "save_nothing": layers.FullRemat,
    "save_iteration_input": layers.FullRemat,
    "save_everything": layers.NoRemat,
}
_NAMED = {
    "save_qkv_out_proj": ("query", "key", "value", "attention_output"),
    "save_out_proj": ("attention_output",),
    "save_context": ("attention_context",),
    "save_encoded_and_out_proj": ("attention_context", "attention_output"),
}


def decoder(node: Node) -> fdl.Partial[models.Decoder]:
    """Return the template of the decoder that a `TransformerLm` is.

    Args:
      node: The `TransformerLm`; settings without an equivalent are reported to its dump.
    """
    # Each part reads its settings through the node, so that what nobody reads is reported. Where a
    # part is not supported, a stand-in of ours takes its place, so that all problems are found at
    # once; they are essential, so the graph is not returned then.
    for field, allowed in (("ngrammer_tpl", None), ("post_attention_ngrammer_tpls", None)):
        node.only(field, allowed)
    node.only("model_type", "causal")
    node.only("skip_compute_loss", False)
    node.only("entropy_loss_weight", None)
    node.pass_over("record_activations_in_xent_output", "skip_aux_loss")
    dim, vocab_size = number(node, "model_dims"), number(node, "vocab_size")
    blocks, remat, first_dropout = _stack(node, dim)
    embedding, unembedding = _ends(node, dim, vocab_size)
    position = _position(node, dim)
    if position is not None:
        embedding.position = position
    if first_dropout is not None:
        embedding.dropout = first_dropout
    found = fdl.Partial(
        models.Decoder,
        vocab_size=vocab_size,
        dim=dim,
        num_layers=len(blocks),
        block=_shortest(blocks),
        norm=norm(node.get("final_ln_tpl"), node, "final_ln_tpl"),
        embedding=embedding,
        unembedding=unembedding,
    )
    if remat is not None:
        found.stack = fdl.Config(layers.Scanned, remat=remat)
    return found


def _position(node: Node, dim: int) -> fdl.Partial[Any] | None:
    # Positions that are added to the embedding; rotary ones belong to the attention.
    position = node.get("position_emb_tpl")
    if position is None:
        return None
    if isinstance(position, Node):
        position.pass_over("embedding_dims")
        if position.kind == "PositionalEmbedding":
            ends = {name: number(position, name) for name in ("min_timescale", "max_timescale")}
            return fdl.Partial(layers.Sinusoids, **{k: float(v) for k, v in ends.items()})
        if position.kind == "TrainablePositionalEmbedding":
            length = number(position, "max_seq_length")
            position.pass_over("min_timescale", "max_timescale")
            table = kernel(position, (length, dim))
            return fdl.Partial(layers.LearnedPositions, max_length=length, table=table)
    node.refuse(
        "position_emb_tpl", "supported: PositionalEmbedding and TrainablePositionalEmbedding"
    )
    return None


def _ends(node: Node, dim: int, vocab_size: int) -> tuple[fdl.Partial[Any], fdl.Partial[Any]]:
    """Return the templates of the embedding and of the map to logits."""
    # Praxis has one setting for the head, which may be the embedding too, and one for an embedding
    # of its own. The pairs decide: separate with a full softmax; shared, in two orders of the
    # table; and GShard's, which scales the logits.
    head, apart = node.get("softmax_tpl"), node.get("separate_embedding_tpl")
    if not isinstance(head, Node):
        node.refuse("softmax_tpl", "it must be a layer")
        return fdl.Partial(layers.Embedding), fdl.Partial(layers.TiedUnembedding)
    head.pass_over("input_dims", "num_classes", "array_lookup_tpl", "einsum_tpl")
    head.pass_over("label_smoothing_apply_for_eval")  # `_task` reports its probability
    shared = ("SharedEmbeddingSoftmax", "NClassMajorSharedEmbeddingSoftmax")
    if isinstance(apart, Node) and apart.kind == "Embedding":
        apart.pass_over("input_dims", "num_classes", "array_lookup", "einsum")
        embedding = _table(apart, kernel(apart, (vocab_size, dim)), dim)
        # It scales look-ups in the table of the head; here they go to the other table.
        head.pass_over("scale_sqrt_depth")
        if head.kind in ("FullSoftmax", "SharedEmbeddingSoftmax"):
            return embedding, _own_head(head, dim, vocab_size)
    elif apart is not None:
        node.refuse("separate_embedding_tpl", "supported: Embedding")
    elif head.kind == "GShardSharedEmbeddingSoftmax":
        # Our scaled head has no cap. The table's initializer is fixed in Praxis' layer, too: a
        # standard normal, whatever `params_init` is.
        head.only("soft_cap_logits", 0.0, None)
        head.only("logits_abs_max", 0.0, None)
        # In rows without padding both denominators are the same.
        if head.get("use_tgt_labels_size_as_loss_denominator"):
            why = "targets that are padding do not count in the denominator of the loss here"
            head.leave("use_tgt_labels_size_as_loss_denominator", why)
        table = fdl.Config(layers.Normal, stddev=1.0)
        scaled = fdl.Partial(layers.ScaledTiedUnembedding)
        return fdl.Partial(layers.Embedding, table=table), scaled
    elif head.kind in shared:
        return _tied(head, dim, vocab_size)
    node.refuse(
        "softmax_tpl",
        f"supported: {', '.join(shared)} and GShardSharedEmbeddingSoftmax, and with an "
        "Embedding of its own FullSoftmax",
    )
    return fdl.Partial(layers.Embedding), fdl.Partial(layers.TiedUnembedding)


def _table(node: Node, initial: fdl.Config[Any], dim: int) -> fdl.Partial[layers.Embedding]:
    found = fdl.Partial(layers.Embedding, table=initial)
    if node.get("scale_sqrt_depth"):
        found.scale = float(dim) ** 0.5
    return found


def _tied(head: Node, dim: int, vocab_size: int) -> tuple[fdl.Partial[Any], fdl.Partial[Any]]:
    head.only("scale_before_logits", False)
    if head.kind == "NClassMajorSharedEmbeddingSoftmax":
        initial, has_bias = kernel(head, (vocab_size, dim)), head.get("use_bias")
        head.pass_over("feed_forward_tpl")
        activation = head.get("activation_tpl")
        if not isinstance(activation, Node) or activation.kind != "Identity":
            head.refuse("activation_tpl", "supported: Identity")
    else:
        initial, has_bias = _feed_forward(head, dim, vocab_size)
    found = fdl.Partial(layers.TiedUnembedding, **_logits(head, has_bias))
    return _table(head, initial, dim), found


def _own_head(head: Node, dim: int, vocab_size: int) -> fdl.Partial[layers.Unembedding]:
    head.only("scale_before_logits", False)
    initial, has_bias = _feed_forward(head, dim, vocab_size)
    return fdl.Partial(layers.Unembedding, kernel=initial, **_logits(head, has_bias))


def _feed_forward(head: Node, dim: int, vocab_size: int) -> tuple[fdl.Config[Any], bool]:
    inner = head.get("feed_forward_tpl")
    if not isinstance(inner, Node) or inner.kind != "FeedForward":
        head.refuse("feed_forward_tpl", "supported: FeedForward")
        return fdl.Config(layers.FanIn), False
    inner.pass_over("input_dims", "output_dims", "activation_tpl", "bias_init", "bias_tpl")
    linear = inner.get("linear_tpl")
    own = linear if isinstance(linear, Node) else inner
    initial = kernel(own, (dim, vocab_size), init=inner.get("weight_init"))
    return initial, bool(inner.get("has_bias"))


def _logits(head: Node, has_bias: Any) -> dict[str, Any]:
    limit = cap(head, "soft_cap_logits")
    found: dict[str, Any] = {} if limit is None else {"cap": limit}
    initial = bias(head, has_bias)
    return found if initial is None else found | {"bias": initial}


def _stack(node: Node, dim: int) -> tuple[list[Any], Any, fdl.Partial[Any] | None]:
    """Return the templates of all layers, the remat policy, and a dropout."""
    # A stack is wrapped up to two times: in a pipeline of stages times circular repeats, and in a
    # loop of `x_times` repeats. Inside is the list of layers that repeats.
    stack, times, remat = node.get("stacked_transformer_tpl"), 1, None
    if isinstance(stack, Node) and stack.kind == "PipelinedTransformer":
        # `experiment.py` adds the pipeline, once the mesh and the batch are known.
        stack.pass_over("num_pipeline_microbatches", "pipeline_microbatch_size", "stream_io")
        stack.pass_over("pipeline_broadcast_inputs", "enable_async_circular_transfer")
        times *= number(stack, "num_pipeline_stages") * number(stack, "circular_repeat")
        # Its policy is about the memory of a whole stage. Ours is for a layer, which is that of the
        # stack inside; the function is the same.
        stack.pass_over("checkpoint_policy", "bf16_accum_in_fp32")
        stack = stack.get("pipeline_stage")
    if isinstance(stack, Node) and stack.kind == "StackedTransformerRepeated":
        stack.only("nd_prefix_shape", None)
        stack.pass_over("repeat_layer_name", "sublayer_name", "repeat_optimizer_dims_mapping")
        stack.pass_over("return_intermediate_outputs", "collect_intermediate_outputs")
        times *= number(stack, "x_times")
        remat = _remat(stack)
        stack = stack.get("block")
    if not isinstance(stack, Node) or stack.kind != "StackedTransformer":
        node.refuse("stacked_transformer_tpl", "supported: StackedTransformer and its repeats")
        return [fdl.Partial(layers.PreNormBlock)], None, None
    # The innermost policy is the one of our layers, so that it replaces that of the loop around it.
    if stack.get("remat"):
        remat = _remat(stack)
    else:
        stack.pass_over("checkpoint_policy")
    return _layers(stack, dim) * int(times), remat, dropout(stack, "input_dropout_prob")


def _remat(stack: Node) -> fdl.Config[Any] | None:
    policy = stack.get("checkpoint_policy")
    if policy in _NAMED:
        return fdl.Config(layers.SaveNamed, names=list(_NAMED[policy]))
    if policy in _REMATS:
        return fdl.Config(_REMATS[policy])
    stack.leave("checkpoint_policy", "everything is kept here; set model.stack.remat")
    return None


def _layers(stack: Node, dim: int) -> list[fdl.Partial[Any]]:
    """Return the templates of the layers of a `StackedTransformer`."""
    # `moe_layers` are the indices of layers with experts; settings of experts only matter if there
    # are any. Templates are one for all layers, or a list, each for as many consecutive layers.
    stack.only("use_cross_attention", False)
    stack.only("ngrammer_tpls", None)
    stack.only("residual_droppath_prob", 0.0)
    stack.pass_over("model_dims", "num_groups", "min_group_size")
    count, mixed = int(number(stack, "num_layers")), stack.get("moe_layers") or []
    if not mixed:
        stack.pass_over("moe_layer_tpl", "gating_func", "unadjusted_expert_capacity_factor")
        stack.pass_over("num_experts")
    elif stack.is_set("num_groups") or stack.is_set("min_group_size"):
        stack.leave("num_groups", "a row is a group here")
    templates = stack.get("transformer_layer_params_tpl")
    every = templates if isinstance(templates, list) else [templates]
    if not all(isinstance(one, Node) and one.kind == "Transformer" for one in every) or (
        not every or count % len(every)
    ):
        stack.refuse("transformer_layer_params_tpl", "supported: Transformer, or several")
        return [fdl.Partial(layers.PreNormBlock)] * count
    each = count // len(every)
    return [_layer(stack, every[index // each], dim, index in mixed) for index in range(count)]


def _layer(stack: Node, node: Node, dim: int, is_mixed: bool) -> fdl.Partial[Any]:
    """Return the template of one layer, a `Transformer`."""
    # Praxis' stack overwrites sizes and rates in its layers' templates before it makes them, so
    # they are read from the stack, and those of the layer are passed over.
    node.pass_over(
        *("input_dims", "hidden_dims", "num_heads", "dim_per_head", "atten_dropout_prob"),
        *("residual_dropout_prob", "relu_dropout_prob", "use_cross_attention", "dropout_tpl"),
        *("allow_skip_cross_attention", "cross_atten_tpl"),
    )
    node.only("residual_droppath_prob", 0.0)
    node.only("ngrammer_tpl", None)
    policy = node.get("norm_policy")
    if policy not in _BLOCKS:
        node.refuse("norm_policy", f"supported: {', '.join(_BLOCKS)}")
    # `dropout_prob` stands in for each rate that is not set or 0, as in Praxis.
    plain = stack.get("dropout_prob")
    sizes = AttentionSizes(
        dim,
        int(number(stack, "num_heads")),
        stack.get("dim_per_head"),
        stack.get("atten_dropout_prob") or plain,
    )
    if stack.get("relu_dropout_prob") or plain:
        stack.leave(
            "relu_dropout_prob" if stack.is_set("relu_dropout_prob") else "dropout_prob",
            "within a perceptron nothing is dropped here",
        )
    hidden = int(number(stack, "hidden_dims"))
    inner = stack.get("moe_layer_tpl") if is_mixed else node.get("tr_fflayer_tpl")
    if is_mixed:
        settings = {name: stack.get(name) for name in ("num_experts", "gating_func")}
        # An exception: Praxis hands the two above to the template of the experts, but never the
        # stack's capacity factor. The template's own applies, which `experts` reads.
        stack.pass_over("unadjusted_expert_capacity_factor")
        mlp = experts(inner, stack, dim, hidden, settings)
    else:
        mlp = feed_forward(inner, node, "tr_fflayer_tpl", dim, hidden)
    normed = norm(node.get("ln_tpl"), node, "ln_tpl")
    if isinstance(inner, Node) and inner.has("ln_tpl"):
        other = norm(inner.get("ln_tpl"), inner, "ln_tpl")
        if not graphs.equal(normed, other):
            inner.refuse("ln_tpl", "both norms of a layer have one template here")
    found = fdl.Partial(
        _BLOCKS.get(policy, layers.PreNormBlock),
        attention=attention(node.get("tr_atten_tpl"), node, "tr_atten_tpl", sizes),
        mlp=mlp,
        norm=normed,
    )
    rate = stack.get("residual_dropout_prob") or plain
    if is_number(rate) and rate > 0:
        found.dropout = fdl.Partial(layers.Dropout, rate=rate)
    return found


def _shortest(blocks: Sequence[Any]) -> Any:
    """Return the template of all layers, or the shortest list of those that alternate."""
    for length in range(1, len(blocks)):
        if all(graphs.equal(blocks[i], blocks[i % length]) for i in range(len(blocks))):
            return blocks[0] if length == 1 else list(blocks[:length])
    return list(blocks) if len(blocks) > 1 else blocks[0]
