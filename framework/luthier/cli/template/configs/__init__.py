"""Experiments: `luthier list` shows them."""
