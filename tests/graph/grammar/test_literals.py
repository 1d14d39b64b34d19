from __future__ import annotations

import collections.abc
import math
import pathlib
from typing import Any, Literal

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from graph_toys import modules, parts
from graph_toys.names import case_name
from jax.typing import ArrayLike, DTypeLike

from luthier.durations import Duration, Seconds, Steps, Tokens
from luthier.graph import UNSET, evaluate, expression, value
from luthier.graph.grammar import Surroundings, Unreadable, read

NEAR = Surroundings(near=[parts.Mlp])

TABLE = [
    # numbers
    ("3", int, 3),
    ("-3", int, -3),
    ("1e3", int, 1000),
    ("2**10", int, 1024),
    ("3*4+2", int, 14),
    ("7//2", int, 3),
    ("10/2", int, 5),
    ("1_000", int, 1000),
    ("3", float, 3.0),
    ("3e-4", float, 3e-4),
    (".5", float, 0.5),
    ("1/3", float, 1 / 3),
    ("inf", float, math.inf),
    ("-inf", float, -math.inf),
    ("1e3", int | float, 1000.0),
    ("1e400", float, math.inf),
    ("0.9", ArrayLike, 0.9),
    # truth values
    ("true", bool, True),
    ("False", bool, False),
    ("TRUE", bool | None, True),
    # nothing
    ("None", int | None, None),
    ("null", str | None, None),
    ("None", Any, None),
    # text
    ("hello", str, "hello"),
    ("hello world", str, "hello world"),
    ("'quoted'", str, "quoted"),
    ('"it\'s"', str, "it's"),
    ("3", str, "3"),
    ("true", str, "true"),
    ("a.b(c", str, "a.b(c"),
    ("$5", str, "$5"),
    ("1,2", str, "1,2"),
    ("''", str, ""),
    ("'None'", str, "None"),
    ("c:\\x", str, "c:\\x"),
    ("3", str | int, 3),
    ("'3'", str | int, "3"),
    ("abc", str | int, "abc"),
    ("/tmp/a-b", pathlib.Path, pathlib.Path("/tmp/a-b")),
    ("data", pathlib.Path | None, pathlib.Path("data")),
    ("'x y'", pathlib.Path, pathlib.Path("x y")),
    # choices
    ("fast", parts.Kind, parts.Kind.FAST),
    ("FAST", parts.Kind, parts.Kind.FAST),
    ("Kind.EXACT", parts.Kind | None, parts.Kind.EXACT),
    ("'exact'", parts.Kind, parts.Kind.EXACT),
    ("none", parts.Kind | None, parts.Kind.NONE),
    ("NONE", parts.Kind | None, parts.Kind.NONE),
    ("None", parts.Kind | None, None),
    ("a", Literal["a", "b"], "a"),
    ("3", Literal[3, "x"], 3),
    # containers
    ("2,4", tuple[int, int], (2, 4)),
    ("(2, 4)", tuple[int, ...], (2, 4)),
    ("[2, 4]", tuple[int, ...], (2, 4)),
    ("2,", tuple[int, ...], (2,)),
    ("2", tuple[int, ...], (2,)),
    ("()", tuple[int, ...], ()),
    ("1e3,2", tuple[int, ...], (1000, 2)),
    ("1,2", tuple[float, ...], (1.0, 2.0)),
    ("2,4", list[int], [2, 4]),
    ("[]", list[int], []),
    ("a,b", tuple[str, ...], ("a", "b")),
    ("a", tuple[str, ...], ("a",)),
    ("a-b,c d", tuple[str, ...], ("a-b", "c d")),
    ("a,'b c'", tuple[str, ...], ("a", "b c")),
    ("[fast, EXACT]", list[parts.Kind], [parts.Kind.FAST, parts.Kind.EXACT]),
    ("{a: 1, 'b': 2}", dict[str, int], {"a": 1, "b": 2}),
    ("{embed: (fsdp,), b: x}", dict[str, tuple[str, ...]], {"embed": ("fsdp",), "b": ("x",)}),
    ("{fast: 1}", dict[parts.Kind, int], None),
    ("[[1, 2], [3]]", list[list[int]], [[1, 2], [3]]),
    ("None, 3", tuple[int | None, ...], (None, 3)),
    # dtypes and objects
    ("bf16", DTypeLike | None, jnp.bfloat16),
    ("jnp.float32", DTypeLike, jnp.float32),
    ("float32", Any, jnp.float32),
    ("np.int8", np.dtype, np.int8),
    ("jax.nn.gelu", collections.abc.Callable, jax.nn.gelu),
    ("relu", collections.abc.Callable, parts.relu),
    ("Mlp", type[parts.Layer], parts.Mlp),
]


