"""Tiny trials of real training."""

from trials import tiny, until, write_trial  # noqa: F401
