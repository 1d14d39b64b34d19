"""Completion from a static index, so that a Tab never imports JAX, Flax or Fiddle."""
