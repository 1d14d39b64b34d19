"""The checkpoints of other JAX programs: how they are read, and the maps from their names to ours.

Each module has `read`, which finds the arrays of a checkpoint, and `family_of`, which chooses the
map for them.
"""

from luthier.checkpoint.foreign.origins.arrays import StoredArray, StoredArrays

__all__ = ["StoredArray", "StoredArrays"]
