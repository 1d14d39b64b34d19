"""The sharding table: where every array lives, why, and what it weighs."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import jax.numpy as jnp
from jax.sharding import PartitionSpec

from luthier.parallel.bytes import array_bytes, bytes_per_device, format_bytes
from luthier.parallel.mesh import describe_sizes
from luthier.parallel.specs import Placement

_COLUMNS = ("name", "shape", "dtype", "spec", "reason", "bytes/device")


def sharding_table(placements: Iterable[Placement], sizes: Mapping[str, int]) -> str:
    """Return the layout of arrays as a text table with one line for each.

    Args:
      placements: What `place` found.
      sizes: Mesh axis to number of devices.

    Returns:
      Lines without trailing spaces: the mesh, a header, the arrays, the sums.
    """
    placed = list(placements)
    rows = [_COLUMNS, *(_row(placement) for placement in placed)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(_COLUMNS))]
    total = sum(array_bytes(p.shape, p.dtype) for p in placed)
    held = bytes_per_device(placed)
    lines = [f"mesh {describe_sizes(sizes)}"]
    lines += [_line(row, widths) for row in rows]
    lines.append(
        f"{len(placed)} arrays, {format_bytes(total)} in all, {format_bytes(held)} on each device"
    )
    return "\n".join(lines)


def format_spec(spec: PartitionSpec) -> str:
    """Return a spec as its dimensions: `fsdp, tensor`, `(data fsdp), -`; `-` is replicated.

    Args:
      spec: The mesh axes along each dimension.
    """
    return ", ".join(
        "-" if entry is None else entry if isinstance(entry, str) else f"({' '.join(entry)})"
        for entry in spec
    )


def _row(placement: Placement) -> tuple[str, ...]:
    return (
        placement.name,
        "x".join(map(str, placement.shape)) or "scalar",
        getattr(placement.dtype, "name", None) or jnp.dtype(placement.dtype).name,
        format_spec(placement.spec) or "-",
        placement.reason,
        format_bytes(placement.bytes_per_device),
    )


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    cells = [cell.ljust(width) for cell, width in zip(row[:-1], widths[:-1], strict=True)]
    return "  ".join([*cells, row[-1].rjust(widths[-1])]).rstrip()
