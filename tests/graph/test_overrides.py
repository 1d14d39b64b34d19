from __future__ import annotations

import random
import time

import fiddle as fdl
import jax
import jax.numpy as jnp
import pytest
from graph_toys import modules, parts
from graph_toys.names import case_name

from luthier.durations import Seconds, Steps
from luthier.errors import EXIT_BAD_INPUT, BadInput, OverrideError
from luthier.graph import (
    annotation_at,
    apply,
    evaluate,
    expression,
    find,
    get,
    matching,
    multiply,
    origin_of,
    validate,
    value,
)


@pytest.fixture
def graph():
    return parts.experiment()


SETS = [
    # (overrides, path, value)
    (["optimizer.b2=0.95"], "optimizer.b2", 0.95),
    (["steps=1e4"], "steps", 10_000),
    (["--fdl.steps=2**10"], "steps", 1024),
    (["steps=5", "steps=6"], "steps", 6),
    (["steps+=5", "steps*=2", "steps-=10"], "steps", 2000),
    (["steps=7", "steps~"], "steps", 1000),
    (["steps=7", "reset:steps"], "steps", 1000),
    (["optimizer.b2~"], "optimizer.b2", 0.999),
    (["name=a run, with = and 'quotes'"], "name", "a run, with = and 'quotes'"),
    (["name+=-2"], "name", "toy-2"),
    (["note=None"], "note", None),
    (["seed=0"], "seed", 0),
    (["kind=exact"], "kind", parts.Kind.EXACT),
    (["mode=test"], "mode", "test"),
    (["optimizer.nesterov=true"], "optimizer.nesterov", True),
    (["rules.sizes=2,4"], "rules.sizes", (2, 4)),
    (["rules.sizes[0]=8"], "rules.sizes", (8, 1)),
    (["rules.parameters.embed=fsdp,tensor"], "rules.parameters.embed", ("fsdp", "tensor")),
    (["rules.parameters['embed']=fsdp"], "rules.parameters.embed", ("fsdp",)),
    (["rules.parameters.mlp:=tensor,"], "rules.parameters.mlp", ("tensor",)),
    (["data.fields+=text", "data.fields+=title,body"], "data.fields", ("text", "title", "body")),
    (["data.path=/data/x-1"], "data.path.name", None),
    (["model.layers[1].hidden=512"], "model.layers[1].hidden", 512),
    (["model.layers[0].dtype=bf16"], "model.layers[2].dtype", jnp.bfloat16),  # they are shared
    (["model.layers[-1].dim=3"], "model.layers[0].dim", 3),
    (["any:dropout=0.1"], "model.layers[1].dropout", 0.1),
    (["**.dropout=0.1"], "model.dropout", 0.1),
    (["model.layers[*].dropout=.2"], "model.layers[0].dropout", 0.2),
    (["any:hidden*=2"], "model.layers[0].hidden", 128),  # once, though two paths lead there
    (["class:Mlp.hidden=512"], "model.layers[1].hidden", 512),  # subclasses too
    (["@GatedMlp.gate=gelu"], "model.layers[1].gate", "gelu"),
    (["tag:Rate=3e-4"], "optimizer.learning_rate.peak", 3e-4),
    (["#Rate*=2"], "optimizer.learning_rate.peak", 2e-3),
    (["evaluations.held_out.every.count=7"], "evaluations.held_out.every.count", 7),
    (["evaluations['long text'].every.count=7"], "evaluations['long text'].every.count", 7),
    (["any:batch_size=4"], "evaluations['long text'].batch_size", 4),
    (["callback=relu"], "callback", parts.relu),
    (["extra=jax.nn.relu", "extra=gelu"], "extra", jax.nn.gelu),  # beside what is there now
    (["extra=jax.nn.silu"], "extra", jax.nn.silu),
    (["extra=[1, {a: 2.5}]"], "extra[1].a", 2.5),
    (["extra:={'k': 1}", "extra.k=2", "extra.l:=3"], "extra", {"k": 2, "l": 3}),
    (["extra:={'k': 1, 'l': 2}", "extra.k~"], "extra", {"l": 2}),
    (["duration=Seconds(60)"], "duration.count", 60.0),
    (["duration=Steps(1e3)", "duration.count+=1"], "duration.count", 1001),
    (["duration=Steps(3)", "duration=None"], "duration", None),
]


