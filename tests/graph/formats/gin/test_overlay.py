from __future__ import annotations

import random
import re

import fiddle as fdl
import jax.numpy as jnp
import pytest
from graph_toys import parts
from graph_toys.gin_overlaid import overlay, problems

from luthier import graph as graphs
from luthier.errors import BadInput
from luthier.graph import values


def test_bindings_reach_every_node_of_a_class():
    graph = overlay("Mlp.hidden = 7\nSource.length = 9")
    assert graph.model.layers[0].hidden == 7
    assert graph.model.layers[2] is graph.model.layers[0]
    assert {graph.data.length, graph.evaluations["long text"].data.length} == {9}


def test_a_subclass_is_another_configurable():
    assert "hidden" not in overlay("Mlp.hidden = 7").model.layers[1].__arguments__


def test_a_scope_is_looked_for_on_the_way_to_a_node():
    graph = overlay("evaluations/Source.length = 2")
    assert [e.data.length for e in graph.evaluations.values()] == [2, 2]
    graph = overlay("held_out/Source.length = 1\nSource.length = 3\nlong_text/Source.length = 2")
    lengths = [graph.data.length, *[e.data.length for e in graph.evaluations.values()]]
    assert lengths == [3, 1, 2]
    assert overlay("layers_0/Mlp.hidden = 5").model.layers[0].hidden == 5
    assert (
        overlay("evaluations/held_out/Source.length = 4").evaluations["held_out"].data.length == 4
    )


def test_the_later_of_two_bindings_wins_and_the_narrower_of_two_scopes():
    assert overlay("Mlp.hidden = 1\nMlp.hidden = 2").model.layers[0].hidden == 2
    assert overlay("model/Mlp.hidden = 1\nMlp.hidden = 2").model.layers[0].hidden == 1


def test_references_make_nodes_that_are_bound_whatever_the_order():
    lines = ["Cosine.peak = 0.5", "new/Cosine.warmup_steps = 3"]
    graph = overlay(f"{lines[0]}\nOptimizer.learning_rate = @Cosine()")
    assert graph.optimizer.learning_rate.__arguments__ == {"peak": 0.5}
    graph = overlay("\n".join([*lines, "Optimizer.learning_rate = @new/Cosine()"]))
    assert graph.optimizer.learning_rate.__arguments__ == {"peak": 0.5, "warmup_steps": 3}


def test_a_reference_inherits_the_scope_of_what_it_is_for():
    graph = overlay(
        "Experiment.extra = @a/Evaluation()\nEvaluation.data = @Source()\na/Source.length = 5"
    )
    assert graph.extra.data.length == 5
    assert graph.evaluations["held_out"].data.__arguments__ == {}


def test_what_is_replaced_need_not_be_bound():
    errors = problems("Model.layers = []\nMlp.hidden = 3")
    assert errors == [
        "the graph has no node of Mlp [set by given]; leave it out, or allow such bindings with "
        "--gin_skip_unknown"
    ]


def test_a_binding_moves_a_constant_that_is_there():
    size = values.value(16, name="size")
    graph = parts.experiment()
    graph.model.dim = size
    graph.model.num_heads = values.floor_divide(size, 4)
    made = overlay("Model.dim = 64", graph)
    assert graphs.evaluate(made.model.num_heads) == 16
    made = overlay("size = 32", graph)
    assert (graphs.evaluate(made.model.dim), graphs.evaluate(made.model.num_heads)) == (32, 8)
    assert made.model.dim.__arguments__["name"] == "size"


def test_two_bindings_cannot_move_one_constant_to_two_places():
    size = values.value(16, name="size")
    graph = parts.experiment()
    graph.model.dim = graph.model.layers[0].hidden = size
    message = "the constant size would be 8 here and 4 by given [set by given]; set size itself"
    with pytest.raises(BadInput, match=re.escape(message)):
        overlay("Model.dim = 4\nMlp.hidden = 8", graph)


def test_required_takes_a_value_away():
    assert "dim" not in overlay("Model.dim = %gin.REQUIRED").model.__arguments__


def test_values_are_read_as_the_annotation_wants_them():
    graph = overlay("Experiment.kind = 'exact'\nMlp.dtype = 'bf16'\nRules.sizes = [2, 3]", _ruled())
    assert graph.kind is parts.Kind.EXACT
    assert str(graph.model.layers[0].dtype) in ("bfloat16", "<class 'jax.numpy.bfloat16'>")
    assert graph.rules.sizes == (2, 3)
    assert overlay("Experiment.steps = 1e3").steps == 1000