@pytest.mark.parametrize(("text", "annotation", "expected"), TABLE, ids=case_name)
def test_values(text, annotation, expected):
    if expected is None and text not in ("None", "null"):
        with pytest.raises(Unreadable, match="cannot be a key"):
            read(text, annotation, UNSET, NEAR)
        return
    found = read(text, annotation, UNSET, NEAR)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(expected, tuple | list):
        assert [type(item) for item in found] == [type(item) for item in expected]


BAD = [
    ("1.5", int, "1.5 is not an int"),
    ("True", int, "True is not an int"),
    ("abc", int, "'abc' is not an int"),
    ("'3'", int, "'3' is not an int"),
    ("None", int, "None is not an int"),
    ("1", bool, "1 is not a bool"),
    ("yes", bool, "'yes' is not a bool"),
    ("None", str, "None is not a str; for the text, write it in quotes: 'None'"),
    ("fsat", parts.Kind, "'fsat' is not a Kind; did you mean FAST?; choose from FAST, EXACT, NONE"),
    ("c", Literal["a", "b"], "'c' is not 'a' or 'b'; choose from a, b"),
    ("1,2,3", tuple[int, int], "(1, 2, 3) is not a tuple of (int, int)"),
    ("a,2", tuple[int, ...], "there is nothing called 'a'"),
    ("bf61", DTypeLike, "'bf61' is not a dtype; did you mean bf16?"),
    ("3", DTypeLike, "3 is not a dtype"),
    ("foo", Any, "there is nothing called 'foo'; give its full name"),
    ("os.sytem", Any, "'os.sytem' may not be imported: 'os' is not on the list"),
    ("Mlp", parts.Layer, "Mlp is not a Layer; for a node, write Mlp()"),
    ("Mlp(hiden=3)", parts.Layer, "Mlp has no argument 'hiden'; did you mean hidden?"),
    ("Mlp(hidden=x)", parts.Layer, "Mlp(hidden=...): there is nothing called 'x'"),
    ("Mlp(hidden='x')", parts.Layer, "Mlp(hidden=...): 'x' is not an int"),
    ("Mpl()", parts.Layer, "there is nothing called 'Mpl'; did you mean Mlp?"),
    ("Constant(1)", parts.Layer, "Constant(...) is not a Layer"),
    ("2**9999", int, "'2**9999' is too large"),
    ("9**9**9", int, "is too large"),
    ("(-8)**.5", float, "is not a real number"),
    ("1/0", float, "'1/0': division by zero"),
    ("'a'*9", Any, "is not a number, which arithmetic needs"),
    ("lambda: 3", Any, "Lambda is not allowed in a value"),
    ("[x for x in y]", Any, "ListComp is not allowed in a value"),
    ("a[0]", Any, "Subscript is not allowed in a value"),
    ("{1, 2}", Any, "a set has no order"),
    ("f'{x}'", Any, "JoinedStr is not allowed"),
    ("not 3", Any, "only + and - are allowed before a number"),
    ("1 << 3", Any, "only + - * / // % ** are allowed"),
    ("1j", Any, "is not a value that a graph can hold"),
    ("...", Any, "is not a value that a graph can hold"),
    ("__import__('os')", Any, "'__import__' is private"),
    ("().__class__", Any, "is not a name"),
    ("Mlp(*[1])", Any, "* is not allowed in a value"),
    ("Mlp(**{})", Any, "** is not allowed in a value"),
    ("{**{}}", Any, "** is not allowed in a value"),
    ("1 +", int, "cannot read '1 +'"),
    ("(" * 500, Any, "cannot read"),
    ("-" * 5000 + "1", int, ""),
    ("1" * 5000, int, "cannot read"),
    ("x" * 200_000, Any, "the value is longer than 100000 characters"),
    ("$model.dim", int, "there is no config to refer to here"),
    ("partial:3", Any, "3 is not callable"),
]


@pytest.mark.parametrize(("text", "annotation", "message"), BAD, ids=lambda case: str(case)[:40])
def test_what_cannot_be_read(text, annotation, message):
    with pytest.raises(Unreadable) as caught:
        read(text, annotation, UNSET, NEAR)
    assert message in str(caught.value)


def test_without_an_annotation_the_current_value_directs():
    assert read("3", Any, 0.5) == 3
    assert read("0.5", Any, 3) == 0.5
    assert read("true", Any, False) is True
    assert read("abc def", Any, "x") == "abc def"
    assert read("bf16", Any, jnp.float32) is jnp.bfloat16
    assert read("5", Any, value(3)) == 5
    for text, current, message in [
        ("abc", 0.5, "'abc' is not an int or a float"),
        ("1", True, "1 is not a bool"),
        ("3", (1, 2), "3 is not a tuple"),
        ("x", jnp.float32, "'x' is not a dtype"),
    ]:
        with pytest.raises(Unreadable) as caught:
            read(text, Any, current)
        assert str(caught.value) == message


