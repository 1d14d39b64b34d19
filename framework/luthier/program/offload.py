"""The optimizer's state in the memory of the host, where devices can read it by themselves."""

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
    """Return whether an array goes where the optimizer's memory is."""
    return placement.name.startswith("optimizer/") and bool(placement.shape)


def on_devices(
    leaves: Sequence[jax.Array], shardings: Sequence[NamedSharding]
) -> tuple[jax.Array, ...]:
    """Bring what waits on the host to the devices, inside a trace.

    Args:
      leaves: Arrays of the state.
      shardings: Where each of them is kept.
    """
    device = Memory.DEVICE.value
    return tuple(
        jax.device_put(leaf, kept.with_memory_kind(device))
        if kept.memory_kind == HOST_MEMORY
        else leaf
        for leaf, kept in zip(leaves, shardings, strict=True)
    )


def unsupported(graph: Graph, devices: Sequence[jax.Device]) -> Iterator[Problem]:
    """Yield what is to wait on the host where devices cannot read its memory by themselves.

    Args:
      graph: The experiment graph.
      devices: What it is to run on.
    """
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
    """
    if optimizer_memory is Memory.DEVICE:
        return 0
    return sum(p.bytes_per_device for p in placements.values() if is_offloaded(p))