@pytest.mark.parametrize(
    ("overrides", "path", "expected"), SETS, ids=lambda case: case_name(case)[:50]
)
def test_sets(graph, overrides, path, expected):
    before = parts.experiment()
    changed = apply(graph, overrides)
    if path == "data.path.name":
        assert changed.data.path.name == "x-1"
        return
    found = get(changed, path)
    assert found == expected
    assert type(found) is type(expected)
    assert graph == before  # the original is never touched


def test_node_swaps(graph):
    changed = apply(graph, ["optimizer.learning_rate=Constant(3e-4)"])
    assert changed.optimizer.learning_rate == fdl.Config(parts.Constant, 3e-4)
    changed = apply(graph, ["optimizer=adam(Constant(1), b2=.5)", "optimizer.b2=.25"])
    assert changed.optimizer == fdl.Config(parts.adam, fdl.Config(parts.Constant, 1.0), b2=0.25)
    changed = apply(graph, ["evaluations.held_out.every=Seconds(60)"])
    assert changed.evaluations["held_out"].every == fdl.Config(Seconds, 60.0)
    changed = apply(graph, ["model.layers+=GatedMlp(hidden=9)", "model.layers[3].dim=2"])
    assert changed.model.layers[3] == fdl.Config(parts.GatedMlp, hidden=9, dim=2)
    changed = apply(graph, ["evaluations.new:=Evaluation(Source(length=3))"])
    assert changed.evaluations["new"].data.length == 3
    changed = apply(graph, ["data.path=x", "data:=Source()"])
    assert changed.data == fdl.Config(parts.Source)


def test_templates_are_replaced_by_templates(graph):
    graph.extra = fdl.Partial(modules.Net, dim=3, block=fdl.Partial(modules.Dense, out=3))
    changed = apply(
        graph, ["extra.block=Dense(out=5)", "extra.dtype=bf16", "extra.activation=jax.nn.gelu"]
    )
    assert changed.extra.block == fdl.Partial(modules.Dense, out=5)
    assert changed.extra.dtype is jnp.bfloat16
    assert changed.extra.activation is jax.nn.gelu
    changed = apply(graph, ["extra.block.out=7", "class:Dense.use_bias=false"])
    assert (changed.extra.block.out, changed.extra.block.use_bias) == (7, False)


def test_python_values_can_be_given(graph):
    node = fdl.Config(parts.Constant, 0.1)
    changed = apply(graph, [("steps", 5), ("optimizer.learning_rate", node), ("optimizer.b1", 0)])
    assert changed.steps == 5
    assert changed.optimizer.learning_rate == node
    assert changed.optimizer.learning_rate is not node
    assert type(changed.optimizer.b1) is float
    with pytest.raises(OverrideError) as caught:
        apply(graph, [("steps", "5"), ("optimizer.learning_rate", 3)], origin="trial 7, value")
    assert str(caught.value).splitlines() == [
        "steps: '5' is not an int [set by trial 7, value 1: steps='5']",
        "optimizer.learning_rate: is a Cosine node, which 3 cannot replace "
        "[set by trial 7, value 2: optimizer.learning_rate=3]; "
        "did you mean optimizer.learning_rate.peak=3?",
    ]