def _ruled():
    graph = parts.experiment()
    graph.rules = fdl.Config(parts.Rules)
    return graph


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Modle.dim = 3", "there is nothing called 'Modle' [set by given]; did you mean Model?"),
        ("Model.dimm = 3", "Model has no argument 'dimm' [set by given]; did you mean dim?"),
        ("Model.dim = 'x'", "'x' is not an int [set by given]"),
        ("Model.dim = @Cosine()", "Cosine(...) is not an int [set by given]"),
        (
            "x/Mlp.hidden = 3",
            "the graph has no node of Mlp in the scope 'x' [set by given]; leave it out, or allow "
            "such bindings with --gin_skip_unknown",
        ),
        ("Model.dim = %DIMM\nDIM = 3", None),
        ("DIM = 3", "nothing uses the macro 'DIM' [set by given]"),
        ("Experiment.extra = @Evaluation()\nEvaluation.data = @Evaluation()", None),
    ],
)
def test_what_is_wrong(text, message):
    found = problems(text)
    assert found
    assert message is None or found == [message]


def test_a_reference_may_bring_another_type_where_nothing_is_annotated():
    text = "Experiment.extra = @graph_toys.parts.untyped()\nuntyped.rate = "
    extra = overlay(f"{text}@Cosine()\nCosine.peak = 0.5").extra
    assert extra.rate == fdl.Config(parts.Cosine, peak=0.5)
    assert problems(f"{text}'x'") == ["'x' is not an int or a float [set by given]"]


def test_all_that_is_wrong_is_reported_at_once():
    errors = problems("Modle.dim = 3\nModel.dim = 'x'\nx/Mlp.hidden = 2\nMODEL = 3")
    assert len(errors) == 4


def test_unknown_names_are_left_out_on_request():
    words = ["gin_skip_unknown:true"]
    assert problems("Modle.dim = 3\nx/Mlp.hidden = 3\nimport nowhere.at_all", *words) == []
    assert problems("import os.path\nimport graph_toys.broken_import", *words) == []
    assert len(problems("Model.dimm = 3", *words)) == 1


STATEMENTS = [
    "import graph_toys.gin_parts as toys",
    "DIM = 64",
    "HIDDEN = %DIM",
    "RATE = @graph_toys.parts.Cosine()",
    "Model.dim = %DIM",
    "Mlp.hidden = %HIDDEN",
    "graph_toys.parts.Cosine.peak = 0.25",
    "slow/Cosine.warmup_steps = 7",
    "Optimizer.learning_rate = @slow/Cosine()",
    "Experiment.extra = [%RATE, @toys.inverse_root, {'a': (@slow/toys.renamed_layer(), %DIM)}]",
    "renamed_layer.activation = @graph_toys.parts.gelu",
    "slow/renamed_layer.dim = %DIM",
    "inverse_root.base = %toys.GOLDEN",
    "held_out/Source:\n  length = 3\n  fields = ('a', 'b')",
    "once/gin.singleton.constructor = @GatedMlp",
    "Model.layers = [@once/gin.singleton(), @once/gin.singleton(), @Mlp()]",
]


@pytest.mark.full
def test_the_order_of_statements_says_nothing(tmp_path):
    """Macros, scopes, includes, references and bindings before their nodes, 200 times shuffled."""
    chooser = random.Random(0)
    first = None
    for number in range(200):
        statements = list(STATEMENTS)
        if number:
            chooser.shuffle(statements)
        cut = chooser.randrange(len(statements))
        (tmp_path / "inside.gin").write_text("\n".join(statements[cut:]) + "\n")
        outer = [*statements[:cut], "include 'inside.gin'"]
        chooser.shuffle(outer)
        (tmp_path / "outer.gin").write_text("\n".join(outer) + "\n")
        graph = graphs.apply(
            parts.experiment(), [f"gin_file:{tmp_path / 'outer.gin'}"], packages=["graph_toys"]
        )
        first = first or graph
        assert graphs.equal(graph, first), outer
    assert graphs.evaluate(first.model.layers[2].hidden) == 64
    assert first.model.layers[0] is first.model.layers[1]
    assert first.extra[0].peak == 0.25
    assert first.extra[2]["a"][0].dim is first.model.dim
    assert isinstance(first.extra[1], fdl.Partial)
    assert first.optimizer.learning_rate.warmup_steps == 7


