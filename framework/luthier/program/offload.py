"""The optimizer's state in pinned memory of the host, which devices read by themselves.

Moments of Adam are twice the size of the parameters, and a step reads and writes each once. On the
host they cost no device memory between steps, for the time of two transfers a step.
"""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping, Sequence

import jax
from jax.sharding import NamedSharding

from luthier import graph as graphs
from luthier.errors import Problem
from luthier.graph import Graph
from luthier.layers import OffloadNamed
from luthier.layers.remat import HOST_MEMORY
from luthier.parallel import Placement

_SETTING = "training.optimizer_memory"


class Memory(enum.Enum):
    """A memory that arrays of the state are kept in."""

    DEVICE = "device"
    HOST = HOST_MEMORY


def placed(
    placement: Placement, mesh: jax.sharding.Mesh, optimizer_memory: Memory
) -> NamedSharding:
    """Return the sharding of an array of the state, with the memory that it is kept in.

    Args:
      placement: Where it lives on the mesh.
      mesh: The devices.
      optimizer_memory: Where the optimizer's arrays are kept; its scalars stay on the devices.
    """
    if optimizer_memory is Memory.HOST and is_offloaded(placement):
        return NamedSharding(mesh, placement.spec, memory_kind=HOST_MEMORY)
    return NamedSharding(mesh, placement.spec)


def is_offloaded(placement: Placement) -> bool:
    """Return whether `training.optimizer_memory` applies to an array of the state."""
    # Scalars, such as the count of updates, stay: they save nothing, and each is a transfer.
    return placement.name.startswith("optimizer/") and bool(placement.shape)


def on_devices(
    leaves: Sequence[jax.Array], shardings: Sequence[NamedSharding]
) -> tuple[jax.Array, ...]:
    """Copy arrays in host memory to the devices, inside a trace.

    Args:
      leaves: Arrays of the state.
      shardings: The sharding, with memory kind, of each of them between steps.
    """
    # A `device_put` inside a trace is an instruction of the program, so XLA may overlap the copy
    # with the backward pass. The way back is implied by the shardings of the outputs.
    device = Memory.DEVICE.value
    return tuple(
        jax.device_put(leaf, kept.with_memory_kind(device))
        if kept.memory_kind == HOST_MEMORY
        else leaf
        for leaf, kept in zip(leaves, shardings, strict=True)
    )


def unsupported(graph: Graph, devices: Sequence[jax.Device]) -> Iterator[Problem]:
    """Yield a problem for each use of host memory that the devices do not support.

    Args:
      graph: The experiment graph.
      devices: The devices to run on.
    """
    # Checked before anything is traced, so that the message names the setting or the node.
    remedies = {}
    if graphs.get(graph, _SETTING) is Memory.HOST:
        remedies[_SETTING] = f"set {_SETTING}=DEVICE"
    for place in graphs.walk(graph, defaults=False, once=True):
        if getattr(place.value, "__fn_or_cls__", None) is OffloadNamed:
            remedies[place.path] = f"set {place.path}=FullRemat, or name what to keep in SaveNamed"
    if not remedies or HOST_MEMORY in {m.kind for m in devices[0].addressable_memories()}:
        return
    what = f"the {devices[0].platform} backend cannot keep arrays in the memory of the host"
    for path, remedy in remedies.items():
        yield Problem(what, path, graphs.origin_of(graph, path), remedy)


def host_bytes(placements: Mapping[str, Placement], optimizer_memory: Memory) -> int:
    """Return the bytes of the state that each device keeps on the host.

    Args:
      placements: Where every array of the state lives, by name.
      optimizer_memory: Where the optimizer's arrays are kept.

    Returns:
      Bytes of one device; 0 where nothing is offloaded.
    """
    if optimizer_memory is Memory.DEVICE:
        return 0
    return sum(p.bytes_per_device for p in placements.values() if is_offloaded(p))
