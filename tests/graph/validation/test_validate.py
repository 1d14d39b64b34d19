from __future__ import annotations

import re

import fiddle as fdl
import optax
import pytest
from flax import nnx
from graph_toys import modules, parts

from luthier import data, layers, models
from luthier.durations import Steps
from luthier.errors import ValidationError
from luthier.graph import apply, multiply, true_divide, validate, value

PACKAGES = ("graph_toys",)


def problems(graph, packages=PACKAGES) -> list[str]:
    try:
        validate(graph, packages)
    except ValidationError as error:
        # Without the place, which moves with every edit of this file.
        return [str(p).replace(f" [set by {p.origin}]", "") for p in error.problems]
    return []


@pytest.fixture
def graph():
    return parts.experiment()


def test_a_good_graph_passes(graph):
    dim = value(16, name="dim")
    graph.model.dim, graph.steps = dim, multiply(dim, 4)
    graph.extra = fdl.Partial(modules.Net, dim=3, block=fdl.Partial(modules.Dense, out=3))
    graph.callback = parts.relu
    assert problems(graph) == []


CASES = {
    "steps='abc'": ["steps: 'abc' is not an int"],
    "seed=True": ["seed: True is not an int or None"],
    "seed=1.0": ["seed: 1.0 is not an int or None"],
    "kind='fast'": ["kind: 'fast' is not a Kind"],
    "mode='tset'": ["mode: 'tset' is not 'train' or 'test'"],
    "optimizer.b1=1": ["optimizer.b1: 1 is out of range; Optimizer needs 0 <= b1 < 1"],
    "optimizer.learning_rate.peak=infinity": [
        "optimizer.learning_rate.peak: inf is not a finite number; Cosine needs 0 < peak"
    ],
    "optimizer.b2=-0.1": ["optimizer.b2: -0.1 is out of range; Optimizer needs 0 <= b2 < 1"],
    "optimizer.learning_rate.peak=0": [
        "optimizer.learning_rate.peak: 0 is out of range; Cosine needs 0 < peak"
    ],
    "optimizer.learning_rate.warmup_steps=1000": [
        "optimizer.learning_rate: Cosine needs warmup_steps < total_steps, and "
        "total_steps = 1000, warmup_steps = 1000"
    ],
    "model.dim=18": ["model: Model needs dim % num_heads == 0, and dim = 18, num_heads = 4"],
    "model.num_heads=0": [
        "model: dim % num_heads == 0 cannot be computed with dim = 16, num_heads = 0: "
        "integer modulo by zero"
    ],
    "model.layers=[3, Mlp(hidden='x')]": [
        "model.layers[0]: 3 is not a Layer",
        "model.layers[1].hidden: 'x' is not an int",
    ],
    "optimizer.learning_rate=Layer()": [],  # a protocol admits every node
    "duration=Layer()": ["duration: Layer(...) is not a Steps, a Tokens, a Seconds or None"],
    "duration=5": ["duration: 5 is not a Steps, a Tokens, a Seconds or None"],
    "data=Layer": ["data: Layer is not a Source; for a node, write Layer()"],
    "callback=3": ["callback: 3 is not a callable or None"],
    "callback=lambda": [
        "callback: a lambda has no name to record; give it a name with def, in a module"
    ],
    "rules=Rules(parameters={'a': ('x', 3)})": ["rules.parameters.a[1]: 3 is not a str"],
    "rules=Rules(sizes=(1, 2, 3))": ["rules.sizes: (1, 2, 3) is not a tuple of (int, int)"],
}

VALUES = {
    "[3, Mlp(hidden='x')]": lambda: [3, fdl.Config(parts.Mlp, hidden="x")],
    "Layer()": lambda: fdl.Config(parts.Layer),
    "infinity": lambda: float("inf"),
    "Layer": lambda: parts.Layer,
    "lambda": lambda: lambda x: x,
    "Rules(parameters={'a': ('x', 3)})": lambda: fdl.Config(
        parts.Rules, parameters={"a": ("x", 3)}
    ),
    "Rules(sizes=(1, 2, 3))": lambda: fdl.Config(parts.Rules, sizes=(1, 2, 3)),
    "'abc'": lambda: "abc",
    "'fast'": lambda: "fast",
    "'tset'": lambda: "tset",
    "True": lambda: True,
}


@pytest.mark.parametrize(("case", "expected"), CASES.items(), ids=CASES)
def test_every_problem_has_its_line(graph, case, expected):
    path, _, text = case.partition("=")
    *way, last = path.split(".")
    node = graph
    for part in way:
        node = getattr(node, part)
    setattr(
        node, last, VALUES[text]() if text in VALUES else float(text) if "." in text else int(text)
    )
    assert problems(graph) == expected


