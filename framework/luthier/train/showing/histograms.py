"""Distributions of parameters, counted where they lie."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp

from luthier.program import Program
from luthier.program.program import Leaves
from luthier.records import Histogram, Histograms

PREFIX = "parameters/"


def chosen_parameters(program: Program, settings: Histograms) -> list[str]:
    """Return the names of the parameters that histograms are made of, of numbers only."""
    return [
        name
        for name, placement in program.placements.items()
        if name.startswith(PREFIX)
        and jnp.issubdtype(placement.dtype, jnp.number)
        and re.search(settings.pattern, name[len(PREFIX) :])
    ]


def make_histograms(
    program: Program, settings: Histograms
) -> Callable[[Leaves, int], Iterator[Histogram]]:
    """Return a function from a state and its step to a histogram of every chosen parameter.

    One compiled call counts all of them; only the counts leave the devices.

    Args:
      program: What the state belongs to.
      settings: Which parameters, and how many bins.
    """
    names = chosen_parameters(program, settings)

    def count(arrays: dict[str, jax.Array]) -> Any:
        return {name: count_bins(array, settings.num_bins) for name, array in arrays.items()}

    counted = jax.jit(count, out_shardings=program.replicated)

    def histograms(leaves: Leaves, step: int) -> Iterator[Histogram]:
        state = program.named(leaves)
        found = jax.device_get(counted({name: state[name] for name in names}))
        for name in names:
            low, high, counts = found[name]
            own = name[len(PREFIX) :]
            yield Histogram(step, own, float(low), float(high), counts.tolist())

    return histograms


def count_bins(array: jax.Array, num_bins: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Return the least and the greatest entry, and how many lie in each bin between them.

    Entries that are not finite are left out. Where all are one number, the bins reach half a unit
    below and above it, as NumPy's.

    Args:
      array: Of any shape.
      num_bins: Number of bins of one width; the last one holds its upper edge too.

    Returns:
      The lower and the upper edge, float32 scalars, and the counts, int32 [num_bins].
    """
    entries = array.astype(jnp.float32).ravel()
    finite = jnp.isfinite(entries)
    some = finite.any()
    low = jnp.where(some, jnp.min(entries, initial=jnp.inf, where=finite), 0)
    high = jnp.where(some, jnp.max(entries, initial=-jnp.inf, where=finite), 0)
    one = low == high
    low, high = jnp.where(one, low - 0.5, low), jnp.where(one, high + 0.5, high)
    place = jnp.where(finite, (entries - low) / (high - low) * num_bins, 0)
    bins = jnp.clip(jnp.floor(place), 0, num_bins - 1).astype(jnp.int32)
    counts = jnp.zeros(num_bins, jnp.int32).at[bins].add(finite.astype(jnp.int32))
    return low, high, counts
