"""ConfigDicts laid over a graph: live references, placeholders, renames, and every error."""

from __future__ import annotations

import ast
import contextlib
import pathlib

import fiddle as fdl
import hypothesis
import ml_collections
import pytest
from graph_toys import parts
from hypothesis import strategies as st
from ml_collections import config_dict

from luthier import graph as graphs
from luthier.errors import BadInput, OverrideError
from luthier.graph import apply_config_dict, values

FILES = pathlib.Path(__file__).parent / "files"
CLU = f"{FILES}/clu_translation.py"


def _get(graph, path):
    return graphs.evaluate(graphs.get(graph, path))


def _problems(config, **given) -> list[str]:
    with pytest.raises(OverrideError) as caught:
        apply_config_dict(parts.experiment(), config, **given)
    return str(caught.value).splitlines()


@pytest.fixture(autouse=True)
def _in_the_folder_of_the_files(monkeypatch):
    monkeypatch.chdir(FILES)


def test_a_big_vision_file_with_an_argument_sets_what_it_names():
    base = parts.experiment()
    graph = apply_config_dict(base, "big_vision_vit.py:dim=96,batch_size=256")
    wanted = {
        "seed": 0,
        "steps": 5000,
        "optimizer.learning_rate.total_steps": 5000,
        "optimizer.learning_rate.peak": 0.001,
        "optimizer.learning_rate.warmup_steps": 1000,
        "optimizer.b2": 0.95,
        "evaluations.held_out.batch_size": 256,
        "data.length": 224,
        "data.fields": ("image", "labels"),
        "model.dim": 96,
        "model.num_heads": 8,
    }
    assert {path: _get(graph, path) for path in wanted} == wanted
    assert graphs.equal(base, parts.experiment()), "the graph itself is not changed"
    assert graphs.get(apply_config_dict(base, "big_vision_vit.py"), "model.dim") == 64
    graphs.validate(graph, ["graph_toys"])


def test_a_key_at_two_places_stays_one_value():
    graph = apply_config_dict(parts.experiment(), "big_vision_vit.py")
    longer = graphs.apply(graph, ["steps=9000"])
    assert _get(longer, "optimizer.learning_rate.total_steps") == 9000


def test_a_scenic_file_with_a_table_of_renames():
    graph = apply_config_dict(parts.experiment(), "scenic_mnist.py:yes", "scenic_renames.toml")
    assert _get(graph, "name") == "mnist_local"
    assert _get(graph, "evaluations.held_out.batch_size") == 8
    assert _get(graph, "optimizer.learning_rate.total_steps") == 5 * 7500
    assert str(_get(graph, "model.layers[0].dtype").__name__) == "bfloat16"
    assert (_get(graph, "model.dim"), _get(graph, "model.layers[0].hidden")) == (16, 64)
    wider = graphs.apply(graph, ["model.dim=32"])
    assert _get(wider, "model.layers[0].hidden") == 128, "references stay live"


def test_a_clu_file_with_references_and_a_required_placeholder():
    graph = apply_config_dict(parts.experiment(), "clu_translation.py:base")
    changed = graphs.apply(graph, ["steps=2000", "model.dim=64", "data.length=32"])
    assert _get(changed, "optimizer.learning_rate.total_steps") == 2000
    assert _get(changed, "evaluations.held_out.every.count") == 20
    assert _get(changed, "model.layers[0].hidden") == 256
    assert _get(changed, "evaluations.held_out.data.length") == 32
    message = r"^data.path: dataset_name cannot be computed: dataset_name is not set"
    with pytest.raises(BadInput, match=message):
        graphs.validate(changed, ["graph_toys"])
    graphs.validate(graphs.apply(changed, ["data.path=wmt", "note=there"]), ["graph_toys"])


