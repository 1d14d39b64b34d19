"""GLaM: mixtures of experts in every second layer, as Pax builds them.

Du et al. 2021, arXiv 2112.06905, sections 4 and 5.1; praxis 1.4.0, `layers/glam.py`.
"""

from __future__ import annotations

from typing import Any

import fiddle as fdl
import jax

from luthier import layers, models
from luthier.graph import multiply, power, true_divide, value


def glam(
    *,
    vocab_size: Any,
    dim: Any,
    num_layers: Any,
    num_heads: Any,
    hidden_dim: Any,
    num_experts: Any,
    head_dim: Any = 128,
    k: Any = 2,
    capacity: Any = 1.0,
    num_buckets: Any = 32,
    max_distance: Any = 128,
    pad_to_multiple: Any = 1,
) -> fdl.Partial[models.Decoder]:
    """Return the template of a GLaM: layers with experts alternate with layers with a gated MLP.

    Relative positions are biases of each layer, scores are not scaled, and the tied logits are
    divided by `sqrt(dim)`. Train it with `tasks.Routed`.

    Args:
      vocab_size: Tokens of the vocabulary.
      dim: Size of the residual stream.
      num_layers: Number of blocks, an even one.
      num_heads: Heads.
      hidden_dim: Size of an expert, and of the MLP.
      num_experts: Experts of every second layer.
      head_dim: Size of a head.
      k: Experts of a token.
      capacity: Places of the experts for each choice, see `layers.Capacity`.
      num_buckets: Classes of distances.
      max_distance: Distance from which all are of one class.
      pad_to_multiple: Rows of the embedding table are a multiple of this.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Deviation: Pax adds 1 to the sum of the exponentials of scores, and puts rows together into as
      many groups as there are devices, of which each has places for its tokens.
    """
    dim, hidden_dim = value(dim, name="dim"), value(hidden_dim, name="hidden_dim")
    norm = fdl.Partial(layers.RMSNorm, epsilon=1e-6)
    up, down = gshard_linear(dim), gshard_linear(hidden_dim)
    sizes = {"hidden_dim": hidden_dim, "activation": jax.nn.gelu, "up": up, "down": down}
    expert = fdl.Partial(layers.Mlp, **sizes)
    return fdl.Partial(
        models.Decoder,
        vocab_size=vocab_size,
        dim=dim,
        num_layers=num_layers,
        block=[
            fdl.Partial(
                layers.PreNormBlock,
                attention=_attention(num_heads, head_dim, num_buckets, max_distance),
                mlp=mlp,
                norm=norm,
            )
            for mlp in (
                gshard_experts(expert, num_experts=num_experts, k=k, capacity=capacity),
                fdl.Partial(layers.GatedMlp, gate=up, **sizes),
            )
        ],
        norm=norm,
        embedding=fdl.Partial(
            layers.Embedding,
            table=fdl.Config(layers.Normal, stddev=1.0),
            pad_to_multiple=pad_to_multiple,
        ),
        unembedding=fdl.Partial(layers.ScaledTiedUnembedding),
    )


def gshard_experts(
    expert: fdl.Partial, *, num_experts: Any, k: Any = 2, capacity: Any = 1.0
) -> fdl.Partial[layers.Experts]:
    """Return the template of a mixture of experts with capacity per row; choices beyond it drop.

    Args:
      expert: Template of an expert; the router is drawn as its `up` is.
      num_experts: Experts.
      k: Experts of a token.
      capacity: Places of the experts for each choice. Pax counts them for each token, so that its
        2.0 for two experts is 1.0 here.

    Returns:
      A template of `layers.Experts`.

    Source: Lepikhin et al. 2020, arXiv 2006.16668, section 2.2; praxis 1.4.0,
      `transformers.TransformerFeedForwardMoe`.
    """
    logits = fdl.Partial(layers.RouterLogits, projection=expert.up)
    return fdl.Partial(
        layers.Experts,
        num_experts=num_experts,
        router=fdl.Partial(layers.TopK, k=k, logits=logits),
        expert=expert,
        dispatch=fdl.Config(layers.Capacity, factor=capacity),
    )


def gshard_linear(inputs: Any) -> fdl.Partial[layers.Linear]:
    """Return the template of a linear map drawn uniformly from `±sqrt(3 / inputs)`.

    Args:
      inputs: Size of the input.

    Returns:
      A template of `layers.Linear`.

    Source: praxis 1.4.0, `internal_gshard_variance_scaling_fan_in_init`.
    """
    limit = power(true_divide(3, inputs), 0.5)
    return fdl.Partial(layers.Linear, kernel=fdl.Config(layers.Uniform, limit=limit))


def _attention(
    num_heads: Any, head_dim: Any, num_buckets: Any, max_distance: Any
) -> fdl.Partial[layers.OwnBias]:
    """Return unscaled attention with relative positions; queries start smaller instead."""
    # Without 1/sqrt(head_dim), scores of kernels drawn alike would be too large at first: that
    # factor is in the initial kernel of the queries. The table of biases has the shape [heads,
    # buckets] in Praxis, by which it is drawn.
    heads, head_dim = value(num_heads, name="num_heads"), value(head_dim, name="head_dim")
    buckets = value(num_buckets, name="num_buckets")
    small = fdl.Config(layers.FanIn, scale=true_divide(1, head_dim))
    plain = fdl.Partial(layers.Linear, kernel=fdl.Config(layers.FanIn))
    stddev = power(multiply(heads, buckets), -0.5)
    return fdl.Partial(
        layers.OwnBias,
        attention=fdl.Partial(
            layers.Attention,
            num_heads=heads,
            head_dim=head_dim,
            projection=fdl.Partial(
                layers.query_and_others,
                query=fdl.Partial(layers.Linear, kernel=small),
                others=plain,
            ),
            output=plain,
            core=fdl.Config(layers.AutoAttention, scale=1.0),
        ),
        bias=fdl.Partial(
            layers.RelativeBias,
            num_heads=heads,
            buckets=fdl.Config(layers.PastBuckets, num_buckets=buckets, max_distance=max_distance),
            table=fdl.Config(layers.Normal, stddev=stddev),
        ),
    )


def glam_1162b() -> fdl.Partial[models.Decoder]:
    """Return GLaM 64B/64E: 1.2 trillion parameters, 96.6 billion of them active.

    Returns:
      A template of `models.Decoder`, for `model` of an experiment.

    Example:
      >>> from luthier import planner
      >>> from luthier.recipes import decoders
      >>> planner.count_parameters(planner.model_parameters(decoders.glam_1162b())).total
      1161756418048
    """
    sizes = {"dim": 8192, "num_layers": 64, "num_heads": 128, "hidden_dim": 32_768}
    return glam(vocab_size=256_000, num_experts=64, **sizes)
