"""Tiny trials of real training."""

from sweep_trials import tiny, write_trial  # noqa: F401