def test_a_required_placeholder_of_a_required_argument_is_reported_as_every_unset_argument():
    config = ml_collections.ConfigDict()
    config.model = ml_collections.ConfigDict({"dim": config_dict.required_placeholder(int)})
    graph = apply_config_dict(parts.experiment(), config)
    with pytest.raises(BadInput) as caught:
        graphs.validate(graph, ["graph_toys"])
    assert str(caught.value).startswith("model.dim: is not set, and Model needs it")
    assert str(caught.value).endswith("; set model.dim=...")
    assert _get(graphs.apply(graph, ["model.dim=8"]), "model.dim") == 8


def test_a_required_placeholder_of_a_shared_value_leaves_it_shared():
    graph = parts.experiment()
    graph.steps = graph.seed = values.value(900, name="steps")
    config = ml_collections.ConfigDict({"steps": config_dict.required_placeholder(int)})
    graph = apply_config_dict(graph, config)
    with pytest.raises(BadInput, match="steps is not set"):
        graphs.validate(graph, ["graph_toys"])
    changed = apply_config_dict(graph, ml_collections.ConfigDict({"steps": 30}))
    assert (graphs.evaluate(changed.steps), graphs.evaluate(changed.seed)) == (30, 30)


def test_a_required_placeholder_of_a_required_argument_leaves_its_value_shared():
    graph = parts.experiment()
    graph.model.dim = graph.seed = values.value(900, name="size")
    placeholder = config_dict.required_placeholder(int)
    empty = apply_config_dict(graph, ml_collections.ConfigDict({"model": {"dim": placeholder}}))
    with pytest.raises(BadInput, match="is not set"):
        graphs.validate(empty, ["graph_toys"])
    for changed in (
        graphs.apply(empty, ["config_dict:model.dim=30"]),
        apply_config_dict(empty, ml_collections.ConfigDict({"model": {"dim": 30}})),
    ):
        assert (_get(changed, "model.dim"), _get(changed, "seed")) == (30, 30)


def test_a_required_placeholder_that_others_follow():
    config = ml_collections.ConfigDict({"steps": config_dict.required_placeholder(int)})
    config.seed = config.get_ref("steps")
    graph = apply_config_dict(parts.experiment(), config)
    with pytest.raises(BadInput, match=r"^steps: "):
        graphs.validate(graph, ["graph_toys"])
    assert _get(graphs.apply(graph, ["steps=10"]), "seed") == 10


def test_fields_that_are_none_can_be_set():
    config = ml_collections.ConfigDict({"note": None, "seed": config_dict.placeholder(int)})
    graph = apply_config_dict(parts.experiment(), config)
    assert (_get(graph, "note"), _get(graph, "seed")) == (None, None)
    changed = graphs.apply(graph, ["note=words", "seed=3"])
    assert (_get(changed, "note"), _get(changed, "seed")) == ("words", 3)