def test_python_values_are_copied_for_each_place(graph):
    """Later overrides edit them in place: the caller's, and other places, stay as they are."""
    layers, extra = [fdl.Config(parts.Mlp, hidden=1)], {"sizes": [1, 2]}
    given = [("model.layers", layers), ("extra", extra)]
    changed = apply(graph, [*given, "model.layers[0].hidden=9", "extra.sizes[0]=9"])
    assert (changed.model.layers[0].hidden, changed.extra) == (9, {"sizes": [9, 2]})
    assert (layers[0].hidden, extra) == (1, {"sizes": [1, 2]})
    pair = fdl.Config(dict, a=fdl.Config(dict, x=None), b=fdl.Config(dict, x=None))
    for given in ([1], {"k": 1}):
        changed = apply(pair, [("any:x", given)])
        assert changed.a.x == changed.b.x == given
        assert changed.a.x is not changed.b.x


def test_pairs_and_what_they_are_about(graph):
    changed = apply(graph, [("class:Cosine.peak", 0.25)])
    (place,) = matching(changed, "class:Cosine.peak")
    assert (place.path, place.value) == ("optimizer.learning_rate.peak", 0.25)
    assert [found.path for found in matching(graph, "optimizer")] == ["optimizer"]
    for absent in ("optimiser", "gin:RATE"):
        with pytest.raises(BadInput):
            matching(graph, absent)


def test_a_set_on_a_constant_moves_all_its_users(graph):
    dim = value(16, name="dim")
    graph.model.dim, graph.model.layers[0].hidden, graph.steps = dim, multiply(dim, 4), dim
    changed = apply(graph, ["model.dim=32"])
    assert evaluate(changed.model.layers[0].hidden) == 128
    assert changed.steps is changed.model.dim
    assert origin_of(changed, "steps") == "argument 1: model.dim=32"
    changed = apply(graph, ["steps*=3", "any:dim+=1"])
    assert changed.model.dim.value == 49
    changed = apply(graph, ["model.dim:=8"])  # at this one path
    assert (changed.model.dim, changed.steps.value) == (8, 16)
    changed = apply(graph, ["model.layers[0].hidden=7"])  # arithmetic is replaced
    assert (changed.model.layers[0].hidden, changed.model.dim.value) == (7, 16)
    changed = apply(graph, ["model.layers[0].hidden*=2", "model.dim=10"])  # or stays live
    assert expression(changed.model.layers[0].hidden) == "dim * 4 * 2"
    assert evaluate(changed.model.layers[0].hidden) == 80
    assert dim.value == 16


def test_references_are_live(graph):
    changed = apply(graph, ["model.layers[0].hidden=ref:model.dim*4", "model.dim=32"])
    assert evaluate(changed.model.layers[0].hidden) == 128
    assert expression(changed.model.layers[0].hidden) == "dim * 4"
    changed = apply(graph, ["steps=$model.dim", "seed=$steps + 1", "model.dim=5"])
    assert (evaluate(changed.steps), evaluate(changed.seed)) == (5, 6)
    assert changed.steps is changed.model.dim
    changed = apply(graph, ["steps=$optimizer.learning_rate.total_steps", "steps=70"])
    assert get(changed, "optimizer.learning_rate.total_steps").value == 70
    # A reference into a constant moves all users of the constant, too.
    changed = apply(graph, ["seed=$steps", "steps=$model.dim", "model.dim=8"])
    assert evaluate(changed.seed) == evaluate(changed.steps) == 8
    validate(changed, ("graph_toys",))


def test_a_value_does_not_depend_on_itself(graph):
    for override in ("steps=$model.dim+1", "steps=ref:model.dim*2", "model.dim+=$steps"):
        with pytest.raises(OverrideError) as caught:
            apply(graph, ["model.dim=$steps", override])
        path = override.split("=")[0].rstrip("+")
        assert str(caught.value) == f"{path}: would contain itself [set by argument 2: {override}]"
    changed = apply(graph, ["model.dim=$steps", "steps:=$model.dim+1", "model.dim=7"])
    assert evaluate(changed.steps) == 8
    assert apply(graph, ["steps=$steps"]).steps.value == 1000


