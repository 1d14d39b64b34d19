import fiddle as fdl
import jax
import pytest

from luthier import graph as graphs
from luthier import layers, models
from luthier import program as programs
from luthier.errors import BadInput
from luthier.parallel import AXES
from luthier.planner import plan_apart
from luthier.recipes import (
    all_to_all,
    data,
    expert,
    fsdp,
    hsdp,
    ring,
    sequence,
    tensor,
)
from luthier.study import parse_space

CORE = "model.block.attention.core"


@pytest.fixture(scope="module")
def quickstart():
    return graphs.resolve("configs.lm.quickstart")


def sizes(graph, num_devices=8):
    """Return the axes of the mesh that have more than one device."""
    mesh = graphs.build(graphs.get(graph, "parallelism.mesh"))
    return {axis: size for axis, size in mesh.sizes(num_devices).items() if size > 1}


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda g: data(g), {"data": 8}),
        (lambda g: data(g, 8), {"data": 8}),
        (lambda g: fsdp(g), {"fsdp": 8}),
        (lambda g: fsdp(g, 4), {"data": 2, "fsdp": 4}),
        (lambda g: hsdp(g, 2), {"replica": 2, "fsdp": 4}),
        (lambda g: hsdp(g, 2, 2), {"replica": 2, "data": 2, "fsdp": 2}),
        (lambda g: tensor(g, 4), {"data": 2, "tensor": 4}),
        (lambda g: expert(g, 2), {"data": 4, "expert": 2}),
        (lambda g: sequence(g), {"sequence": 8}),
        (lambda g: ring(g, 4), {"data": 2, "sequence": 4}),
        (lambda g: all_to_all(g, 2), {"data": 4, "sequence": 2}),
        (lambda g: tensor(fsdp(g, 4), 2), {"fsdp": 4, "tensor": 2}),
        (lambda g: tensor(fsdp(g), 2), {"fsdp": 4, "tensor": 2}),
        (lambda g: fsdp(tensor(g)), {"fsdp": 8}),
        (lambda g: ring(tensor(hsdp(g, 2, 1), 2), -1), {"replica": 2, "tensor": 2, "sequence": 2}),
    ],
)
def test_the_last_word_that_fills_wins(quickstart, change, expected):
    before = graphs.to_json(quickstart)
    assert sizes(change(quickstart)) == expected
    assert graphs.to_json(quickstart) == before, "the original is untouched"


def test_only_the_mesh_the_cores_and_a_rule_change(quickstart):
    changed = [change.path for change in graphs.diff(quickstart, tensor(fsdp(quickstart, 4), 2))]
    assert changed == ["parallelism.mesh.fsdp", "parallelism.mesh.tensor"]
    changed = [change.path for change in graphs.diff(quickstart, ring(quickstart, 4))]
    assert changed == [CORE, "parallelism.mesh.sequence", "parallelism.rules.parameters.embed"]
    rules = graphs.apply(quickstart, ["parallelism.rules.parameters={mlp: tensor}"])
    changed = [change.path for change in graphs.diff(rules, sequence(rules, 4))]
    assert changed == ["parallelism.mesh.sequence"]


def test_the_sequence_parallel_form_of_tensor_splits_the_residual_stream(quickstart):
    word = "fiddler:tensor(4, sequence_parallel=True)"
    assert [
        change.path for change in graphs.diff(quickstart, graphs.apply(quickstart, [word]))
    ] == [
        "parallelism.mesh.tensor",
        "parallelism.rules.activations.residual_length",
    ]

    own = graphs.apply(quickstart, ["parallelism.rules.activations={length: sequence}", word])
    rules = graphs.evaluate(graphs.get(own, "parallelism.rules.activations"))
    assert rules == {"length": ("sequence",), "residual_length": ("tensor",)}
    both = "parallelism.rules.activations.embed=[tensor]"
    with pytest.raises(BadInput, match="the residual stream is split over tensor already"):
        graphs.apply(quickstart, [both, word])

    def temporaries(word):
        heads = ("model.block.attention.num_heads=8", "model.block.attention.num_kv_heads=4")
        more = ("model.num_layers=8", *heads, "fiddler:remat(luthier.layers.FullRemat)")
        graph = graphs.apply(quickstart, ["fiddler:tiny", *more, "evaluations={}", word])
        plan = plan_apart(graph, "cpu:4").to_dict()
        return plan["memory"]["bytes_per_device"]["temporaries"], graph

    split, graph = temporaries(word)
    whole, _ = temporaries("fiddler:tensor(4)")
    data = graphs.build(graphs.get(graph, "data"))
    rows, dim = graph.training.global_batch_size, graph.model.dim
    # Between two layers the stream is kept once for each of them, in float32.
    assert whole - split > 0.9 * (3 / 4) * 8 * 4 * rows * data.tokens_per_row * dim


