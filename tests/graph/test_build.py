from __future__ import annotations

import functools
import traceback

import fiddle as fdl
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from graph_toys import parts, recorded

from luthier.errors import BadInput, Problem, RunError, TrainingStopped, UnknownReference
from luthier.graph import build, multiply, value


def pair(a, b=2):
    return (a, b)


def failing(kind, **others):
    raise kind


class Child:
    def __init__(self, size, heads=3):
        if size % heads:
            raise ValueError(f"{heads=} must divide {size}")


class Parent:
    def __init__(self, child, data=None):
        self.child = child()


def _error(graph, **values):
    with pytest.raises(BadInput) as caught:
        build(graph, values)
    assert len(str(caught.value).splitlines()) == 1
    return caught.value


def _same(a, b):
    if isinstance(a, functools.partial) and isinstance(b, functools.partial):
        return a.func == b.func and _same(a.keywords, b.keywords)
    if isinstance(a, list | tuple) and type(a) is type(b):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(_same(a[key], b[key]) for key in a)
    return a is b or a == b


@pytest.mark.parametrize(
    "graph",
    [
        fdl.Config(pair, a=1),
        fdl.Config(pair, a=[fdl.Config(pair, a=1), {"k": (fdl.Config(pair, a=2),)}]),
        fdl.Partial(pair, a=fdl.Config(pair, a=1)),
        fdl.Partial(pair, a=[1, (2, {"x": fdl.Partial(pair, a=3)})]),
        fdl.Config(recorded.Part, size=recorded.Pair(1, fdl.Config(pair, a=2))),
        [fdl.Config(pair, a=1), fdl.Config(pair, a=2)],
    ],
)
def test_it_builds_as_fiddle_does(graph):
    assert _same(build(graph), fdl.build(graph))


def test_a_shared_node_is_built_once():
    leaf, listed = fdl.Config(parts.Layer), [1]
    graph = fdl.Config(pair, a=[leaf, listed], b=((leaf,), {"k": leaf, "listed": listed}))
    made = build(graph)
    assert made[0][0] is made[1][0][0] is made[1][1]["k"]
    assert made[0][1] is made[1][1]["listed"]
    assert made[0][1] is not listed


def test_partials_share_configs_and_make_factories_anew():
    graph = fdl.Partial(pair, a=fdl.Config(parts.Layer), b=[fdl.ArgFactory(parts.Layer)])
    first, second = build(graph)(), build(graph)()
    function = build(graph)
    assert function()[0] is function()[0]
    assert function()[1][0] is not function()[1][0]
    assert first[0] is not second[0]
    assert _error(fdl.Config(pair, a=fdl.ArgFactory(list))).problems[0].path == "a"


def test_positional_only_arguments_are_passed_by_position():
    assert build(fdl.Config(parts.by_position, 1, c=5)) == (1, 2, 5)


def _optional(a=1, b=2, /, *more):
    return a, b, *more


@pytest.mark.parametrize("kind", [fdl.Config, fdl.Partial])
def test_open_positional_only_arguments_take_their_default(kind):
    node = kind(_optional)
    node[1] = 5
    made = build(node)
    assert (made() if kind is fdl.Partial else made) == (1, 5)
    node[0], node[1], node[2:] = 3, 4, [6, 7]
    made = build(node)
    assert (made() if kind is fdl.Partial else made) == (3, 4, 6, 7)
    graph = {"k": kind(parts.by_position)}
    graph["k"][1] = 5
    refused = _error(graph)
    assert "k[0]: graph_toys.parts.by_position needs a, since a later one is set" in str(refused)
    assert str(refused).endswith("; set k[0]")


def test_values_take_the_place_of_leaves_and_nodes():
    graph = fdl.Config(
        pair, a=fdl.Config(recorded.Part, size=1, shape=(1, (2, 3))), b=[4, {"k": 5}]
    )
    made = build(
        graph,
        {"a.size": "new", "a.rate": "unset", "a.shape[1][0]": 9, "b[0]": 40, "b[1].k": 50},
    )
    assert made[0] == recorded.Part(size="new", rate="unset", shape=(1, (9, 3)))
    assert made[1] == [40, {"k": 50}]
    assert build(graph, {"a": None, "b": 0}) == (None, 0)
    assert build(graph)[0].size == 1, "the graph is left as it was"


def test_equal_constant_tuples_are_replaced_one_by_one():
    same = (0.9, 0.95)
    graph = fdl.Config(pair, a=same, b=same)
    assert build(graph, {"b[1]": 1.0}) == ((0.9, 0.95), (0.9, 1.0))


def test_a_value_node_is_replaced_for_all_its_users():
    dim = value(4, name="dim")
    graph = fdl.Config(pair, a=dim, b=[multiply(dim, 4), (dim,)])
    assert build(graph) == (4, [16, (4,)])
    for path in ("a", "b[1][0]"):
        assert build(graph, {path: 5}) == (5, [20, (5,)])
    assert build(graph, {"b[0]": 7}) == (4, [7, (4,)])