def test_patterns_see_what_came_before(graph):
    overrides = ["any:hidden=1", "model.layers[1]=Mlp(hidden=2)", "any:hidden*=3", "data=Source()"]
    changed = apply(graph, [*overrides, "any:length+=1", "model.layers=[Mlp()]", "any:hidden=9"])
    assert [layer.hidden for layer in changed.model.layers] == [9]
    assert changed.data.length == 129
    changed = apply(graph, overrides)
    assert [layer.hidden for layer in changed.model.layers] == [3, 6, 3]
    overrides = ["any:hidden=1", "model.layers[0].hidden=5", "any:hidden*=3"]
    graph.model.layers[1].hidden = 7
    changed = apply(graph, overrides)
    assert [layer.hidden for layer in changed.model.layers] == [15, 3, 15]
    changed = apply(graph, ["rules.sizes=2,3", "rules.sizes[*]*=2", "any:sizes[*]+=1"])
    assert changed.rules.sizes == (5, 7)


def test_aliases_share(graph):
    changed = apply(graph, ["model.layers[1]=alias:model.layers[0]", "model.layers[1].hidden=3"])
    assert changed.model.layers[1] is changed.model.layers[0]
    assert changed.model.layers[0].hidden == 3
    changed = apply(graph, ["seed=&steps", "steps=5"])
    assert changed.seed is changed.steps
    assert evaluate(changed.seed) == 5


def test_values_of_a_run_set_a_constant_for_all_its_users(graph):
    graph.steps = graph.seed = value(5, name="steps")
    recorded = fdl.Config(parts.Experiment, steps=value(7, name="other"), seed=8)

    def changed(override):
        return apply(graph, [override], recorded=lambda run: recorded)

    for override, number in [("seed=run:last.steps", 7), ("seed=run:last.seed", 8)]:
        graph_of_run = changed(override)
        assert graph_of_run.seed is graph_of_run.steps
        assert graph_of_run.seed.value == number
        assert graph_of_run.seed.name == "steps"
    alone = changed("seed:=run:last.seed")
    assert (alone.seed, alone.steps.value) == (8, 5)


def test_an_alias_replaces_a_constant_at_its_own_path(graph):
    graph.steps = graph.seed = value(5, name="steps")
    graph.model.dim = 32
    changed = apply(graph, ["seed=alias:model.dim"])
    assert changed.seed is changed.model.dim
    assert changed.steps.value == 5


