"""Configs of Hydra and NeMo-Run: nodes, templates, interpolation, and every error by key."""

from __future__ import annotations

import contextlib

import fiddle as fdl
import hypothesis
import pytest
from graph_toys import parts
from hypothesis import strategies as st

from luthier import graph as graphs
from luthier.errors import BadInput, RecordError
from luthier.graph import from_hydra

PACKAGES = ["graph_toys"]
TEXT = """\
steps: 2000
name: vit_${model.dim}
model:
  _target_: graph_toys.parts.Model
  dim: 64
  layers:
    - _target_: graph_toys.parts.Mlp
      hidden: ${...dim}
      activation: {_target_: hydra.utils.get_method, path: graph_toys.parts.gelu}
experiment:
  _target_: graph_toys.parts.Experiment
  name: ${name}
  model: ${model}
  optimizer:
    _target_: graph_toys.parts.Optimizer
    _args_: [{_target_: graph_toys.parts.Cosine, peak: 1e-3, total_steps: "${steps}"}, 0.5]
    _convert_: all
  data:
    _target_: graph_toys.parts.Source
    path: ???
  steps: ${steps}
  callback: {_target_: graph_toys.parts.untyped, _partial_: true, rate: 0.5}
  extra: {_target_: graph_toys.parts.untyped, _recursive_: false, rate: {_target_: some.thing}}
"""


def errors(text, key="") -> list[str]:
    with pytest.raises(RecordError) as caught:
        from_hydra(text, PACKAGES, key=key)
    return str(caught.value).splitlines()


def test_a_config_with_all_that_hydra_knows():
    graph = from_hydra(TEXT, PACKAGES, key="experiment")
    assert graph.__fn_or_cls__ is parts.Experiment
    assert graph.name == "vit_64"
    assert (graph.model.dim.value, graph.optimizer.b1) == (64, 0.5)
    assert graph.model.layers[0].hidden is graph.model.dim
    assert graph.model.layers[0].activation is parts.gelu
    assert isinstance(graph.callback, fdl.Partial)
    assert graph.extra.rate == {"_target_": "some.thing"}
    longer = graphs.apply(graph, ["steps=9000"])
    assert graphs.evaluate(longer.optimizer.learning_rate.total_steps) == 9000
    assert graphs.origin_of(graph, "optimizer.learning_rate.peak") == "config.yaml:16"
    with pytest.raises(BadInput, match=r"data.path: experiment.data.path cannot be computed"):
        graphs.validate(graph, PACKAGES)
    graphs.validate(graphs.apply(graph, ["data.path=here"]), PACKAGES)


def test_a_node_that_is_referred_to_is_made_anew():
    text = """
_target_: graph_toys.parts.Model
dim: 8
layers: ["${shared}", "${shared}"]
shared: {_target_: graph_toys.parts.Mlp}
"""
    lines = errors(text)
    assert lines[0].startswith("shared: graph_toys.parts.Model takes no argument 'shared'")
    node = {"_target_": "graph_toys.parts.Model", "dim": 8, "layers": ["${a}", "${a}"]}
    config = {"a": {"_target_": "graph_toys.parts.Mlp"}, "b": node}
    graph = from_hydra(config, PACKAGES, key="b")
    assert graph.layers[0] is not graph.layers[1]
    assert graphs.equal(graph.layers[0], fdl.Config(parts.Mlp))


def test_variables_of_the_environment_are_read(monkeypatch):
    monkeypatch.setenv("CORPUS", "/data/c4")
    node = {
        "_target_": "graph_toys.parts.Experiment",
        "name": "run on ${oc.env:CORPUS}",
        "extra": [
            "${path}",
            "${oc.env:MISSING,'a default'}",
            "${oc.env:MISSING,null}",
            "in ${path}",
        ],
    }
    graph = from_hydra({"run": node, "path": "${oc.env:CORPUS}"}, PACKAGES, key="run")
    assert graph.name == "run on /data/c4"
    assert graph.extra == ["/data/c4", "a default", None, "in /data/c4"]


