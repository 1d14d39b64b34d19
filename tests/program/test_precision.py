"""Rules of precision: every array is of the type that they declare, and no update is lost."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import program as programs
from luthier.errors import ValidationError
from luthier.optim import StoredAs
from luthier.program import Precision
from luthier.program.materialize import init_with, targets
from luthier.program.precision import MASTERS, unsupported
from tests.compiling import QUICK, quick_step

SHELVES = ("luthier.recipes",)
SMALL = (
    "model.dim=16",
    "model.num_layers=2",
    "model.block.attention.num_heads=2",
    "model.block.attention.num_kv_heads=2",
    "model.block.mlp.hidden_dim=32",
    "data.length=16",
    "training.global_batch_size=4",
    "training.ema:=luthier.optim.Ema(decay=0.9)",
    "evaluations={}",
)
SGD = "optimizer:=luthier.optim.sgd(luthier.optim.Constant(0.5), momentum=0.0)"
OPTIMIZERS = {
    "adamw": (),
    "sgd": ("optimizer:=luthier.optim.sgd(Constant(0.1), momentum=0.9)",),
    "lion": ("optimizer:=luthier.optim.lion(Constant(1e-4))",),
    "adafactor": ("optimizer:=luthier.optim.adafactor(Constant(1e-3))",),
    "muon": ("optimizer:=luthier.optim.muon(Constant(1e-3))",),
    "shampoo": ("optimizer:=luthier.optim.shampoo(Constant(1e-3))",),
    "soap": ("optimizer:=luthier.optim.soap(Constant(1e-3))",),
    "lamb": ("optimizer:=luthier.optim.lamb(Constant(1e-3))",),
}
BF16, F32 = jnp.dtype(jnp.bfloat16), jnp.dtype(jnp.float32)

# For every policy, what arrays of floating point numbers are, by the beginning of their names.
POLICIES = {
    "none": ((), {}),
    "bf16": (("fiddler:bf16",), {}),
    "masters": (("fiddler:bf16_masters",), {"parameters/": BF16}),
    "masters of kernels": (
        ("fiddler:bf16_masters('kernel$')",),
        {"parameters/.*kernel$": BF16, "optimizer/masters/.*(?<!kernel)$": None},
    ),
    "bf16 alone": (("fiddler:store_parameters(bfloat16)",), {"parameters/": BF16}),
    "state in bf16": (("fiddler:store_optimizer(bfloat16)",), {"optimizer/": BF16}),
    "all": (
        (
            "fiddler:bf16_masters",
            "fiddler:store_optimizer(bfloat16, 'mlp')",
            "fiddler:sum_gradients(bfloat16)",
            "fiddler:int8",
        ),
        {"parameters/": BF16, "optimizer/masters/": F32, "optimizer/.*mlp": BF16},
    ),
}


def graph_of(*overrides):
    graph = graphs.resolve("configs.lm.quickstart")
    return graphs.apply(graph, [*SMALL, *overrides], shelves=SHELVES)


def make(*overrides, hoist=()):
    return programs.make(graph_of(*overrides), jax.devices()[:1], hoist)


def declared(name, kinds):
    """Return the type of the first rule that a name of the state matches."""
    return next((kind for start, kind in kinds.items() if re.match(start, name)), F32)


# Others by night.
ORDINARY = ("adamw, all", "soap, all", "adafactor, state in bf16", "adamw, masters of kernels")
CASES = [
    pytest.param(o, p, marks=() if f"{o}, {p}" in ORDINARY else pytest.mark.slow, id=f"{o}, {p}")
    for o in OPTIMIZERS
    for p in POLICIES
]


@pytest.mark.parametrize(("optimizer", "policy"), CASES)
def test_every_array_is_of_its_declared_type_before_and_after_a_step(optimizer, policy):
    words, kinds = POLICIES[policy]
    program = make(*OPTIMIZERS[optimizer], *words)
    state = program.abstract_state

    def step(values, leaves, batch):
        return program.step(values, leaves, batch)[0]

    after = jax.eval_shape(step, program.values(), program.abstract_leaves, dict(program.batch))
    assert any(name.startswith("optimizer/") for name in state)
    for (name, before), found in zip(state.items(), after, strict=True):
        assert (found.dtype, found.shape) == (before.dtype, before.shape), name
        if jnp.issubdtype(before.dtype, jnp.floating):
            assert before.dtype == declared(name, kinds), name


class Stepper:
    """Takes steps of a program, all on the same batch."""

    def __init__(self, *overrides):
        self.program = make(*overrides)
        data = self.program.experiment.data.iterator(global_batch_size=4, seed=0)
        self.batch = {n: next(data)[n] for n in self.program.batch}
        self.leaves = self.program.init(self.program.values())

    @property
    def state(self):
        return {n: np.asarray(x) for n, x in self.program.named(self.leaves).items()}

    def step(self, count=1):
        step = self.program.once("quick step", lambda: quick_step(self.program))
        for _ in range(count):
            self.leaves, _ = step(self.program.values(), self.leaves, dict(self.batch))
        return self.state


@pytest.mark.full
def test_updates_far_below_the_resolution_of_bf16_add_up_in_masters():
    tiny = "optimizer:=luthier.optim.sgd(Constant(1e-3), momentum=0.0)"
    parameter, master = (f"{kind}/blocks.mlp_norm.scale" for kind in ("parameters", MASTERS))
    alone = Stepper(tiny, "fiddler:store_parameters(bfloat16)")
    before, after = alone.state, alone.step(4)
    np.testing.assert_array_equal(after[parameter], before[parameter])
    with_masters = Stepper(tiny, "fiddler:bf16_masters")
    start, one, four = with_masters.state, with_masters.step(), with_masters.step(3)
    moved = {n: state[master] - start[master] for n, state in {1: one, 4: four}.items()}
    assert 1e-6 < np.abs(moved[4]).max() < 2**-9  # half of what bfloat16 can tell from 1
    assert np.linalg.norm(moved[4]) > 2 * np.linalg.norm(moved[1])  # steps of one direction
    for name, array in four.items():
        if name.startswith(MASTERS):
            rounded = array.astype(BF16)
            np.testing.assert_array_equal(four[name.replace(MASTERS, "parameters")], rounded)


@pytest.mark.full
def test_masters_start_from_what_was_drawn_and_not_from_what_it_was_rounded_to():
    wide, program = make(), make("fiddler:bf16_masters")
    state, drawn = program.named(program.init(())), wide.named(wide.init(()))
    name = "blocks.mlp.up.kernel"
    np.testing.assert_array_equal(state[f"optimizer/masters/{name}"], drawn[f"parameters/{name}"])
    np.testing.assert_array_equal(state[f"ema/{name}"], drawn[f"parameters/{name}"])


@pytest.mark.full
def test_a_warm_start_is_read_into_the_masters():
    program = make("fiddler:bf16_masters")
    target = targets(program)["norm.scale"]
    assert target.dtype == F32
    given = {"norm.scale": jnp.full(16, 1.001)}
    state = program.named(init_with(program, program.values(), given))
    np.testing.assert_array_equal(state["optimizer/masters/norm.scale"], np.float32(1.001))
    assert state["parameters/norm.scale"].dtype == BF16
    np.testing.assert_array_equal(state["parameters/norm.scale"].astype(F32), 1.0)


def gradient(program, leaves, batch):
    def gradient(leaves, batch):
        with program.tracing(()) as experiment:
            return programs.gradient_of(experiment, program.named(leaves), batch)[1]

    return jax.jit(gradient).lower(leaves, batch).compile(QUICK)(leaves, batch)


@pytest.mark.full
def test_gradients_of_parameters_in_bf16_add_up_in_float32():
    exact = "precision.matmul=HIGHEST"
    stepper = Stepper(SGD, exact, "fiddler:store_parameters(bfloat16)")
    whole = gradient(stepper.program, stepper.leaves, dict(stepper.batch))
    cut = make(SGD, exact, "fiddler:store_parameters(bfloat16)", "training.accumulation=4")
    rough = make(
        SGD,
        exact,
        "fiddler:store_parameters(bfloat16)",
        "fiddler:sum_gradients(bfloat16)",
        "training.accumulation=4",
    )
    errors = {}
    for kind, program in {"float32": cut, "bfloat16": rough}.items():
        found = gradient(program, stepper.leaves, dict(stepper.batch))
        assert {x.dtype for x in found.values()} == {F32}
        errors[kind] = max(
            float(jnp.linalg.norm(found[n] - x) / jnp.linalg.norm(x)) for n, x in whole.items()
        )
    assert errors["float32"] < 1e-6
    assert errors["bfloat16"] > 1e-3


def test_the_first_rule_that_matches_decides():
    rules = [StoredAs("up", jnp.float16), StoredAs("", jnp.bfloat16)]
    precision = Precision(parameters=rules, masters=[StoredAs("kernel", jnp.float32)])
    arrays = {"up.kernel": jnp.ones(2), "down.kernel": jnp.ones(2), "scale": jnp.ones(2)}
    stored = precision.stored(arrays)
    assert [str(stored[n].dtype) for n in arrays] == ["float16", "bfloat16", "bfloat16"]
    assert {n: x.dtype for n, x in precision.masters_of(arrays).items()} == {
        "up.kernel": F32,
        "down.kernel": F32,
    }


def test_numbers_that_count_are_not_stored_as_floats():
    precision = Precision(optimizer=[StoredAs("", jnp.bfloat16)])
    state = {"optimizer/num_updates": jnp.zeros((), jnp.int32)}
    assert precision.stored_optimizer(state)["optimizer/num_updates"].dtype == jnp.int32


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (
            "fiddler:store_parameters(bfloat16, 'atention')",
            "precision.parameters[0].pattern: 'atention' matches no name",
        ),
        (
            "fiddler:store_optimizer(bfloat16, 'second_moments')",
            "precision.optimizer[0].pattern: 'second_moments' matches no name",
        ),
        (
            "precision.masters=[StoredAs('', float32)]",
            "precision.masters[0]: no trained parameter that matches is stored in a type narrower "
            "than float32",
        ),
    ],
)
def test_rules_without_a_match_are_rejected_with_the_nearest_names(word, message):
    with pytest.raises(ValidationError) as raised:
        make(word)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(message)
    nearest = {"atention": "attention", "second_moments": "second_moment"}
    for wrong, right in nearest.items():
        if wrong in word:
            assert f"did you mean {right}" in line
            assert "set by" in line
    if "masters" in word:
        assert line.endswith("; set precision.parameters, or remove this rule")


class Device:
    """A device as far as `unsupported` looks at it."""

    def __init__(self, kind, **known):
        self.device_kind = kind
        vars(self).update(known)


def test_float8_is_refused_where_devices_have_none():
    old = Device("NVIDIA A100-SXM4-80GB", compute_capability="8.0")
    (problem,) = unsupported(graph_of("fiddler:fp8"), [old])
    assert problem.path == "model.block.attention.projection.product"
    assert problem.what == "NVIDIA A100-SXM4-80GB does not support float8 matrix products"
    assert problem.remedy.startswith("use int8 or bf16; ")
    for device in (
        Device("NVIDIA H100", compute_capability="9.0"),
        Device("cpu"),
        Device("gfx", compute_capability="gfx942"),
    ):
        assert not list(unsupported(graph_of("fiddler:fp8"), [device]))
    assert not list(unsupported(graph_of("fiddler:int8"), [old]))


HOIST = ("optimizer.learning_rate.peak", "optimizer.b2")


@pytest.mark.full
def test_leaves_can_be_hoisted_under_a_policy():
    program = make(*POLICIES["all"][0], hoist=HOIST)
    assert len(program.values()) == 4
    assert "loss" in program.scalar_names


@pytest.mark.slow
def test_hoisted_leaves_compute_the_same_bits_under_a_policy():
    words, _ = POLICIES["all"]
    hoisted, constant = make(*words, hoist=HOIST), make(*words)
    data = constant.experiment.data.iterator(global_batch_size=4, seed=0)
    batch = {n: x for n, x in next(data).items() if n in constant.batch}
    found = {}
    for name, program in {"hoisted": hoisted, "constant": constant}.items():
        leaves, _ = program.compile_step()(program.values(), program.init(program.values()), batch)
        found[name] = {n: np.asarray(x) for n, x in program.named(leaves).items()}
    for name, array in found["constant"].items():
        np.testing.assert_array_equal(found["hoisted"][name], array, err_msg=name)
