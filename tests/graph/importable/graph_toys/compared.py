"""Pairs of graphs by hand, for what differs between them."""

from __future__ import annotations

import enum
from typing import Any

import fiddle as fdl
import jax.numpy as jnp

from graph_toys import parts, recorded
from luthier.graph import floor_divide, multiply, value


class Mode(enum.Enum):
    TRAIN = 1
    TEST = 2


class Embed(parts.Layer):
    pass


class Head(parts.Layer):
    def __init__(self, embed: Any = None, dim: int = 8):
        super().__init__(dim)


class Remat(parts.Layer):
    def __init__(self, inner: Any = None):
        super().__init__()


def part(**given: Any) -> fdl.Config:
    return fdl.Config(recorded.Part, **given)


def mlp(**given: Any) -> fdl.Config:
    return fdl.Config(parts.Mlp, **given)


def pair(a: Any, b: Any) -> tuple[Any, Any]:
    return part(other=a), part(other=b)


def numbers() -> Any:
    return part(rate=1e-3, size=8, other=True), part(rate=3e-4, size=16, other=False)


def insert_at_0() -> Any:
    layers = [64, 128, 256]
    return pair([mlp(hidden=n) for n in layers], [mlp(hidden=n) for n in (32, *layers)])


def remove_from_the_middle() -> Any:
    return pair([mlp(hidden=n) for n in (1, 2, 3)], [mlp(hidden=n) for n in (1, 3)])


def move_in_a_list() -> Any:
    return pair([mlp(hidden=n) for n in (1, 2, 3)], [mlp(hidden=n) for n in (3, 1, 2)])


def insert_and_change() -> Any:
    return pair([mlp(hidden=n) for n in (1, 2, 3)], [mlp(hidden=n) for n in (0, 1, 9, 3)])


def tie() -> Any:
    def model(tied: bool) -> Any:
        embed = fdl.Config(Embed, dim=16)
        head = fdl.Config(Head, embed=embed if tied else fdl.Config(Embed, dim=16))
        return part(size=embed, other=head)

    return model(False), model(True)


def untie() -> Any:
    a, b = tie()
    return b, a


def tie_what_was_not_set() -> Any:
    embed, other = fdl.Config(Embed, dim=16), fdl.Config(Embed, dim=16)
    return part(size=embed, other=fdl.Config(Head)), part(
        size=other, other=fdl.Config(Head, embed=other)
    )


def move_a_sub_graph() -> Any:
    def inner() -> Any:
        return mlp(hidden=64, activation=fdl.Partial(parts.relu))

    return part(size={"encoder": inner()}, other={}), part(size={}, other={"tower": inner()})


def swap_a_class() -> Any:
    return pair(
        mlp(hidden=64, dim=8, activation=parts.relu),
        fdl.Config(parts.GatedMlp, hidden=64, dim=16, gate="gelu"),
    )


def wrap() -> Any:
    return pair(mlp(hidden=64), fdl.Config(Remat, inner=mlp(hidden=64)))


def another_kind_of_node() -> Any:
    return pair(mlp(hidden=64), fdl.Partial(parts.Mlp, hidden=64))


def set_to_its_default() -> Any:
    return part(), part(size=3, rate=0.2)


def reset() -> Any:
    return part(size=5, rate=0.1), part()


def tags() -> Any:
    a, b = part(size=1, rate=2), part(size=1, rate=2)
    fdl.add_tag(a, "size", recorded.Tagged)
    fdl.add_tag(b, "size", parts.SpecialRate)
    fdl.add_tag(b, "rate", recorded.Tagged)
    return a, b


def a_shared_constant() -> Any:
    def model(dim: int) -> Any:
        shared = value(dim, name="dim")
        return part(size=shared, rate=multiply(shared, 4), other=[shared])

    return model(256), model(512)


def arithmetic() -> Any:
    dim, other = value(8, name="dim"), value(8, name="dim")
    return part(size=dim, rate=multiply(dim, 4)), part(size=other, rate=floor_divide(other, 2))


def a_constant_of_its_own() -> Any:
    dim, other = value(8, name="dim"), value(8, name="dim")
    return part(size=dim, rate=dim), part(size=other, rate=8)


def keys_of_a_dict() -> Any:
    return pair({"train": 1, "test": 2, 3: None}, {"train": 1, "held out": 2, 3: 4})


def nested_lists_of_nodes() -> Any:
    return pair(
        [[mlp(hidden=1)], [mlp(hidden=2), mlp(hidden=3)]],
        [[mlp(hidden=1), mlp(hidden=4)], [mlp(hidden=2), mlp(hidden=5)]],
    )


def none_and_not_set() -> Any:
    return part(size=None, rate=None), part(rate=0, other=None)


def dtypes_and_names() -> Any:
    return part(size=jnp.float32, rate=parts.relu, other=Mode.TRAIN), part(
        size=jnp.bfloat16, rate=parts.gelu, other=Mode.TEST
    )


def another_root() -> Any:
    return part(size=1), fdl.Config(parts.Layer, dim=1)


def one_list_in_two_places() -> Any:
    listed = [1, 2]
    return part(size=listed, other=listed), part(size=[1, 2], other=[1, 2])


def tuples_and_dataclasses() -> Any:
    return part(size=(1, 2), other=recorded.Point(1, mlp(hidden=1))), part(
        size=(1, 3), other=recorded.Point(2, mlp(hidden=2))
    )


PAIRS = (
    *(numbers, insert_at_0, remove_from_the_middle, move_in_a_list, insert_and_change),
    *(tie, untie, tie_what_was_not_set, move_a_sub_graph, swap_a_class, wrap),
    *(another_kind_of_node, set_to_its_default, reset, tags, a_shared_constant, arithmetic),
    *(a_constant_of_its_own, keys_of_a_dict, nested_lists_of_nodes, none_and_not_set),
    *(dtypes_and_names, another_root, one_list_in_two_places, tuples_and_dataclasses),
)
