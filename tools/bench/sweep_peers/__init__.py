"""Sweeps written by hand, or run by other launchers: what `luthier sweep` is measured beside."""