def _sharing():
    """An experiment whose training data and evaluation share one length."""
    length = values.value(128, name="length")
    graph = parts.experiment()
    graph.data.length = graph.evaluations["held_out"].data.length = length
    return graph


def test_a_binding_in_a_scope_takes_its_nodes_out_of_the_sharing():
    graph = overlay("held_out/Source.length = 32", _sharing())
    assert graph.evaluations["held_out"].data.length == 32
    assert graphs.evaluate(graph.data.length) == 128
    both = overlay("Source.length = 64\nheld_out/Source.length = 32", _sharing())
    assert graphs.evaluate(both.data.length) == 64
    assert both.evaluations["held_out"].data.length == 32


@pytest.mark.parametrize("text", ["S = 64\nSource.length = %S", "S = 64\nlength = %S"])
def test_a_macro_takes_a_shared_value_over_for_all_its_users(text):
    graph = overlay(text, _sharing())
    assert graphs.evaluate(graph.data.length) == 64
    assert graphs.evaluate(graph.evaluations["held_out"].data.length) == 64
    assert overlay("S = %length\nSource.length = %S", _sharing()).data.length.value == 128


def test_a_macro_at_one_place_of_a_shared_value_takes_it_over_for_all_places():
    graph = parts.experiment()
    graph.steps = graph.optimizer.learning_rate.total_steps = values.value(900, name="steps")
    graph = overlay("S = 100\nExperiment.steps = %S", graph)
    assert graphs.evaluate(graph.steps) == 100
    assert graphs.evaluate(graph.optimizer.learning_rate.total_steps) == 100
    longer = graphs.apply(graph, ["steps=200"])
    assert graphs.evaluate(longer.optimizer.learning_rate.total_steps) == 200


def test_a_dtype_that_is_referred_to_is_the_dtype():
    graph = overlay("Mlp.dtype = @jax.numpy.bfloat16")
    assert graph.model.layers[0].dtype is jnp.bfloat16


def test_a_macro_is_one_constant_with_its_name():
    graph = overlay("DIM = 4\nModel.dim = %DIM\nMlp.hidden = %DIM")
    assert graph.model.dim is graph.model.layers[0].hidden
    assert graph.model.dim.__arguments__ == {"value": 4, "name": "DIM"}


def test_a_macro_of_a_macro_follows_it():
    graph = overlay("A = 4\nB = %A\nModel.dim = %A\nMlp.hidden = %B")
    graphs.set_value(graph, "model.dim", 9)
    assert graphs.evaluate(graph.model.layers[0].hidden) == 9


def test_scopes_belong_to_the_names_of_macros():
    assert (
        graphs.evaluate(
            overlay("s/A = 4\nA = 5\nModel.dim = %s/A\nExperiment.extra = %A").model.dim
        )
        == 4
    )


def test_a_macro_of_a_reference_makes_a_node_for_each_use():
    graph = overlay("M = @Mlp()\nModel.layers = [%M, %M]\nMlp.hidden = 3")
    assert graph.model.layers[0] is not graph.model.layers[1]
    assert [layer.hidden for layer in graph.model.layers] == [3, 3]


def test_a_macro_is_converted_for_its_places():
    graph = overlay("KIND = 'exact'\nExperiment.kind = %KIND")
    assert graphs.evaluate(graph.kind) is parts.Kind.EXACT
    assert problems("M = 'x'\nModel.dim = %M") == ["model.dim: 'x' is not an int [set by given]"]
    two = "M = 'exact'\nExperiment.kind = %M\nExperiment.name = %M"
    assert len(problems(two)) == 1


def test_constants_of_the_graph_are_macros():
    graph = parts.experiment()
    graph.model.dim = values.value(16, name="size")
    graph.model.num_heads = values.value(4, name="heads")
    made = overlay("Mlp.hidden = %size", graph)
    assert made.model.layers[0].hidden is made.model.dim
    made = overlay("heads = %size\nsize = 3", graph)
    assert graphs.evaluate(made.model.num_heads) == 3