def test_all_problems_are_reported_at_once(graph):
    graph.steps, graph.optimizer.b2, graph.extra = "x", 2.0, lambda: 0
    del graph.name
    found = problems(graph)
    assert [line.split(":")[0] for line in found] == ["name", "steps", "optimizer.b2", "extra"]


def test_where_it_was_set_is_reported(graph):
    changed = apply(graph, ["optimizer.b2=1.5"])
    with pytest.raises(ValidationError) as caught:
        validate(changed, PACKAGES)
    assert str(caught.value) == (
        "optimizer.b2: 1.5 is out of range [set by argument 1: optimizer.b2=1.5]; "
        "Optimizer needs 0 <= b2 < 1"
    )
    both = apply(graph, ["model.dim=18", "model.num_heads=5"])
    with pytest.raises(ValidationError) as caught:
        validate(both, PACKAGES)
    assert "[set by argument 1: model.dim=18, argument 2: model.num_heads=5]" in str(caught.value)


def test_required_arguments(graph):
    graph.optimizer = fdl.Config(parts.Optimizer)
    (line,) = problems(graph)
    assert line == (
        "optimizer.learning_rate: is not set, and Optimizer needs it; "
        "set optimizer.learning_rate=..."
    )
    with pytest.raises(ValidationError) as caught:
        validate(graph, PACKAGES)
    assert "test_validate.py:" in str(caught.value)  # where the node was made


def test_what_templates_inherit_is_not_required(graph):
    graph.extra = fdl.Partial(modules.Dense)
    assert problems(graph) == ["extra.out: is not set, and Dense needs it; set extra.out=..."]
    graph.extra = fdl.Config(parts.by_position)
    assert problems(graph) == ["extra[0]: is not set, and by_position needs it; set extra[0]=..."]
    graph.extra = fdl.Config(modules.Dense, dim=1, out=2)
    assert problems(graph) == [
        "extra.rngs: is not set, and Dense needs it; "
        "describe an NNX module with fdl.Partial(Dense, ...)"
    ]
    graph.extra = fdl.Partial(modules.Net, block=fdl.Partial(modules.Dense, out=3))
    assert problems(graph) == [
        "extra.dim: is not set, and Net needs it; "
        "set extra.dim=..., or list 'dim' in Net.INHERITED if its parent passes it"
    ]
    # The module above passes its width down.
    inner = fdl.Partial(modules.Net, block=fdl.Partial(modules.Dense, out=3))
    graph.extra = fdl.Partial(modules.Net, dim=4, block=inner)
    assert problems(graph) == []
    graph.extra = fdl.Partial(modules.Positional)
    assert problems(graph) == []
    graph.extra = fdl.Partial(parts.half_typed)  # called with what is left open
    assert problems(graph) == []


def test_unknown_arguments(graph):
    node = fdl.Config(parts.Constant, 0.1)
    node.__arguments__["rat"] = 0.2
    graph.extra = [node, fdl.Config(parts.keywords, 1, anything=2.0)]
    assert problems(graph) == ["extra[0].rat: Constant has no argument 'rat'; did you mean rate?"]


def test_variadic_arguments(graph):
    graph.extra = fdl.Config(optax.chain, 1, 2)
    assert problems(graph) == [
        f"extra[{i}]: chain takes *args, which a graph cannot name; "
        "wrap it in a function that takes a list"
        for i in (0, 1)
    ]


def test_value_nodes_count_as_their_value(graph):
    graph.steps = true_divide(value(3), 2)
    graph.optimizer.b2 = value(2.0, name="b2")
    graph.seed = true_divide(value(3), 0)
    graph.model.dim = value(18)
    assert problems(graph) == [
        "steps: 3 / 2 = 1.5 is not an int",
        "model: Model needs dim % num_heads == 0, and dim = 18, num_heads = 4",
        "optimizer.b2: 2.0 is out of range; Optimizer needs 0 <= b2 < 1",
        "seed: 3 / 0 cannot be computed: division by zero",
    ]


def test_a_shared_node_is_reported_once(graph):
    graph.model.layers[0].hidden = "x"
    assert problems(graph) == ["model.layers[0].hidden: 'x' is not an int"]


def test_sharing_between_parts(graph):
    graph.evaluations["held_out"].data = graph.data
    (line,) = problems(graph)
    assert line.startswith("evaluations.held_out.data: is the same Source node as data")


def test_packages_are_reported_once(graph):
    found = problems(graph, packages=())
    assert len(found) == 1
    assert 'if it is yours, add it: [tool.luthier] packages = ["graph_toys"]' in found[0]


def test_functions_declare_conditions_too(graph, monkeypatch):
    monkeypatch.setattr(parts.adam, "RANGES", {"b2": "x < 1"}, raising=False)
    monkeypatch.setattr(parts.adam, "RELATIONS", ("b2 > learning_rate",), raising=False)
    graph.optimizer = fdl.Config(parts.adam, fdl.Config(parts.Constant, 0.1), b2=1.0)
    assert problems(graph) == ["optimizer.b2: 1.0 is out of range; adam needs b2 < 1"]


