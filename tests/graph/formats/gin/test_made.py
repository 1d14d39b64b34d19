from __future__ import annotations

import fiddle as fdl
import pytest
from graph_toys import parts
from graph_toys.gin_overlaid import overlay, problems

from luthier.graph.formats.gin.values import BindingTarget


def extra(text):
    return overlay(f"import graph_toys.parts\n{text}").extra


def test_a_reference_is_a_template_and_a_call_a_node():
    made = extra("Experiment.extra = [@Mlp, @Mlp(), @Mlp()]\nMlp.hidden = 3")
    assert [type(node) for node in made] == [fdl.Partial, fdl.Config, fdl.Config]
    assert made[1] is not made[2]
    assert [node.hidden for node in made] == [3, 3, 3]


def test_a_function_is_itself_where_nothing_is_bound_to_it():
    assert extra("Experiment.extra = @graph_toys.parts.relu") is parts.relu
    text = "Experiment.extra = [@graph_toys.parts.untyped, @s/graph_toys.parts.untyped]"
    plain, template = extra(f"{text}\ns/untyped.size = 4")
    assert plain is parts.untyped
    assert isinstance(template, fdl.Partial)
    assert template.size == 4


def test_keys_and_entries_of_containers():
    made = extra("K = 'k'\nExperiment.extra = {%K: (@Mlp(), [%K])}")
    assert list(made) == ["k"]
    assert isinstance(made["k"][0], fdl.Config)
    assert problems("Experiment.extra = {@Mlp(): 1}") == ["@Mlp() cannot be a key [set by given]"]


def test_a_singleton_is_one_node():
    text = "Experiment.extra = [@a/gin.singleton(), @a/gin.singleton()]"
    first, second = extra(f"{text}\na/gin.singleton.constructor = @Mlp\nMlp.hidden = 4")
    assert first is second
    assert first.hidden == 4
    assert problems(text) == [
        "a/gin.singleton has no constructor [set by given]; write a/gin.singleton.constructor = "
        "@Name"
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Experiment.extra = @Experiment()", "@Experiment()"),
        ("M = [%M]\nExperiment.extra = %M", "%M"),
    ],
)
def test_what_contains_itself(text, said):
    assert problems(text)[-1] == f"{said} contains itself [set by given]"


def test_too_many_nodes_are_refused(monkeypatch):
    monkeypatch.setattr("luthier.graph.formats.gin.values._MOST_NODES", 10)
    doubling = "Experiment.extra = [@a/Mlp(), @a/Mlp(), @Model()]\nModel.layers = [%L, %L]\n"
    doubling += "L = [@Mlp(), @Mlp(), @Mlp(), @Mlp()]"
    assert problems(doubling)[0] == "this makes more than 10 nodes [set by given]"


def test_an_argument_and_its_annotation():
    assert BindingTarget(parts.Mlp, "hidden").annotation is int
