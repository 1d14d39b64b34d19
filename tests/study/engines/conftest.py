"""Tiny trials of real training."""

from sweep_trials import tiny, until, write_trial  # noqa: F401