def test_a_part_of_a_config_that_hydra_composes_is_refused_like_the_whole():
    text = "defaults: [adam]\noptimizer: {_target_: graph_toys.parts.Optimizer}"
    for key in ("", "optimizer"):
        with pytest.raises(BadInput, match="is to be composed by Hydra from other files"):
            from_hydra(text, PACKAGES, key=key)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1", "config.yaml has no _target_ at its root"),
        (
            "model: {_target_: x.Y}",
            "config.yaml has no _target_ at its root; read a part that has: model",
        ),
        (
            "defaults: [a]\nb: 1",
            "config.yaml is to be composed by Hydra from other files; write the composed",
        ),
        ("a: [", "config.yaml, line 2: it is not readable as YAML: "),
        ("", "config.yaml has no _target_ at its root"),
        ("_target_: 3", "_target_ is 3, not a name [set by config.yaml:1]"),
        (
            "_target_: graph_toys.parts.Model\n_partail_: true",
            "_partail_ is not a known key [set by config.yaml:2: _partail_]; did you mean _part",
        ),
        (
            "_target_: graph_toys.parts.Model\ndim: ${dimm}",
            "${dimm} refers to nothing [set by config.yaml:2: dim]; did you mean ${dim}?",
        ),
        (
            "_target_: graph_toys.parts.Model\ndim: ${oc.env:DIM}",
            "${oc.env:DIM}: the environment variable DIM is not set [set by config.yaml:2: dim]; "
            "set it, or write a default: ${oc.env:DIM,VALUE}",
        ),
        (
            "_target_: graph_toys.parts.Model\ndim: 8\nlayers: '${eval:\"2*${dim}\"}'",
            '${eval:"2*${dim}"} is computed by a resolver, which is not read [set by config.yaml:3',
        ),
        (
            "_target_: graph_toys.parts.Model\ndim: ${dropout}\ndropout: ${dim}",
            "${dropout} is a circular reference [set by config.yaml:2: dim]",
        ),
        (
            "_target_: graph_toys.parts.Model\ndim: ${.layers}\nlayers: ['${layers}']",
            "${layers} is a circular reference [set by config.yaml:3: layers[0]]",
        ),
        (
            "_target_: graph_toys.parts.Rules\n_args_: [1, 2, 3]",
            "graph_toys.parts.Rules takes 2 arguments, not 3, without a name [set by config.yaml:2",
        ),
        (
            "_target_: graph_toys.parts.Model\n_partial_: maybe",
            "_partial_ is 'maybe', neither true nor false [set by config.yaml:2: _partial_]",
        ),
        (
            "_target_: graph_toys.parts.Model\n_args_: 3",
            "_args_ is not a list [set by config.yaml:2: _args_]",
        ),
        (
            "_target_: graph_toys.parts.Model\n3: true",
            "an argument has no name [set by config.yaml:1]",
        ),
        (
            "_target_: graph_toys.parts.Source\nfields: [a]\npath: runs/${fields}",
            "${fields} is not text [set by config.yaml:3: path]",
        ),
        (
            "_target_: graph_toys.parts.Source\nlength: ${name}_x\nname: a\npath: ${length}/b",
            "${length} holds references of its own [set by config.yaml:4: path]",
        ),
    ],
)
def test_what_is_wrong_is_reported_by_key_and_line(text, message):
    lines = errors(text)
    assert lines[0].startswith(message), lines


def test_a_number_of_too_many_digits_is_refused():
    (line,) = errors("_target_: graph_toys.parts.Model\ndim: " + "9" * 5000)
    assert line.startswith("config.yaml: Exceeds the limit")


def test_a_value_that_no_record_can_hold_is_reported_by_key():
    config = {"_target_": "graph_toys.parts.Model", "dim": object()}
    (line,) = errors(config)
    assert line.startswith("an object of builtins.object cannot be recorded")
    assert "[set by config.yaml: dim]" in line


def test_a_config_that_is_nested_too_deeply_is_refused():
    config = {"_target_": "graph_toys.parts.Model", "dim": 8}
    for _ in range(2000):
        config = {"_target_": "graph_toys.parts.Model", "dim": config}
    assert errors(config) == ["config.yaml is nested too deeply"]


def test_dicts_of_any_keys_and_lists_below_recursive_false():
    graph = from_hydra(
        "_target_: graph_toys.parts.Model\ntie: {1: a, 2: {_target_: graph_toys.parts.Mlp}}\n"
        "dim: {b: 3}",
        PACKAGES,
    )
    assert (graph.tie, graph.dim) == ({1: "a", 2: fdl.Config(parts.Mlp)}, {"b": 3})
    graph = from_hydra(
        "_target_: graph_toys.parts.Model\n_recursive_: false\nlayers: [{_target_: a.b}, 1]",
        PACKAGES,
    )
    assert graph.layers == [{"_target_": "a.b"}, 1], "stays a dict, as Hydra passes it"


def test_what_may_not_be_imported_is_refused():
    assert "os.system" in errors("_target_: os.system")[0]


def test_all_that_is_wrong_is_reported_at_once():
    text = "_target_: graph_toys.parts.Model\ndim: ${a}\nlayers: [{_target_: 1}]\n_x_: 1"
    assert len(errors(text)) == 3


def test_a_key_that_is_not_there():
    assert errors("model: {_target_: x.Y}", "modle") == [
        "config.yaml has no key 'modle'; did you mean model?"
    ]


_KEYS = st.sampled_from(
    ["_target_", "_partial_", "_args_", "_recursive_", "dim", "layers", "x", "defaults"]
)
_LEAVES = st.none() | st.booleans() | st.integers(-3, 3) | st.floats()
_LEAVES |= st.sampled_from(
    ["graph_toys.parts.Model", "graph_toys.parts.Mlp", "${dim}", "${..x}", "a ${x} b", "???", "${"]
)


@pytest.mark.full
@hypothesis.settings(max_examples=200, deadline=None)
@hypothesis.given(
    st.dictionaries(
        _KEYS,
        st.recursive(
            _LEAVES, lambda inside: st.dictionaries(_KEYS, inside) | st.lists(inside, max_size=2)
        ),
    )
)
def test_whatever_stands_in_it_nothing_but_bad_input_is_raised(config):
    with contextlib.suppress(BadInput):
        assert isinstance(from_hydra(config, PACKAGES), fdl.Buildable)
