"""Studies: `luthier list` shows them."""
