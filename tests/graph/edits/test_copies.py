from __future__ import annotations

import collections
import copy
import dataclasses

import fiddle as fdl
import jax
from fiddle import daglish
from graph_toys import parts

from luthier.durations import Steps
from luthier.graph import apply, as_node, copy_graph, value

Pair = collections.namedtuple("Pair", "a b")


def test_leaves_keep_their_identity():
    graph = parts.experiment()
    graph.extra = [
        jax.nn.relu,
        jax.nn.silu,
        {"k": (jax.nn.relu, 1)},
        Pair(fdl.Config(parts.Mlp), 2),
    ]
    made = copy_graph(graph)
    assert made == graph
    assert made.extra[0] is jax.nn.relu
    assert made.extra[2]["k"][0] is jax.nn.relu
    assert made.extra[3].a is not graph.extra[3].a
    assert isinstance(made.extra[3], Pair)
    # What `copy.deepcopy` does, and why there is a copy of our own:
    assert copy.deepcopy(graph).extra[0] is not jax.nn.relu


def test_sharing_is_kept_and_nothing_is_shared_with_the_original():
    graph = parts.experiment()
    dim = value(3, name="dim")
    graph.model.dim = graph.extra = dim
    made = copy_graph(graph)
    assert made.model.layers[0] is made.model.layers[2]
    assert made.model.dim is made.extra
    ours = {id(v) for v, _ in daglish.iterate(made) if isinstance(v, fdl.Buildable | list | dict)}
    theirs = {
        id(v) for v, _ in daglish.iterate(graph) if isinstance(v, fdl.Buildable | list | dict)
    }
    assert not ours & theirs
    made.model.dim.value = 4
    made.optimizer.b2 = 0.5
    made.evaluations["new"] = 1
    assert (graph.model.dim.value, graph.optimizer.b2) == (3, 0.99)
    assert "new" not in graph.evaluations


def test_tags_and_history_are_kept_apart():
    graph = parts.experiment()
    made = copy_graph(graph)
    assert fdl.get_tags(made.optimizer.learning_rate, "peak") == {parts.Rate}
    before = len(graph.optimizer.__argument_history__["b2"])
    assert made.optimizer.__argument_history__["b2"] == graph.optimizer.__argument_history__["b2"]
    made.optimizer.b2 = 0.1
    fdl.add_tag(made.optimizer, "b1", parts.Rate)
    assert len(graph.optimizer.__argument_history__["b2"]) == before
    assert not fdl.get_tags(graph.optimizer, "b1")


def test_templates_stay_templates():
    made = copy_graph(fdl.Config(dict, a=fdl.Partial(parts.Mlp, dim=3), b=fdl.ArgFactory(list)))
    assert isinstance(made.a, fdl.Partial)
    assert isinstance(made.b, fdl.ArgFactory)


def test_instances_of_dataclasses_become_nodes():
    node = as_node(parts.Evaluation(parts.Source(length=5), every=Steps(100), batch_size=3))
    assert node == fdl.Config(
        parts.Evaluation, data=fdl.Config(parts.Source, length=5), batch_size=3
    )
    assert "every" not in node.__arguments__  # equal to the default
    assert as_node(3) == 3


@dataclasses.dataclass(frozen=True)
class Tables:
    """An instance that holds what can be changed."""

    ranges: dict = dataclasses.field(default_factory=dict)
    rows: list = dataclasses.field(default_factory=list)


def test_a_change_inside_an_instance_leaves_the_instance_as_it_was():
    tables = Tables({"a": 1, "deep": {"b": 2}}, [3, [4]])
    graph = fdl.Config(dict, extra=tables)
    words = [("extra.ranges.a", 10), ("extra.ranges.deep.b", 20), ("extra.rows[1][0]", 40)]
    made = apply(graph, words)
    assert (made.extra.ranges, made.extra.rows) == ({"a": 10, "deep": {"b": 20}}, [3, [40]])
    assert tables == Tables({"a": 1, "deep": {"b": 2}}, [3, [4]])
    assert graph.extra is tables


def test_what_instances_of_dataclasses_hold_is_copied_once():
    inside = fdl.Config(parts.Mlp, hidden=8)
    graph = fdl.Config(dict, first=parts.Constant(inside), second=inside, plain=parts.Constant(1.0))
    made = copy_graph(graph)
    assert made.first.rate == inside
    assert made.first.rate is not inside
    assert made.first.rate is made.second
    assert made.plain is graph.plain
    made.second.hidden = 16
    assert inside.hidden == 8


class Rows(list):
    """A list with an attribute, and a constructor that takes something else."""

    def __init__(self, count, unit):
        super().__init__(range(count))
        self.unit = unit


def test_a_subclass_of_list_is_copied():
    graph = fdl.Config(dict, x=Rows(2, "cm"))
    graph.y = graph.x
    made = apply(graph, ["x[0]=9"])
    assert (type(made.x), made.x, made.x.unit) == (Rows, [9, 1], "cm")
    assert made.y is made.x
    assert graph.x == [0, 1]