def test_calls_become_nodes():
    node = read("optax.sgd(1e-2, momentum=.9)", optax.GradientTransformation)
    assert node == fdl.Config(optax.sgd, 1e-2, momentum=0.9)
    node = read("Mlp(2**5, activation=gelu, dtype=bf16)", parts.Layer, UNSET, NEAR)
    assert node == fdl.Config(parts.Mlp, 32, activation=parts.gelu, dtype=jnp.bfloat16)
    nested = read("Optimizer(Cosine(1e-3, total_steps=1e4), b2=1)", Any, UNSET, NEAR)
    assert nested.learning_rate == fdl.Config(parts.Cosine, 1e-3, total_steps=10_000)
    assert type(nested.learning_rate.total_steps) is int
    assert type(nested.b2) is float
    assert read("[Mlp(), GatedMlp()]", list[parts.Layer]) == [
        fdl.Config(parts.Mlp),
        fdl.Config(parts.GatedMlp),
    ]


def test_bare_names_of_the_annotation():
    assert read("Seconds(60)", Steps | Tokens | Seconds) == fdl.Config(Seconds, 60.0)
    assert read("Seconds(60)", Duration) == fdl.Config(Seconds, 60.0)


def test_templates():
    name, around = "graph_toys.parts.Mlp", Surroundings(packages=("graph_toys",))
    assert isinstance(read(f"partial:{name}(dim=3)", around=around), fdl.Partial)
    assert isinstance(read(f"partial:{name}", around=around), fdl.Partial)
    assert type(read(f"{name}(dim=3)", around=around)) is fdl.Config
    # What replaces a template is one.
    assert isinstance(read(f"{name}(dim=3)", Any, fdl.Partial(parts.Layer), around), fdl.Partial)
    assert type(read(f"config:{name}()", Any, fdl.Partial(parts.Layer), around)) is fdl.Config
    # So is an NNX module that nobody gave its rngs, also inside of others.
    node = read("graph_toys.modules.Net(3, block=Dense(out=4))", around=around)
    assert isinstance(node, fdl.Partial)
    assert node.block == fdl.Partial(modules.Dense, out=4)


def test_references():
    dim = value(16, name="dim")
    asked = []

    def reference(path):
        asked.append(path)
        return dim

    around = Surroundings(reference=reference, packages=("graph_toys",))
    for text in ("$model.dim*4", "ref:model.dim*4", "ref: model.dim * 4"):
        node = read(text, int, UNSET, around)
        assert evaluate(node) == 64
        assert expression(node) == "dim * 4"
        assert node.left is dim
    assert set(asked) == {("model", "dim")}
    assert read("ref:a.b", int, UNSET, around) is dim
    assert evaluate(read("-$a['b c'][0] // 3", int, UNSET, around)) == -6
    assert asked[-1] == ("a", "b c", 0)
    node = read("graph_toys.parts.Mlp(hidden=$model.dim, dim=$x+1)", Any, UNSET, around)
    assert node.hidden is dim
    assert evaluate(node.dim) == 17
    assert read("'costs $5'", str, UNSET, around) == "costs $5"
    with pytest.raises(Unreadable, match=r"dim / 3 = 5\.33.* is not an int"):
        read("$model.dim/3", int, UNSET, around)
    with pytest.raises(Unreadable, match="cannot be computed: integer modulo by zero"):
        read("$model.dim%0", int, UNSET, around)


def test_reading_warns_of_nothing():
    assert read("1if", str) == "1if"
    with pytest.raises(Unreadable):
        read(r"'\d' is 3", Any)


class _Start:
    """Where something starts."""


class _Files(_Start):
    WORD = "files"

    def __init__(self, directory: str, depth: int = 1):
        self.directory = directory


class _Other(_Start):
    WORD = "other"

    def __init__(self, name: str):
        self.name = name


@pytest.mark.parametrize(
    ("text", "target", "argument", "value"),
    [
        ("files:a/b", _Files, "directory", "a/b"),
        ("files:C:\\x y", _Files, "directory", "C:\\x y"),
        ("files: 'a b' ", _Files, "directory", "a b"),
        ("other:3", _Other, "name", "3"),
    ],
)
def test_a_word_before_a_colon_is_the_node_of_the_class_that_has_it(text, target, argument, value):
    node = read(text, _Start | None)
    assert type(node) is fdl.Config
    assert node.__fn_or_cls__ is target
    assert getattr(node, argument) == value


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("flies:a", r"no flies: here; did you mean files:\?"),
        ("zzz:a", "there is files:, other:"),
        ("files:", "nothing after the colon"),
        ("/a/b", r"cannot read '/a/b'; write files:\.\.\. or other:\.\.\."),
    ],
)
def test_words_that_are_not_there(text, message):
    with pytest.raises(Unreadable, match=message):
        read(text, _Start | None)


def test_elsewhere_a_colon_is_text():
    assert read("files:a", str) == "files:a"
