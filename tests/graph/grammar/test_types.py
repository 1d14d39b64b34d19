from __future__ import annotations

import collections.abc
import math
import pathlib
import typing
from typing import Annotated, Any, Literal, NewType, Optional, TypedDict, TypeVar, Union

import annotated_types
import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import typing_extensions
from graph_toys import modules, parts
from graph_toys.names import case_name
from jax.typing import ArrayLike, DTypeLike

from luthier.durations import Duration, Seconds, Steps
from luthier.graph import multiply, value
from luthier.graph.grammar import (
    NOTHING,
    choice,
    choices,
    describe,
    element,
    fits,
    inferred,
    is_dtype,
    is_dtype_annotation,
    key,
    members,
)

Size = NewType("Size", int)
Bound = TypeVar("Bound", bound=parts.Layer)
Free = TypeVar("Free")


class Shape(TypedDict):
    height: int


SCALAR = fdl.Config(parts.half_typed, 1)

FITTING = [
    (1, int),
    (1, float),
    (1.5, float),
    (True, bool),
    ("a", str),
    (None, None),
    (None, Optional[int]),  # noqa: UP045
    (1, Union[int, str]),  # noqa: UP007
    (1, Any),
    (1, object),
    (1, Free),
    (1, Size),
    (1, "unresolved"),
    (1j, complex),
    (Steps(3), Steps | Seconds),
    (Steps(3), Duration),
    (parts.Kind.FAST, parts.Kind),
    ("a", Literal["a", 3]),
    (3, Literal["a", 3]),
    ((1, 2), tuple[int, ...]),
    ((1, "a"), tuple[int, str]),
    ((), tuple[()]),
    ((), tuple[int, ...]),
    ((1,), tuple),
    ([1], list[int]),
    ([1], collections.abc.Sequence[int]),
    ((1,), collections.abc.Iterable[int]),
    ({1}, set[int]),
    ({"a": (1,)}, dict[str, tuple[int, ...]]),
    ({"a": 1}, collections.abc.Mapping[str, float]),
    ({"height": 1}, Shape),
    (parts.relu, collections.abc.Callable[..., Any]),
    (parts.relu, typing.Callable),
    (parts.Mlp, type[parts.Layer]),
    (parts.Mlp, type),
    (pathlib.Path("a"), pathlib.Path),
    (3, Annotated[int, annotated_types.Gt(2)]),
    (jnp.bfloat16, DTypeLike),
    (np.dtype("int8"), np.dtype),
    ("float32", DTypeLike),
    (None, DTypeLike | None),
    (jnp.float32, jnp.dtype | None),
    (0.5, ArrayLike),
    (jax.nn.relu, collections.abc.Callable),
    # Nodes count as what they build.
    (fdl.Config(parts.Mlp), parts.Layer),
    (fdl.Config(parts.GatedMlp), parts.Mlp | None),
    (fdl.Config(parts.Mlp), parts.Schedule),
    (fdl.Config(parts.Constant, 0.1), collections.abc.Callable[[int], float]),
    (fdl.Partial(parts.Mlp), collections.abc.Callable[..., parts.Layer]),
    (fdl.Partial(parts.Mlp), type[parts.Layer]),
    (fdl.Partial(modules.Dense), collections.abc.Callable),
    ([fdl.Config(parts.Mlp)], list[parts.Layer]),
    ({"a": fdl.Config(Steps, 1)}, dict[str, Steps]),
    (fdl.Config(parts.adam), parts.Optimizer),
    (fdl.Config(optax.adamw), optax.GradientTransformation),
    (fdl.Config(parts.untyped), parts.Optimizer),
    (fdl.Config(parts.half_typed), float),
    (fdl.Config(optax.cosine_decay_schedule), ArrayLike | collections.abc.Callable),
    (fdl.NO_VALUE, int),
    # Value nodes count as their value.
    (value(3), int),
    (multiply(value(3), 0.5), float),
    ((value(3), 4), tuple[int, ...]),
]