def test_constants_that_are_made_of_themselves():
    graph = parts.experiment()
    graph.model.dim = values.value(16, name="size")
    graph.model.num_heads = values.value(4, name="heads")
    with pytest.raises(BadInput, match=r"contains itself \[set by given\]"):
        overlay("heads = %size\nsize = %heads", graph)
    assert problems("A = %B\nB = %A\nModel.dim = %A") == ["%A contains itself [set by given]"]


def test_names_that_are_no_macros():
    graph = overlay("Experiment.kind = %graph_toys.parts.Kind.NONE\nimport graph_toys.parts")
    assert graph.kind is parts.Kind.NONE
    assert problems("DIM = 3\nModel.dim = %DIN") == [
        "there is no macro or constant 'DIN' [set by given]; did you mean DIM?"
    ]
    assert problems("Model.dim = %ZZZ") == [
        "there is no macro or constant 'ZZZ' [set by given]; define it: ZZZ = ..."
    ]


def test_a_macro_that_nothing_uses_is_reported_on_the_command_line():
    assert problems("DIM = 3\nDIN = 4\nModel.dim = %DIM") == [
        "nothing uses the macro 'DIN' [set by given]; did you mean DIM?"
    ]


def test_a_macro_in_a_list_stays_live():
    graph = overlay("A = 1\nL = [%A, 2]\nExperiment.extra = %L")
    assert isinstance(graph.extra, list)
    assert isinstance(graph.extra[0], fdl.Config)


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
    ("text", "message"),
    [
        ("Experiment.extra = @Experiment()", "@Experiment()"),
        ("M = [%M]\nExperiment.extra = %M", "%M"),
    ],
)
def test_what_contains_itself(text, message):
    assert problems(text)[-1] == f"{message} contains itself [set by given]"


def test_too_many_nodes_are_refused(monkeypatch):
    monkeypatch.setattr("luthier.graph.formats.gin.values._MOST_NODES", 10)
    doubling = "Experiment.extra = [@a/Mlp(), @a/Mlp(), @Model()]\nModel.layers = [%L, %L]\n"
    doubling += "L = [@Mlp(), @Mlp(), @Mlp(), @Mlp()]"
    assert problems(doubling)[0] == "this makes more than 10 nodes [set by given]"


def test_what_is_left_out_on_request_is_listed():
    notes = []
    text = "import nowhere.at_all\nModle.dim = 3\nx/Mlp.hidden = 3\nModel.dim = 32"
    words = ["gin_skip_unknown:true", *(f"gin_bindings:{line}" for line in text.splitlines())]
    graph = graphs.apply(parts.experiment(), words, on_note=notes.append)
    assert values.evaluate(graph.model.dim) == 32
    assert notes == [
        "--gin_skip_unknown skipped 3 statements of gin that this experiment has no place for: "
        "import nowhere.at_all, Modle.dim, x/Mlp.hidden"
    ]


def test_the_script_of_a_file_is_ignored_unless_something_is_bound_in_it():
    graph = overlay("import __main__ as train_script\nModel.dim = 32")
    assert values.evaluate(graph.model.dim) == 32
    assert problems("import __main__ as train_script\ntrain_script.train.seed = 0") == [
        "'train_script.train' belongs to the script that the file was written for (import "
        "__main__) [set by given]; leave it out, or allow such bindings with --gin_skip_unknown"
    ]


@pytest.mark.parametrize("text", ["DIM = %gin.REQUIRED", "DIM = %OTHER\nOTHER = %REQUIRED"])
def test_a_macro_that_is_left_open_is_asked_for_by_name(text):
    name = text.rpartition("\n")[2].partition(" ")[0]
    found = problems(f"{text}\nModel.dim = %DIM")
    assert found == [f"{name} is required [set by given]; set it: --gin.{name}=..."]
    assert values.evaluate(overlay(f"{text}\nModel.dim = %DIM\n{name} = 32").model.dim) == 32


def test_the_macro_that_would_make_a_node_is_named_where_nothing_uses_it():
    (found,) = problems("LAYER = @x/Mlp()\nx/Mlp.hidden = 3")
    assert found == (
        "the graph has no node of Mlp in the scope 'x'; the macro LAYER, which makes one, is "
        "used by nothing here [set by given]; add the file that uses %LAYER, or a binding such as "
        "ARGUMENT = %LAYER"
    )