@pytest.mark.parametrize(
    ("compute", "at_10", "at_20"),
    [
        (lambda ref: ref + 1, 11, 21),
        (lambda ref: ref * 2, 20, 40),
        (lambda ref: 100 - ref, 90, 80),
        (lambda ref: ref - 3, 7, 17),
        (lambda ref: ref // 4, 2, 5),
        (lambda ref: ref % 4, 2, 0),
        (lambda ref: ref**2, 100, 400),
        (lambda ref: -ref, -10, -20),
        (lambda ref: (ref + 2) * 3 - ref, 26, 46),
    ],
)
def test_arithmetic_on_references_stays_live(compute, at_10, at_20):
    config = ml_collections.ConfigDict({"steps": 10})
    config.extra = compute(config.get_ref("steps"))
    graph = apply_config_dict(parts.experiment(), config)
    assert _get(graph, "extra") == config.extra == at_10
    assert _get(graphs.apply(graph, ["steps=20"]), "extra") == at_20


def test_what_has_no_live_form_is_computed_once_and_says_so():
    config = ml_collections.ConfigDict({"steps": 10})
    config.note = config.get_ref("steps").to_str()
    graph = apply_config_dict(parts.experiment(), config)
    assert _get(graph, "note") == "10"
    assert graphs.origin_of(graph, "note") == "config_dict: note (computed once)"


def test_references_inside_of_lists_and_dicts_stay_live():
    config = ml_collections.ConfigDict({"steps": 10})
    config.extra = [config.get_ref("steps"), 3]
    graph = apply_config_dict(parts.experiment(), config)
    changed = graphs.apply(graph, ["steps=20"])
    assert [graphs.evaluate(item) for item in changed.extra] == [20, 3]


def test_a_dict_becomes_the_value_where_the_graph_has_no_fields():
    config = ml_collections.ConfigDict({"extra": {"a": 1, "b": {"c": 2.0}}})
    assert apply_config_dict(parts.experiment(), config).extra == {"a": 1, "b": {"c": 2.0}}


def test_texts_are_read_as_what_the_place_wants():
    config = {"kind": "exact", "callback": "gelu", "data": {"path": "here"}, "mode": "test"}
    table = {"callback": "model.layers[0].activation"}
    graph = apply_config_dict(parts.experiment(), config, table)
    assert graph.kind is parts.Kind.EXACT
    assert graph.model.layers[0].activation is parts.gelu
    assert graph.data.path == pathlib.Path("here")


def test_why_shows_file_and_line():
    graph = apply_config_dict(parts.experiment(), "clu_translation.py:base")
    at = (FILES / "clu_translation.py").read_text().splitlines()
    line = at.index("    config.num_heads = 8") + 1
    assert graphs.origin_of(graph, "model.num_heads") == (f"clu_translation.py:{line}: num_heads=8")
    line = at.index("    config.num_train_steps = 500_000") + 1
    causes = graphs.explain(graph, "steps").causes
    assert causes[-1].origin == f"clu_translation.py:{line}: num_train_steps"
    follows = dict(graphs.explain(graph, "evaluations.held_out.every.count").follows)
    last = follows["optimizer.learning_rate.total_steps"][-1]
    assert last.origin == f"clu_translation.py:{line}: num_train_steps"


def test_all_that_is_wrong_is_reported_at_once():
    config = ml_collections.ConfigDict(
        {
            "model": {"dim": "wide", "num_head": 2},
            "optimizer": {"learning_rate": 3e-4},
            "wandb": {"project": "x", "entity": "y"},
        }
    )
    assert _problems(config, renames={"modle.dim": "model.dim"}) == [
        "modle.dim is renamed, but the ConfigDict has no such key [set by renames: modle.dim]; "
        "did you mean model.dim?",
        "model.dim: 'wide' is not an int [set by config_dict: model.dim='wide']",
        "model.num_head: does not exist [set by config_dict: model.num_head=2]; "
        "did you mean model.num_heads?",
        "optimizer.learning_rate: is a Cosine node, which 0.0003 cannot replace "
        "[set by config_dict: optimizer.learning_rate=0.0003]; "
        "did you mean optimizer.learning_rate.peak=0.0003?",
        "wandb: does not exist [set by config_dict: wandb]; "
        "the root has name, model, optimizer, data, evaluations, rules, kind, mode, steps, seed, "
        "note, extra, callback, duration",
    ]


def test_two_keys_cannot_give_one_constant_two_values():
    graph = parts.experiment()
    graph.steps = graph.optimizer.learning_rate.total_steps = graphs.value(10, "steps")
    config = {"steps": 5, "optimizer": {"learning_rate": {"total_steps": 6}}}
    with pytest.raises(OverrideError) as caught:
        apply_config_dict(graph, config)
    assert str(caught.value) == (
        "steps: shares its value with optimizer.learning_rate.total_steps, which sets another "
        "[set by config_dict: steps=5]; "
        "leave one of them out: False in RENAMES"
    )
    config["optimizer"]["learning_rate"]["total_steps"] = 5
    assert _get(apply_config_dict(graph, config), "steps") == 5


def test_a_config_dict_that_holds_itself_is_refused():
    config = ml_collections.ConfigDict()
    config.model = ml_collections.ConfigDict()
    config.model.model = config.model
    assert _problems(config) == ["the ConfigDict holds itself at model.model [set by config_dict]"]


def test_keys_of_several_types_are_refused():
    assert _problems({"model": {1: 2, "dim": 3}}) == [
        "the ConfigDict has keys of several types at model [set by config_dict]"
    ]


def test_lists_of_config_dicts_go_into_lists_of_nodes_of_their_length():
    graph = parts.experiment()
    config = {"model": {"layers": [{"hidden": 3}, {"gate": "relu"}, {"hidden": 3}]}}
    changed = apply_config_dict(graph, config)
    assert (changed.model.layers[2].hidden, changed.model.layers[1].gate) == (3, "relu")
    assert _problems({"model": {"layers": [{"hidden": 3}]}}) == [
        "model.layers: holds 3 elements, and 1 are given [set by config_dict: model.layers]"
    ]


def test_an_exported_graph_is_laid_over_its_like():
    graph = graphs.apply(parts.experiment(), ["model.dim=24", "optimizer.b2=0.5", "note=words"])
    exported = graphs.to_config_dict(graph)
    assert graphs.to_dict(apply_config_dict(parts.experiment(), exported)) == graphs.to_dict(graph)
    swapped = graphs.apply(graph, ["optimizer=adam(learning_rate=Constant(1.0))"])
    assert graphs.to_dict(apply_config_dict(swapped, exported)) == graphs.to_dict(graph)


def test_another_class_in_a_dict_replaces_the_node():
    config = {"optimizer": {"learning_rate": {"class": "graph_toys.parts.Constant", "rate": 0.5}}}
    changed = apply_config_dict(parts.experiment(), config)
    assert changed.optimizer.learning_rate == fdl.Config(parts.Constant, rate=0.5)
    assert graphs.origin_of(changed, "optimizer.learning_rate.rate").startswith("config_dict: ")
    (problem,) = _problems({"optimizer": {"class": "graph_toys.parts.Mlp"}})
    assert problem.startswith("optimizer: Mlp(...) is not an Optimizer [set by config_dict")


def test_a_table_is_proposed_for_keys_of_other_frameworks():
    config = {"learning_rate": 0.5, "train": {"beta2": 0.9}, "nonsense": 1}
    *_, proposal = _problems(config)
    assert proposal == (
        "2 of these keys have other names in luthier [set by config_dict]; add to the file: "
        "RENAMES = {'learning_rate': 'optimizer.learning_rate.peak', 'train.beta2': 'optimizer.b2'}"
    )
    table = ast.literal_eval(proposal.partition("RENAMES = ")[2]) | {"nonsense": False}
    changed = apply_config_dict(parts.experiment(), config, table)
    assert (changed.optimizer.learning_rate.peak, changed.optimizer.b2) == (0.5, 0.9)


_LEAVES = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5)
    | st.floats(allow_nan=False)
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
)
_NAMES = st.sampled_from(
    ["model", "dim", "layers", "optimizer", "learning_rate", "peak", "steps", "seed", "x", "class"]
)


@pytest.mark.full
@hypothesis.settings(max_examples=150, deadline=None)
@hypothesis.given(
    st.dictionaries(_NAMES, st.recursive(_LEAVES, lambda inside: st.dictionaries(_NAMES, inside))),
    st.dictionaries(_NAMES, st.sampled_from(["model.dim", "x y", "steps", "seed", 3, False, []])),
)
def test_whatever_stands_in_it_nothing_but_bad_input_is_raised(config, table):
    with contextlib.suppress(BadInput):
        assert isinstance(apply_config_dict(parts.experiment(), config, table), fdl.Buildable)
