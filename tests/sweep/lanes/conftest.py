"""Tiny trials of real training."""

from trials import tiny, write_trial  # noqa: F401
