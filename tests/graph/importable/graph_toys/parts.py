"""A small experiment's parts: every kind of argument that the graph has to deal with."""

from __future__ import annotations

import dataclasses
import enum
import pathlib
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Protocol

import fiddle as fdl
import numpy as np

from luthier.durations import Seconds, Steps, Tokens

if TYPE_CHECKING:
    from somewhere import Unknown


class Rate(fdl.Tag):
    """Learning rates."""


class DropoutTag(fdl.Tag):
    """Dropout rates."""


class SpecialRate(Rate):
    """Learning rates that are special."""


class Schedule(Protocol):
    def __call__(self, step: int) -> float: ...


@dataclasses.dataclass(frozen=True)
class Cosine:
    peak: float
    warmup_steps: int = 100
    total_steps: int = 1000

    RANGES: ClassVar[dict[str, str]] = {"peak": "0 < x", "warmup_steps": "x >= 0"}
    RELATIONS: ClassVar[tuple[str, ...]] = ("warmup_steps < total_steps",)

    def __call__(self, step: int) -> float:
        return self.peak


@dataclasses.dataclass(frozen=True)
class Constant:
    rate: float

    def __call__(self, step: int) -> float:
        return self.rate


@dataclasses.dataclass
class Optimizer:
    learning_rate: Schedule
    b1: float = 0.9
    b2: float = 0.999
    nesterov: bool = False

    RANGES: ClassVar[dict[str, str]] = {"b1": "0 <= x < 1", "b2": "0 <= x < 1"}


def adam(learning_rate: Schedule, b2: float = 0.999) -> Optimizer:
    return Optimizer(learning_rate, b2=b2)


def untyped(rate=0.1, size=3, name="a", flag=False, nothing=None, pair=(1, 2)):
    return rate


def half_typed(size: int, other: Unknown = None) -> int:  # type: ignore[name-defined]
    return size


def chain(*parts: Any) -> Any:
    return parts


def keywords(a: int, **others: float) -> Any:
    return others


def by_position(a: int, b: int = 2, /, c: int = 3) -> Any:
    return a, b, c


def relu(x: Any) -> Any:
    return x


def gelu(x: Any) -> Any:
    return x


class Layer:
    def __init__(self, dim: int = 8, dropout: float = 0.0):
        self.dim, self.dropout = dim, dropout

    RANGES: ClassVar[dict[str, str]] = {"dropout": "0 <= x < 1"}


class Mlp(Layer):
    def __init__(
        self,
        hidden: int = 32,
        dim: int = 8,
        dropout: float = 0.0,
        activation: Callable[..., Any] = relu,
        dtype: np.dtype | None = None,
    ):
        super().__init__(dim, dropout)
        self.hidden = hidden


class GatedMlp(Mlp):
    def __init__(self, hidden: int = 32, dim: int = 8, dropout: float = 0.0, gate: str = "silu"):
        super().__init__(hidden, dim, dropout)


@dataclasses.dataclass
class Model:
    dim: int
    layers: list[Layer] = dataclasses.field(default_factory=list)
    num_heads: int = 4
    dropout: float = 0.0
    tie: bool = True

    RELATIONS: ClassVar[tuple[str, ...]] = ("dim % num_heads == 0",)


class Kind(enum.Enum):
    FAST = "fast"
    EXACT = "exact"
    NONE = "none"


@dataclasses.dataclass(frozen=True)
class Rules:
    parameters: dict[str, tuple[str, ...]] = dataclasses.field(
        default_factory=lambda: {"embed": ("fsdp",), "vocab": ("tensor",)}
    )
    sizes: tuple[int, int] = (1, 1)


@dataclasses.dataclass
class Source:
    path: pathlib.Path = pathlib.Path("data")
    fields: tuple[str, ...] = ()
    length: int = 128
    names: Sequence[str] = ()


@dataclasses.dataclass
class Evaluation:
    data: Source
    every: Steps | Tokens | Seconds = Steps(100)
    batch_size: int | None = None


@dataclasses.dataclass
class Experiment:
    name: str
    model: Model
    optimizer: Optimizer
    data: Source
    evaluations: Mapping[str, Evaluation] = dataclasses.field(default_factory=dict)
    rules: Rules = Rules()
    kind: Kind = Kind.FAST
    mode: Literal["train", "test"] = "train"
    steps: int = 1000
    seed: int | None = None
    note: str | None = None
    extra: Any = None
    callback: Callable[..., Any] | None = None
    duration: Steps | Tokens | Seconds | None = None


def experiment() -> fdl.Config[Experiment]:
    """The graph that most tests edit."""
    shared = fdl.Config(Mlp, hidden=64)
    optimizer = fdl.Config(
        Optimizer, learning_rate=fdl.Config(Cosine, peak=1e-3, total_steps=1000), b2=0.99
    )
    fdl.add_tag(optimizer.learning_rate, "peak", Rate)
    source = fdl.Config(Source)
    return fdl.Config(
        Experiment,
        name="toy",
        model=fdl.Config(Model, dim=16, layers=[shared, fdl.Config(GatedMlp), shared]),
        optimizer=optimizer,
        data=source,
        evaluations={
            "held_out": fdl.Config(
                Evaluation, data=fdl.Config(Source, length=64), every=fdl.Config(Steps, count=50)
            ),
            "long text": fdl.Config(Evaluation, data=fdl.Config(Source)),
        },
    )
