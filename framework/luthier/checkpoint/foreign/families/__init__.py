"""The maps of families, one family or a few kindred ones per file."""

from luthier.checkpoint.foreign.families.registry import named, names, of_config

__all__ = ["named", "names", "of_config"]