MISFITTING = [
    (True, int),
    (True, float),
    (1, bool),
    (1.0, int),
    ("1", int),
    (1, str),
    (None, int),
    ("a", Optional[int]),  # noqa: UP045
    (True, Size),
    (1, Duration),
    ("fast", parts.Kind),
    (True, Literal[1]),
    ("b", Literal["a"]),
    ([1], tuple[int, ...]),
    ((1,), list[int]),
    ((1, 2), tuple[int]),
    ((1, "a"), tuple[int, ...]),
    (((1,),), tuple[()]),
    ("ab", collections.abc.Sequence[str]),
    ({"a": "b"}, dict[str, int]),
    ({1: 1}, dict[str, int]),
    (3, dict),
    (3, Shape),
    (3, collections.abc.Callable[..., Any]),
    (parts.Layer, type[parts.Mlp]),
    ("a", pathlib.Path),
    (1, Annotated[int, annotated_types.Gt(2)]),
    ("x", Annotated[int, "a word"]),
    (3, DTypeLike),
    ("float33", DTypeLike),
    (None, DTypeLike),
    (parts.Mlp, DTypeLike),
    ("x", ArrayLike),
    (3, parts.Layer),
    (fdl.Config(parts.Layer), parts.Mlp),
    (fdl.Config(parts.Mlp), int),
    (fdl.Config(parts.Mlp), None),
    (fdl.Config(parts.Mlp), Literal["a"]),
    (fdl.Config(parts.Mlp), parts.Kind),
    (fdl.Config(parts.Mlp), collections.abc.Callable),
    (fdl.Config(parts.Mlp), type[parts.Mlp]),
    (fdl.Config(parts.Mlp), dict[str, int]),
    (fdl.Config(parts.adam), parts.Layer),
    (fdl.Config(parts.half_typed), str),
    ([fdl.Config(Steps, 1)], list[parts.Layer]),
    (value(3.5), int),
    (value("x"), int),
    (multiply(value(3), 0.5), int),
]


@pytest.mark.parametrize(("given", "annotation"), FITTING, ids=case_name)
def test_what_fits(given, annotation):
    assert fits(given, annotation)


@pytest.mark.parametrize(("given", "annotation"), MISFITTING, ids=case_name)
def test_what_does_not(given, annotation):
    assert not fits(given, annotation)


@pytest.mark.parametrize(
    ("annotation", "expected"),
    [
        (int, "an int"),
        (float | None, "a float or None"),
        (None | int | str, "an int, a str or None"),
        (tuple[int, ...], "a tuple of int"),
        (tuple[int, str], "a tuple of (int, str)"),
        (list[parts.Layer], "a list of Layer"),
        (dict[str, int], "a dict of str to int"),
        (Literal["a", "b"], "'a' or 'b'"),
        (collections.abc.Callable[..., int], "a callable"),
        (DTypeLike, "a dtype"),
        (jnp.dtype | None, "a dtype or None"),
        (ArrayLike, "a number or an array"),
        (Steps | Seconds, "a Steps or a Seconds"),
    ],
)
def test_annotations_in_words(annotation, expected):
    assert describe(annotation) == expected


def test_members():
    assert members(int | None) == (int, type(None))
    assert members(Annotated[int | str, "x"]) == (int, str)
    assert members(Bound) == (parts.Layer,)
    assert members(Free) == (Any,)
    assert members(Size) == (int,)
    assert members(None) == (type(None),)


def test_elements_of_containers():
    assert element(tuple[int, str], tuple, 1) is str
    assert element(tuple[int, str], tuple, 5) is Any
    assert element(tuple[int, ...], tuple, 5) is int
    assert element(dict[str, float] | None, dict, "a") is float
    assert element(collections.abc.Mapping[str, float], dict, "a") is float
    assert element(list, list) is Any
    assert element(list[int], tuple) is Any
    assert key(dict[str, int]) is str
    assert key(int) is Any


