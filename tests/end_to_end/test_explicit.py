"""A dense model on meshes with explicit axes: it computes the same, and nothing moves unasked."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax._src import core
from jax.sharding import AxisType

from luthier import program as programs
from luthier import trainer
from luthier.errors import ShardingError, UserCodeError

EXPLICIT = "parallelism.mesh.axis_type=EXPLICIT"
# The vocabulary divides over the devices: it is not padded.
WIDE = ("precision.matmul=highest", "model.vocab_size=264", "model.block.attention.num_kv_heads=4")
MESHES = {
    "data": ["data(8)"],
    "fsdp": ["fsdp(8)"],
    "hsdp": ["hsdp(2)"],
    "tensor": ["tensor(4)"],
    "fsdp tensor": ["fsdp(4)", "tensor(2)"],
    "hsdp tensor": ["hsdp(2, 2)", "tensor(2)"],
    "fsdp tensor sequence": ["fsdp(2)", "tensor(2)", "sequence(2)"],
    "fsdp residual": ["fsdp(4)", "tensor(2, sequence_parallel=True)"],
}


def words(name):
    return [*WIDE, *(f"fiddler:luthier.recipes.{word}" for word in MESHES[name])]


def rows(*always):
    return [
        pytest.param(name, marks=() if name in always else pytest.mark.slow, id=name)
        for name in MESHES
    ]


def equations(jaxpr):
    """Yield every equation of a jaxpr and of those within it."""
    for equation in jaxpr.eqns:
        yield equation
        for inner in core.jaxprs_in_params(equation.params):
            yield from equations(inner)


def moves(jaxpr):
    """Yield the layouts before and after of all that is laid out anew: (aval, aval)."""
    for equation in equations(jaxpr):
        if equation.primitive.name in ("reshard", "sharding_constraint"):
            before, after = equation.invars[0].aval, equation.outvars[0].aval
            types = {*before.sharding.mesh.axis_types, *after.sharding.mesh.axis_types}
            # A look-up in a table is left to the compiler; what comes of it is said.
            if before.sharding != after.sharding and AxisType.Auto not in types:
                yield before, after


@pytest.mark.parametrize("name", rows("fsdp tensor"))
def test_nothing_but_parameters_and_the_keys_of_a_sequence_moves_between_devices(
    shrunk, case, name
):
    program = case(shrunk(*words(name), EXPLICIT), 8).program
    # One layer's parameters, or all layers'.
    shapes = {p.shape for n, p in program.placements.items() if n.startswith("parameters/")}
    shapes |= {shape[1:] for shape in shapes}
    others = [
        (before, after)
        for before, after in moves(program.traced_step.jaxpr.jaxpr)
        if before.shape not in shapes
    ]
    moving = {"sequence"} if "sequence" in name else {"tensor"} if "residual" in name else set()
    for before, after in others:
        assert moving == _axes(before) ^ _axes(after), (before, after)
    assert bool(others) == bool(moving)


def test_parameters_are_gathered_along_fsdp_only(shrunk, case):
    program = case(shrunk(*words("fsdp tensor"), EXPLICIT), 8).program
    found = [_axes(a) ^ _axes(b) for a, b in moves(program.traced_step.jaxpr.jaxpr)]
    assert len(found) > 8
    assert {axis for moved in found for axis in moved} == {"fsdp"}


@pytest.mark.full
@pytest.mark.parametrize("name", rows("fsdp tensor"))
def test_training_is_that_of_automatic_axes(shrunk, case, enough_tokens, name):
    automatic = case(shrunk(*enough_tokens, *words(name)), 8)
    explicit = case(shrunk(*enough_tokens, *words(name), EXPLICIT), 8)
    batches = automatic.batches(10)
    for ours, theirs in zip(explicit.init(), automatic.init(), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    wanted = automatic.gradient(batches[0])
    for parameter, found in explicit.gradient(batches[0]).items():
        distance = np.linalg.norm(found - wanted[parameter]) / np.linalg.norm(wanted[parameter])
        assert distance < 1e-6, parameter
    _, found = explicit.steps(batches)
    _, losses = automatic.steps(batches)
    np.testing.assert_allclose(found, losses, rtol=1e-5)


@pytest.mark.full
def test_a_run_trains_evaluates_and_samples_as_with_automatic_axes(shrunk, tmp_path):
    def text_and_loss(*more):
        graph = shrunk(*words("fsdp tensor"), "training.steps=6", *more, directory=tmp_path)
        result = trainer.run(graph, devices=jax.devices())
        text = trainer.sample_run(str(result.directory), ["a"], options={"max_new_tokens": 8})
        return text, result.metrics["held_out"]["loss"]

    text, loss = text_and_loss("name=explicit", EXPLICIT)
    expected, other = text_and_loss("name=automatic")
    assert text == expected
    np.testing.assert_allclose(loss, other, rtol=1e-5)


class AmbiguousMlp(nnx.Module):
    """Sums over a dimension that devices split, and does not say where the sum goes."""

    INHERITED = ("dim", "rngs")

    def __init__(self, *, dim, rngs):
        axes = {"logical_axes": ("embed", "mlp"), "num_inputs": 1}
        self.up = nnx.Param(jax.random.normal(rngs.params(), (dim, 64)), **axes)
        axes = {"logical_axes": ("mlp", "embed"), "num_inputs": 1}
        self.down = nnx.Param(jax.random.normal(rngs.params(), (64, dim)), **axes)

    def __call__(self, x_BLD):
        return jnp.einsum("BLF,FD->BLD", jnp.einsum("BLD,DF->BLF", x_BLD, self.up[...]), self.down)


def test_a_layer_that_leaves_its_layout_open_is_refused_in_one_line(shrunk, case):
    graph = shrunk(*words("fsdp tensor"), EXPLICIT)
    graph.model.block.mlp = AmbiguousMlp
    with pytest.raises(UserCodeError) as raised:
        case(graph, 8).program.traced_step  # noqa: B018
    assert str(raised.value).startswith(
        "model.block.mlp: ShardingTypeError: Contracting dimensions are sharded and it is "
        "ambiguous how the output should be sharded."
    )
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("word", ["pipeline(stages=2, microbatches=4)", "ring(2)", "all_to_all(2)"])
def test_what_lays_out_its_parts_by_hand_is_refused(shrunk, case, word):
    graph = shrunk(*words("fsdp tensor"), EXPLICIT, f"fiddler:luthier.recipes.{word}")
    if "pipeline" in word:
        graph.parallelism.mesh.fsdp = 2
    else:
        graph.parallelism.mesh.fsdp = graph.parallelism.mesh.tensor = 2
    with pytest.raises(ShardingError) as raised:
        case(graph, 8).program.traced_step  # noqa: B018
    assert str(raised.value) == (
        "parallelism.mesh.axis_type: pipelines, dropless experts, attention in blocks and "
        "exchanges of rows need automatic axes; set parallelism.mesh.axis_type=AUTO"
    )


def _axes(aval):
    entries = (e if isinstance(e, tuple) else (e,) for e in aval.sharding.spec if e is not None)
    return {axis for entry in entries for axis in entry}


def test_programs_of_automatic_axes_have_no_explicit_layouts(shrunk, case):
    program = case(shrunk(*words("fsdp tensor")), 8).program
    assert isinstance(program, programs.Program)
    assert set(program.mesh.axis_types) == {AxisType.Auto}
