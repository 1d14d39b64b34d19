import dataclasses

import jax
import pytest

from luthier import graph as graphs
from luthier.parallel import array_bytes
from luthier.planner import checked_program, targets
from luthier.planner.compiled import parse
from luthier.planner.search import Activity, Buffer, Compiler, Exchange, ProgramStep, model, trace
from luthier.recipes import decoders

PARAMETERS = {"embed": ("fsdp",), "mlp": ("tensor",)}
ACTIVATIONS = {"batch": ("data", "fsdp"), "mlp": ("tensor",), "embed": ()}


def layout(**more):
    sizes = {"data": 2, "fsdp": 4, "tensor": 2}
    return model.MeshLayout(
        **{"sizes": sizes, "parameters": PARAMETERS, "activations": ACTIVATIONS, **more}
    )


def test_bytes_are_divided_by_the_rules():
    assert layout().bytes_of(Buffer(1600, ("batch", "mlp"))) == 100
    assert layout().bytes_of(Buffer(1600, ("embed", "mlp"))) == 200
    assert layout().bytes_of(Buffer(1600, ("embed", "mlp")), is_gathered=True) == 800
    assert layout(accumulation=4).bytes_of(Buffer(1600, ("batch", None))) == 50
    staged = layout(sizes={"stage": 4})
    assert staged.bytes_of(Buffer(1600, ("layers", "embed"))) == 400


@pytest.mark.parametrize(
    ("over", "labels", "sent"),
    [
        ((), ("embed", "mlp"), 800 * 3 / 4),  # gathered along fsdp
        (("batch",), ("embed", "mlp"), 2 * 800 * 7 / 8),  # summed over data, too
        (("mlp",), ("batch", "embed"), 2 * 200 / 2),  # what tensor parallelism adds up
        (("embed",), ("batch", None), 0),
    ],
)
def test_exchanges_are_along_what_is_summed_or_gathered(over, labels, sent):
    exchange = Exchange(Buffer(1600, labels), over, 1)
    assert model._sent(exchange, layout()) == pytest.approx((sent, 0))


def test_what_leaves_a_slice_is_less_by_what_is_summed_within():
    exchange = Exchange(Buffer(1600, ("embed", "mlp")), ("batch",), 1)
    within, beyond = model._sent(exchange, layout(across=frozenset({"data"})))
    assert (within, beyond) == pytest.approx((1400, 350))


@pytest.fixture(scope="module")
def program():
    graph = graphs.resolve("configs.lm.quickstart")
    return checked_program(graph, jax.devices()[:8])


def test_the_layout_is_that_of_the_program(program):
    found = model.layout_of(program)
    assert found.sizes["data"] == 8
    assert (found.accumulation, found.across) == (1, frozenset())


def test_estimates_fall_with_more_devices_and_with_accumulation(program):
    traced = trace(program)
    own = model.layout_of(program)
    chip = targets.CHIPS["v5e"]
    one = dataclasses.replace(own, sizes=dict.fromkeys(own.sizes, 1))
    held = [model.temporary_bytes(traced.activity, each, "tpu") for each in (one, own)]
    assert held[1] < held[0] / 3
    cut = dataclasses.replace(one, accumulation=8)
    assert model.temporary_bytes(traced.activity, cut, "tpu") < held[0]
    times = [
        model.step_time(traced.activity, each, chip, traced.flops, "default") for each in (one, own)
    ]
    assert times[0].seconds_by_term["links"] == 0 < times[1].seconds_by_term["links"]
    assert times[1].seconds_by_term["compute"] == times[0].seconds_by_term["compute"] / 8


def test_gradients_have_the_axes_of_their_parameters():
    # The embedding is its own: the sum with a head's gradient would show the axes.
    graph = graphs.resolve("configs.lm.quickstart")
    settings = {"dim": 64, "num_layers": 1, "num_heads": 2, "hidden_dim": 64}
    graph.model = decoders.llama(vocab_size=264, **settings)
    buffers = trace(checked_program(graph, jax.devices()[:1])).activity.buffers
    assert {b.labels for b in buffers if b.name == "(scatter-add)"} >= {("vocab", "embed")}


def test_compilers_differ_in_what_they_keep():
    made = Activity([Buffer(100, ("batch",)), Buffer(60, ("batch",))])
    made.steps = [ProgramStep(makes=[0], ends=[0]), ProgramStep(makes=[1], ends=[1])]
    alone = model.MeshLayout({}, {}, {})
    slack = Compiler(slack=1)
    assert model.peak(made, alone) == 100
    assert model.peak(made, alone, slack) == 160
    passing = [Buffer(30, ("embed",)), Buffer(50, ("mlp",))]
    made.steps = [ProgramStep(passing=[one]) for one in passing]
    assert model.peak(made, alone) == 50
    assert model.peak(made, alone, dataclasses.replace(slack, ahead=True)) == 80


def test_what_a_guard_may_put_back_is_copied_on_cpus():
    copied = []
    for words in ([], ["training.guard=None"]):
        graph = graphs.apply(graphs.resolve("configs.lm.quickstart"), words)
        program = checked_program(graph, jax.devices()[:1])
        module = parse(program.lower_and_compile(program.traced_step).as_text())
        entry = module.tables[module.entry]
        copies = [i for i in entry.values() if i.opcode == "copy" and i.arrays[0].shape]
        of_state = [i for i in copies if entry[i.operands[0]].opcode == "parameter"]
        copied.append(sum(i.arrays[0].num_bytes for i in of_state))
    every = program.placements.items()
    moments = [p for name, p in every if name.startswith("optimizer/") and p.shape]
    assert copied == [sum(array_bytes(p.shape, p.dtype) for p in moments), 0]
    assert model.temporary_bytes(Activity(), layout(), "cpu", copied[0]) == copied[0]
    assert model.temporary_bytes(Activity(), layout(), "gpu", copied[0]) == 0


def test_copies_of_parameters_are_laid_out_as_parameters():
    made = Activity(copies={0: Buffer(1600, ("embed", "mlp"))})
    assert model.temporary_bytes(made, layout(), "tpu") == 1600 // 8
    assert model.temporary_bytes(made, layout(), "gpu") == 0