def test_tracers_pass_through():
    graph = fdl.Config(pair, a=fdl.Config(recorded.Part, rate=0.5))
    out = jax.jit(lambda x: build(graph, {"a.rate": x})[0].rate * 2)(3.0)
    assert out == 6.0


def _branch(x):
    return 1 if x > 0 else 2


@pytest.mark.parametrize("convert", [_branch, int, float, np.asarray, range])
def test_errors_of_jax_about_tracers_pass_unchanged(convert):
    graph = fdl.Config(pair, a=fdl.Config(_call, function=convert, x=1))
    with pytest.raises(jax.errors.JAXTypeError):
        jax.jit(lambda x: build(graph, {"a.x": x}))(jnp.int32(3))


def _call(function, x):
    return function(x)


def test_an_unknown_path_names_the_nearest():
    with pytest.raises(UnknownReference, match=r"did you mean a\.size"):
        build(fdl.Config(pair, a=fdl.Config(recorded.Part)), {"a.siz": 1})
    error = _error(fdl.Config(pair, a=fdl.Config(parts.Experiment)), **{"a.rules.sizes[0]": 1})
    assert "set all of" in str(error)


def test_an_error_names_path_class_and_origin():
    graph = fdl.Config(pair, a=[fdl.Config(Child, size=10, heads=4)])
    error = _error(graph)
    assert error.problems[0].path == "a[0].heads"
    assert "test_build.py" in error.problems[0].origin
    assert "Child refused: ValueError: heads=4 must divide 10" in str(error)
    assert isinstance(error.__cause__, ValueError)


def test_an_error_in_a_template_names_its_path():
    graph = fdl.Config(pair, a=fdl.Config(Parent, child=fdl.Partial(Child, size=10)))
    error = _error(graph)
    assert error.problems[0].path == "a.child.size"
    assert "Child refused" in str(error)


def test_unknown_and_missing_arguments():
    graph = fdl.Config(pair, a=fdl.Config(Child))
    assert "set a.size" in str(_error(graph))
    graph.a = fdl.Config(Child, size=3)
    error = _error(fdl.Config(pair, a=graph), **{"a.a.heads": "x"})
    assert "a.a" in str(error)
    renamed = fdl.Config(parts.keywords, a=1, b=2)
    object.__setattr__(renamed, "__fn_or_cls__", Child)
    assert "unexpected keyword" in str(_error(renamed))


def test_built_arguments_are_not_printed():
    graph = fdl.Config(Parent, child=fdl.Partial(Child, size=10), data=np.arange(100_000))
    assert len(str(_error(graph))) < 500
    text = "x" * 10_000
    assert len(str(_error(fdl.Config(failing, kind=ValueError(text), more=text)))) < 500


def test_our_own_errors_pass_with_the_path_added():
    graph = fdl.Config(pair, a=fdl.Config(failing, kind=RunError("is taken")))
    with pytest.raises(RunError, match=r"^a: is taken$"):
        build(graph)
    with pytest.raises(TrainingStopped, match="spikes"):
        build(fdl.Config(failing, kind=TrainingStopped("spikes")))
    with pytest.raises(KeyboardInterrupt):
        build(fdl.Config(failing, kind=KeyboardInterrupt()))


class Refusal(BadInput):
    def __init__(self, path, reason):
        super().__init__(Problem(reason, path))


def test_bad_input_of_a_class_with_a_constructor_of_its_own_gets_the_path_too():
    graph = fdl.Config(pair, a=fdl.Config(failing, kind=Refusal("inner", "is taken")))
    with pytest.raises(BadInput, match=r"^a\.inner: is taken$"):
        build(graph)


def test_a_cycle_is_an_error():
    graph = fdl.Config(pair, a=1)
    graph.b = [graph]
    assert "cycle" in str(_error(graph))


def test_the_original_error_is_the_cause():
    error = _error(fdl.Config(Child, size=10))
    assert "ValueError" in "".join(traceback.format_exception(error))


def test_an_element_of_a_tuple_at_the_root_cannot_be_replaced():
    graph = (fdl.Config(pair, a=1),)
    assert build(graph, {"[0].a": 3}) == ((3, 2),)
    with pytest.raises(BadInput, match=r"only parts of nodes can be replaced"):
        build(graph, {"[0]": 3})


@pytest.mark.parametrize("graph", [fdl.Config(pair, a=1), [1], (1,), value(4, name="dim")])
def test_the_empty_path_replaces_the_whole_graph(graph):
    new = object()
    assert build(graph, {"": new}) is new
    assert build(graph, {"": None}) is None
    with pytest.raises(UnknownReference):
        build(graph, {"": new, "there.is.none": 1})


def test_a_replaced_factory_is_not_refused():
    assert build(fdl.Config(pair, a=fdl.ArgFactory(list)), {"a": 3}) == (3, 2)