BAD = {
    "optimzer.learning_rate=abc": "optimzer.learning_rate: does not exist{at}; did you mean "
    "optimizer.learning_rate.peak or optimizer.learning_rate.warmup_steps or "
    "optimizer.learning_rate.total_steps?",
    "optimzer.learning_rate=Constant(1)": "optimzer.learning_rate: does not exist{at}; "
    "did you mean optimizer.learning_rate?",
    "stpes=10": "stpes: does not exist{at}; did you mean steps?",
    "optimizer.stpes=10": "optimizer.stpes: does not exist{at}; did you mean steps?",
    "b2=0.9": "b2: does not exist{at}; did you mean optimizer.b2?",
    "steps=1.5": "steps: 1.5 is not an int{at}",
    "steps=True": "steps: True is not an int{at}",
    "steps=abc": "steps: 'abc' is not an int{at}",
    "steps=": "'steps=' has no value{at}; write reset:steps to reset it, steps=None for nothing, "
    "steps='' for no text",
    "steps": "expected PATH=VALUE (or :=, +=, -=, *=, reset:PATH, fiddler:NAME), got 'steps'{at}",
    "steps.a=3": "steps.a: does not exist: steps is 1000, which has no fields{at}",
    "steps+=a": "steps: 'a' is not an int or a float{at}",
    "steps*=0.3333": "steps: 333.3 is not an int{at}",
    "seed+=1": "seed: is not set, so += has nothing to work on; write ={at}",
    "optimizer.b2=high": "optimizer.b2: 'high' is not a float{at}",
    "optimizer.nesterov=1": "optimizer.nesterov: 1 is not a bool{at}",
    "kind=fsat": "kind: 'fsat' is not a Kind{at}; did you mean FAST?; "
    "choose from FAST, EXACT, NONE",
    "mode=tset": "mode: 'tset' is not 'train' or 'test'{at}; did you mean test?; "
    "choose from train, test",
    "name=None": "name: None is not a str{at}; for the text, write it in quotes: 'None'",
    "name~": "name: has no default to reset to{at}",
    "optimizer.learning_rate=3": "optimizer.learning_rate: is a Cosine node, which 3 cannot "
    "replace{at}; did you mean optimizer.learning_rate.peak=3?",
    "optimizer.learning_rate=abc": "optimizer.learning_rate: is a Cosine node, which abc cannot "
    "replace{at}; set one of its fields (optimizer.learning_rate.peak, "
    "warmup_steps, total_steps)",
    "optimizer.learning_rate*=2": "optimizer.learning_rate: is a Cosine node, which 2 cannot "
    "replace{at}; did you mean optimizer.learning_rate.peak*=2?",
    "evaluations['long text'].every=60": "evaluations['long text'].every: is a Steps node, which "
    "60 cannot replace{at}; did you mean evaluations['long text'].every.count=60?",
    "optimizer.learning_rate=Constant": "optimizer.learning_rate: is a Cosine node, which Constant "
    "cannot replace{at}; to replace the node, write Constant()",
    "optimizer.learning_rate=None": "optimizer.learning_rate: is a Cosine node, which None cannot "
    "replace{at}; set one of its fields (optimizer.learning_rate.peak, "
    "warmup_steps, total_steps)",
    "optimizer.learning_rate:=3": "optimizer.learning_rate: 3 is not a Schedule{at}",
    "optimizer.learning_rate=Constnt(1)": "optimizer.learning_rate: there is nothing called "
    "'Constnt'{at}; did you mean Constant?",
    "optimizer.learning_rate=Constant(rat=1)": "optimizer.learning_rate: Constant has no argument "
    "'rat'{at}; did you mean rate?",
    "optimizer=Mlp()": "optimizer: Mlp(...) is not an Optimizer{at}",
    "rules.parameters.embd=x": "rules.parameters.embd: does not exist{at}; did you mean "
    "rules.parameters.embed?; to add a key, write rules.parameters.embd:=...",
    "rules.sizes=2": "rules.sizes: 2 is not a tuple of (int, int){at}",
    "rules.sizes[5]=2": "rules.sizes[5]: does not exist{at}; did you mean rules.sizes?",
    "model.layers[0]=3": "model.layers[0]: is a Mlp node, which 3 cannot replace{at}; set one of "
    "its fields (model.layers[0].hidden, dim, dropout, activation, dtype)",
    "model.layers[0].dtype=bf61": "model.layers[0].dtype: 'bf61' is not a dtype or None{at}; "
    "did you mean bf16?",
    "any:dropuot=1": "any:dropuot matches nothing{at}; did you mean any:dropout?",
    "class:Mpl.hidden=1": "class:Mpl.hidden: the graph has no node of Mpl{at}; "
    "did you mean class:Mlp.hidden?",
    "tag:Rat=1": "no argument is tagged 'Rat'{at}; did you mean tag:Rate?",
    "any:hidden=x": "model.layers[0].hidden: 'x' is not an int{at}",
    "steps=$model.dmi": "model.dmi: does not exist{at}; did you mean model.dim?",
    "steps=$model": "steps: model is a node, not a value{at}; refer to one of its fields, or share "
    "it with alias:model",
    "steps=$model.dim/3": "steps: dim / 3 = 5.333333333333333 is not an int{at}",
    "model.layers=alias:model": "model.layers: would contain itself{at}",
    "model=alias:data": "model: Source(...) is not a Model{at}",
    "steps=alias:modle": "modle: does not exist{at}; did you mean mode or model?",
    ".a=3": "'.a' is not a path; write it like a.b[0]['c']{at}",
    "extra=optax.sdg(1)": (
        "extra: 'optax.sdg' is not on the list of names that records may contain{at}; "
        "did you mean optax.sgd?"
    ),
}


