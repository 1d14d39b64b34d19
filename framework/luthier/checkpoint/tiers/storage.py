"""How Orbax writes and reads arrays: sizes of files, and the part of each replica."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from luthier.errors import CheckpointError, Problem

if TYPE_CHECKING:
    import jax


@dataclasses.dataclass(frozen=True)
class Storage:
    """How Orbax writes and reads arrays.

    Args:
      file_bytes: The size at which a data file is full; None is Orbax's own, 2 GiB.
      saving_replicas: Among how many replicas a save of replicated arrays is shared out; 1 leaves
        it to the first, None takes all.
      broadcast_axis: The mesh axis whose first replica reads a checkpoint, and sends it to the
        others; None has every replica read it. No array may be shared out over this axis.
    """

    RANGES: ClassVar[dict[str, str]] = {"file_bytes": "1 <= x", "saving_replicas": "1 <= x"}

    file_bytes: int | None = None
    saving_replicas: int | None = None
    broadcast_axis: str | None = None

    def saving(self) -> Any:
        """Return the Orbax context to save in."""
        from orbax.checkpoint import v1 as ocp

        context = ocp.Context()
        context.array.saving.ocdbt_target_data_file_size = self.file_bytes
        if self.saving_replicas is not None:
            context.array.saving.use_replica_parallel = self.saving_replicas > 1
            context.array.saving.max_replicas_for_replica_parallel = self.saving_replicas
        return context

    def loading(self, arrays: Mapping[str, jax.ShapeDtypeStruct]) -> Any:
        """Return the Orbax context to load in.

        Args:
          arrays: Shape, dtype and sharding of what is wanted.

        Raises:
          CheckpointError: `broadcast_axis` is no axis of the mesh, or an array is shared out over
            it.
        """
        from orbax.checkpoint import v1 as ocp

        context = ocp.Context()
        index = self._broadcast_index(arrays)
        if index is not None:
            loading = context.array.loading
            loading.use_load_and_broadcast = True
            loading.load_and_broadcast_options.replica_axis_index = index
        return context

    def _broadcast_index(self, arrays: Mapping[str, jax.ShapeDtypeStruct]) -> int | None:
        """Return the place of the axis in the mesh; None where there is one replica only."""
        axis, index = self.broadcast_axis, None
        if axis is None:
            return None
        path = "checkpoints.storage.broadcast_axis"
        for name, array in arrays.items():
            mesh, spec = getattr(array.sharding, "mesh", None), getattr(array.sharding, "spec", ())
            if mesh is None or axis not in mesh.axis_names:
                axes = "no mesh" if mesh is None else f"a mesh of {', '.join(mesh.axis_names)}"
                raise CheckpointError(Problem(f"{name} is on {axes}, without {axis!r}", path))
            if any(axis == part or (isinstance(part, tuple) and axis in part) for part in spec):
                remedy = "choose an axis that only repeats parameters, or leave it out"
                raise CheckpointError(
                    Problem(f"{name} is shared out over {axis!r}", path, "", remedy)
                )
            index = mesh.axis_names.index(axis) if mesh.shape[axis] > 1 else None
        return index
