"""A projection of its own for queries, where attention has one template for all three."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from flax import nnx

from luthier.layers.parameters import DType, Template, create


def query_and_others(
    query: Template,
    others: Template,
    *,
    inputs: Sequence[int],
    outputs: Sequence[int],
    input_axes: Sequence[str | None],
    output_axes: Sequence[str | None],
    dtype: DType = jnp.float32,
    param_dtype: DType = jnp.float32,
    rngs: nnx.Rngs,
) -> Any:
    """Make the projection of queries from one template, those of keys and values from another.

    T5 needs it: its scores are not scaled, so the kernel of its queries starts smaller, with a
    variance of `1 / (D K)`.

    Args:
      query: Template of what gives `heads`.
      others: Template of what gives `kv_heads`.
      inputs: Sizes of the input dimensions.
      outputs: Sizes of the output dimensions.
      input_axes: Logical axis names of the input dimensions.
      output_axes: Logical axis names of the output dimensions, by which the projections are told
        apart.
      dtype: Type that is computed in.
      param_dtype: Type that parameters are stored in.
      rngs: Supplies the keys of the parameters.

    Returns:
      The projection.

    Source: Raffel et al. 2019, arXiv 1910.10683, and the initializers of its published program.
    """
    return create(
        query if output_axes[0] == "heads" else others,
        inputs=inputs,
        outputs=outputs,
        input_axes=input_axes,
        output_axes=output_axes,
        dtype=dtype,
        param_dtype=param_dtype,
        rngs=rngs,
    )


# What its caller passes, as modules declare it in their class.
setattr(  # noqa: B010
    query_and_others,
    "INHERITED",
    ("inputs", "outputs", "input_axes", "output_axes", "dtype", "param_dtype", "rngs"),
)