@pytest.mark.parametrize(("override", "message"), BAD.items(), ids=BAD)
def test_mistakes_are_one_exact_line(graph, override, message):
    with pytest.raises(OverrideError) as caught:
        apply(graph, [override])
    expected = message.format(at=f" [set by argument 1: {override}]")
    assert str(caught.value) == expected
    assert caught.value.exit_code == EXIT_BAD_INPUT


def test_all_mistakes_are_reported_at_once_and_nothing_is_changed(graph):
    before = parts.experiment()
    with pytest.raises(OverrideError) as caught:
        apply(graph, ["steps=5", *BAD])
    lines = str(caught.value).splitlines()
    assert len(lines) == len(BAD)
    for number, (line, override) in enumerate(zip(sorted_by_origin(lines), BAD, strict=True), 2):
        assert f"[set by argument {number}: {override}]" in line
    assert graph == before


def sorted_by_origin(lines):
    return sorted(lines, key=lambda line: int(line.split("[set by argument ")[1].split(":")[0]))


def test_untyped_arguments_follow_their_default(graph):
    graph.extra = fdl.Config(parts.untyped)
    changed = apply(graph, ["extra.rate=1", "extra.size=2**3", "extra.name=b c", "extra.flag=true"])
    assert fdl.ordered_arguments(changed.extra) == {
        "rate": 1,
        "size": 8,
        "name": "b c",
        "flag": True,
    }
    with pytest.raises(OverrideError) as caught:
        apply(graph, ["extra.rate=x", "extra.flag=1", "extra.pair=3", "extra.nothing=word"])
    assert [line.split(" [")[0] for line in str(caught.value).splitlines()] == [
        "extra.rate: 'x' is not an int or a float",
        "extra.flag: 1 is not a bool",
        "extra.pair: 3 is not a tuple",
        "extra.nothing: there is nothing called 'word'",
    ]


def test_annotations_of_places(graph):
    def at(path):
        return annotation_at(graph, find(graph, path))

    assert at("steps") is int
    assert at("rules.parameters.embed") == tuple[str, ...]
    assert at("rules.parameters.embed[0]") is str
    assert at("rules.sizes[1]") is int
    assert at("model.layers[0]") is parts.Layer
    assert at("evaluations.held_out") is parts.Evaluation
    graph.extra = fdl.Config(parts.by_position, 1)
    assert at("extra[0]") is int


@pytest.mark.full
def test_large_graphs_are_quick():
    """5,000 nodes, 20 overrides and a validation: no step may be quadratic."""
    dim = value(16, name="dim")
    graph = parts.experiment()
    graph.model.layers = [
        fdl.Config(parts.GatedMlp, hidden=multiply(dim, 4), dim=dim) for _ in range(2500)
    ]
    graph.extra = [
        fdl.Config(parts.Optimizer, fdl.Config(parts.Constant, 0.1)) for _ in range(1250)
    ]
    chosen = random.Random(0).sample(range(1250), 18)
    overrides = [f"model.layers[{index}].hidden=7" for index in chosen[:9]]
    overrides += [f"extra[{index}].b2=0.5" for index in chosen[9:]]
    overrides += ["any:b1=0.8", "class:GatedMlp.dropout=0.1"]
    best = min(elapsed(graph, overrides) for _ in range(3))
    assert best < 3, f"{best:.2f} s of processor time"  # about 0.6 s where nothing else runs


def elapsed(graph, overrides) -> float:
    start = time.process_time()
    validate(apply(graph, overrides), ("graph_toys",))
    return time.process_time() - start


def test_durations_of_the_real_room(graph):
    changed = apply(graph, ["evaluations['long text'].every.count=3"])
    assert changed.evaluations["long text"].every == fdl.Config(Steps, 3)