def test_dtypes():
    assert is_dtype(jnp.bfloat16)
    assert is_dtype(np.int8)
    assert is_dtype(np.dtype("int8"))
    assert not is_dtype(int)
    assert not is_dtype("float32")
    assert is_dtype_annotation(DTypeLike | None)
    assert not is_dtype_annotation(int)


def test_what_a_value_suggests():
    assert inferred(True) is bool
    assert inferred(3) == int | float
    assert inferred(value(3)) == int | float
    assert inferred("a") is str
    assert inferred((1,)) is tuple
    assert inferred(jnp.bfloat16) is np.dtype
    assert inferred(None) is Any
    assert inferred(parts.Kind.FAST) is parts.Kind


@pytest.mark.parametrize(
    ("text", "annotation", "expected"),
    [
        ("FAST", parts.Kind, parts.Kind.FAST),
        ("fast", parts.Kind, parts.Kind.FAST),
        ("Fast", parts.Kind, parts.Kind.FAST),
        ("'fast'", parts.Kind, parts.Kind.FAST),
        ("Kind.FAST", parts.Kind, parts.Kind.FAST),
        ("none", parts.Kind | None, parts.Kind.NONE),
        ("None", parts.Kind | None, NOTHING),
        ("a", Literal["a", 3], "a"),
        ("3", Literal["a", 3], 3),
        ("true", bool, True),
        ("FALSE", bool | None, False),
        ("-inf", float, -math.inf),
        ("true", Any, NOTHING),
        ("true", str, NOTHING),
        ("fats", parts.Kind, NOTHING),
    ],
)
def test_choices_by_name_or_value(text, annotation, expected):
    assert choice(text, annotation) is expected or choice(text, annotation) == expected


def test_all_choices():
    assert choices(parts.Kind | None) == ["FAST", "EXACT", "NONE"]
    assert choices(Literal["a", 3]) == ["a", "3"]
    assert choices(int) == []


@pytest.mark.parametrize(
    ("annotation", "good", "bad"),
    [
        (typing.List, [1], (1,)),  # noqa: UP006
        (typing.Dict, {"a": 1}, [1]),  # noqa: UP006
        (typing.Tuple, (1, "a"), [1]),  # noqa: UP006
        (typing.Set, {1}, [1]),  # noqa: UP006
        (typing.Type, int, 1),  # noqa: UP006
        (tuple[()], (), (1,)),
    ],
)
def test_generics_of_typing_without_arguments_admit_any_elements(annotation, good, bad):
    assert fits(good, annotation)
    assert not fits(bad, annotation)


def test_keys_of_a_bare_dict_are_anything():
    assert key(typing.Dict) is Any  # noqa: UP006


@pytest.mark.parametrize("annotation", [type, typing.Type])  # noqa: UP006
def test_templates_fit_the_annotation_of_any_class(annotation):
    assert fits(fdl.Partial(parts.Layer), annotation)


K, V = TypeVar("K"), TypeVar("V")
One = typing_extensions.TypeAliasType("One", V, type_params=(V,))
Some = typing_extensions.TypeAliasType("Some", V | list[V] | None, type_params=(V,))
Swapped = typing_extensions.TypeAliasType("Swapped", dict[V, Some[K]], type_params=(K, V))


@pytest.mark.parametrize(
    ("annotation", "right", "wrong", "text"),
    [
        (One[int], 3, "x", "an int"),
        (Some[int], [3], ["x"], "an int, a list of int or None"),
        (Some[parts.Layer], fdl.Config(parts.Mlp), fdl.Config(parts.Source), None),
        (Swapped[parts.Layer, str], {"a": [fdl.Config(parts.Mlp)]}, {1: None}, None),
    ],
)
def test_an_alias_with_arguments_counts_as_what_it_stands_for(annotation, right, wrong, text):
    assert fits(right, annotation)
    assert not fits(wrong, annotation)
    assert text is None or describe(annotation) == text
