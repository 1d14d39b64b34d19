"""A fixed graph with every kind of value that a record can hold (this imports jax).

Golden fingerprints depend on it: add to `everything` only together with new goldens.
"""

from __future__ import annotations

import dataclasses
import enum
import math
import pathlib
from typing import Any, NamedTuple

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np

from luthier.graph import multiply, value


class Speed(enum.Enum):
    SLOW = 1
    FAST = 2


class Ways(enum.Flag):
    UP = 1
    DOWN = 2


class Tagged(fdl.Tag):
    """A tag."""


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: Any = 0


@dataclasses.dataclass
class Part:
    size: Any = 3
    rate: Any = 0.1
    other: Any = None
    shape: Any = (1, 2)
    extra: Any = dataclasses.field(default_factory=lambda: {"a": [1]})


@dataclasses.dataclass
class Root:
    name: Any = "run"
    records: Any = None
    checkpoints: Any = None
    part: Any = None
    things: Any = ()


class Holder:
    """Exposes a class in a class and a class method."""

    class Inner:
        def __init__(self, a: int = 1):
            self.a = a

    @classmethod
    def make(cls, a: int = 1) -> Holder:
        return cls()


def keywords(**others: Any) -> dict[str, Any]:
    return others


def make_scaler(scale: float) -> Any:
    def scaled(x: Any) -> Any:
        return x * scale

    return scaled


def with_closure(x: Any = 1, f: Any = make_scaler(2.0)) -> Any:
    return x


def everything() -> fdl.Config[Root]:
    """One of each."""
    dim = value(256, name="dim")
    shared = fdl.Config(Part, size=dim, rate=multiply(dim, 4))
    listed = [1, 2]
    root = fdl.Config(
        Root,
        name="all",
        records=fdl.Config(Part, size="records"),
        checkpoints=fdl.Config(Part, size="checkpoints"),
        part=fdl.Partial(
            Part,
            size=shared,
            rate=fdl.ArgFactory(Part, size=7),
            other=[shared, (dim, {"k": listed})],
        ),
        things=fdl.Config(
            keywords,
            numbers=[0, -1, 2**70, 1.5, 1e-300, -0.0, True, None, math.inf, -math.inf, 1 + 2j],
            text=["", "ü\n", "\udc80", b"\x00\xff"],
            containers=[(), (1,), [], {}, {1: 2, "1": 3, None: (4,)}, {3, 1}, frozenset("ab")],
            records=[Pair(1, shared), Point(1, Point(2)), range(1, 9, 2), slice(None, 3), Ellipsis],
            paths=[pathlib.Path("a/b"), pathlib.PurePosixPath("/c"), pathlib.PureWindowsPath("d")],
            enums=[Speed.FAST, Ways.UP, Ways.UP | Ways.DOWN, jax.lax.Precision.HIGHEST],
            dtypes=[jnp.bfloat16, np.float32, np.dtype("int8"), np.dtype("bfloat16"), int],
            scalars=[np.float32(0.1), np.int64(3), np.bool_(True)],
            callables=[jax.nn.gelu, jax.nn.relu, jax.nn.silu, jnp.tanh, Holder.Inner, Holder.make],
            specs=[jax.sharding.PartitionSpec("data", None, ("fsdp", "tensor"))],
            listed=listed,
        ),
    )
    fdl.add_tag(shared, "size", Tagged)
    return root