def core(graph, path=CORE):
    return graphs.build(graphs.get(graph, path))


def test_a_ring_keeps_the_settings_of_the_cores(quickstart):
    capped = graphs.apply(
        quickstart, [f"{CORE}.cap=30.0", f"{CORE}.mask:=luthier.layers.Window(8)"]
    )
    assert core(ring(quickstart)) == layers.RingAttention()
    assert core(ring(capped)) == layers.RingAttention(
        layers.Window(8), cap=30.0, order=layers.Contiguous()
    )
    fused = graphs.apply(quickstart, [f"{CORE}:=luthier.layers.FusedAttention(scale=0.5)"])
    assert core(ring(fused)) == layers.RingAttention(scale=0.5)
    for name in ("AutoAttention", "BlockwiseAttention"):
        other = graphs.apply(quickstart, [f"{CORE}:=luthier.layers.{name}(cap=30.0, dropout=0.1)"])
        assert core(ring(other)) == layers.RingAttention(cap=30.0, dropout=0.1)
    splash = graphs.apply(quickstart, [f"{CORE}:=luthier.layers.SplashAttention(block_size=128)"])
    assert core(ring(splash)) == layers.RingAttention(block_size=128)
    assert core(ring(ring(capped))) == core(ring(capped))
    assert core(ring(all_to_all(capped))) == core(ring(capped))


def test_an_exchange_wraps_the_cores_once(quickstart):
    expected = layers.AllToAllAttention(layers.AutoAttention(cap=30.0))
    capped = graphs.apply(quickstart, [f"{CORE}.cap=30.0"])
    assert core(all_to_all(capped)) == expected
    assert core(all_to_all(all_to_all(capped))) == expected
    chosen = graphs.apply(quickstart, [f"{CORE}:=luthier.layers.AutoAttention(cap=30.0)"])
    inner = layers.AutoAttention(cap=30.0)
    assert core(all_to_all(chosen)) == layers.AllToAllAttention(inner)


def test_encoders_and_cross_attention_are_rings_without_zigzag():
    graph = ring(graphs.resolve("configs.seq2seq.translation"), 2)
    found = {
        place.path: graphs.build(place.value)
        for place in graphs.walk(graph.model)
        if getattr(place.value, "__fn_or_cls__", None) is layers.RingAttention
    }
    assert len(found) == 3
    for path, made in found.items():
        zigzag = isinstance(made.order, layers.Zigzag)
        assert zigzag == isinstance(made.mask, layers.Causal), path


def test_words_of_the_command_line_compose(quickstart):
    words = ["fiddler:fsdp(2)", "fiddler:ring(2)", "fiddler:tensor(2)"]
    graph = graphs.apply(quickstart, words, shelves=("luthier.recipes",))
    graphs.validate(graph)
    program = programs.make(graph, jax.devices())
    assert {axis: size for axis, size in program.sizes.items() if size > 1} == {
        "fsdp": 2,
        "sequence": 2,
        "tensor": 2,
    }
    assert tuple(program.sizes) == AXES
    assert program.batch["inputs"].sharding.spec == jax.P("fsdp", "sequence")
    spec = program.placements["parameters/blocks.mlp.up.kernel"].spec
    assert spec == jax.P(None, ("fsdp", "sequence"), "tensor")


def test_a_space_of_a_sweep_may_choose_among_them(quickstart):
    space = parse_space(["parallelism=choice(@fsdp,@tensor(2),@ring(4))"])
    found = [option.overrides for option in space.dimensions["parallelism"].all_options]
    assert found == [("fiddler:fsdp",), ("fiddler:tensor(2)",), ("fiddler:ring(4)",)]


def test_a_model_alone_or_without_attention_is_refused(quickstart):
    with pytest.raises(BadInput) as caught:
        fsdp(quickstart.model)
    assert str(caught.value) == "a model alone is on no mesh; give an experiment"
    graph = graphs.copy_graph(quickstart)
    graph.model = fdl.Partial(models.Decoder, vocab_size=8, dim=8, num_layers=1)
    graph.model.block = fdl.Partial(layers.Mlp, hidden_dim=8)
    with pytest.raises(BadInput) as caught:
        ring(graph)
    assert str(caught.value) == (
        "model: the model has no attention; use sequence, which splits everything but attention"
    )