def test_malformed_conditions_are_reported(graph, monkeypatch):
    monkeypatch.setattr(parts.Optimizer, "RANGES", {"b2": "x <"})
    monkeypatch.setattr(parts.Optimizer, "RELATIONS", ("f(b1)", "b1 <"), raising=False)
    found = problems(graph)
    assert found[0] == "optimizer.b2: RANGES of Optimizer: 'x <' is not a condition"
    assert found[-1] == "optimizer: RELATIONS of Optimizer: 'b1 <' is not a condition"


def test_a_root_is_needed():
    assert problems(3) == ["3 is not a graph"]
    assert problems(fdl.Config(Steps, 3)) == []


def shared_problems(graph) -> list[str]:
    try:
        validate(graph, ("graph_toys",))
    except ValidationError as error:
        lines = [re.sub(r" \[set by [^]]*\]", "", str(problem)) for problem in error.problems]
        return [line for line in lines if "but the two are built separately" in line]
    return []


def test_sharing_inside_a_part_is_fine():
    assert shared_problems(parts.experiment()) == []


def test_sharing_between_parts_is_reported_with_both_paths():
    graph = parts.experiment()
    graph.evaluations["held_out"].data = graph.data
    (line,) = shared_problems(graph)
    assert line == (
        "evaluations.held_out.data: is the same Source node as data, but the two are built "
        "separately; "
        "give each its own node (copy.deepcopy), and share values with luthier.graph.value"
    )


def test_each_node_is_reported_once_and_not_what_is_below():
    graph = parts.experiment()
    graph.extra = [graph.model, graph.model]
    assert [line.split(":")[0] for line in shared_problems(graph)] == ["extra[0]"]


def test_value_nodes_may_be_shared():
    graph = parts.experiment()
    dim = value(8, name="dim")
    graph.model.dim, graph.steps, graph.extra = dim, multiply(dim, 2), [dim, {"a": dim}]
    assert shared_problems(graph) == []


def lines_of(graph) -> list[str]:
    try:
        validate(graph)
    except ValidationError as error:
        return [str(p).replace(f" [set by {p.origin}]", "") for p in error.problems]
    return []


def preferences(**settings):
    return fdl.Config(
        data.Preferences,
        source=fdl.Config(data.Arithmetic, **settings),
        tokenizer=fdl.Config(data.Bytes),
        length=32,
    )


def mixture(**components):
    weights = dict.fromkeys(components, 1.0)
    return fdl.Config(
        data.Mixture, components=components, stages=[fdl.Config(data.Stage, weights=weights)]
    )


def test_two_sources_that_draw_the_same_are_refused():
    graph = mixture(a=preferences(count=100), b=preferences(count=50, seed=0))
    assert lines_of(graph) == [
        "components.b.source: draws the same examples as components.a.source: both are Arithmetic "
        "with seed=0, split='train', largest=99; set components.b.source.seed to another number, "
        "or share it if that is meant: components.b.source.seed=alias:components.a.source.seed"
    ]


def test_the_remedies_of_equal_seeds_work():
    graph = mixture(a=preferences(), b=preferences())
    assert lines_of(apply(graph, ["components.b.source.seed=1"])) == []
    shared = apply(graph, ["components.b.source.seed=alias:components.a.source.seed"])
    assert lines_of(shared) == []


def test_other_splits_and_sizes_draw_others():
    assert lines_of(mixture(a=preferences(), b=preferences(split="test"))) == []
    assert lines_of(mixture(a=preferences(), b=preferences(largest=9))) == []


def test_seeds_that_are_equal_on_purpose_are_one_value():
    seed = value(3, name="seed")
    assert lines_of(mixture(a=preferences(seed=seed), b=preferences(seed=seed))) == []
    other = value(3, name="seed")
    assert len(lines_of(mixture(a=preferences(seed=seed), b=preferences(seed=other)))) == 1


def test_a_template_with_random_streams_of_its_own_is_refused():
    norm = fdl.Partial(layers.RMSNorm)
    graph = fdl.Partial(
        models.Decoder,
        vocab_size=8,
        dim=8,
        num_layers=2,
        norm=norm,
        block=fdl.Partial(
            layers.PreNormBlock,
            attention=fdl.Partial(layers.Attention, num_heads=2),
            mlp=fdl.Partial(layers.Mlp, hidden_dim=8, rngs=fdl.Config(nnx.Rngs, 0)),
            norm=norm,
        ),
    )
    (line,) = [line for line in lines_of(graph) if line.startswith("block.mlp.rngs: is set")]
    assert line == (
        "block.mlp.rngs: is set: all modules made of this template draw the same numbers; "
        "leave it out: the parent passes its own"
    )
