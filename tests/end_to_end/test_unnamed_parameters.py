"""Layers of Flax without logical axes, and with Flax's own annotations, on every mesh."""

import jax
import numpy as np
import pytest
from flax import nnx

from luthier import program as programs
from luthier.errors import BadInput
from luthier.graph import apply
from luthier.parallel import AxisType
from luthier.planner.checks import unsplit
from tests.compiling import gradient

HIDDEN = 64
BLOCKS = "parameters/blocks.mlp"


class PlainMlp(nnx.Module):
    """A feed-forward layer that knows nothing of meshes."""

    INHERITED = ("dim", "rngs")
    ANNOTATION = {}

    def __init__(self, *, dim, rngs):
        def kernel(*names):
            # Flax's own initializers, whose last bits may depend on the shape of a shard.
            initializer = nnx.initializers.lecun_normal()
            if not self.ANNOTATION:
                return initializer
            names = tuple(self.ANNOTATION.get(name, name) for name in names)
            return nnx.with_partitioning(initializer, names)

        self.up = nnx.Linear(dim, HIDDEN, kernel_init=kernel("embed", "mlp"), rngs=rngs)
        self.down = nnx.Linear(HIDDEN, dim, kernel_init=kernel("mlp", "embed"), rngs=rngs)

    def __call__(self, x_BLD):
        return self.down(jax.nn.relu(self.up(x_BLD)))


class AnnotatedMlp(PlainMlp):
    """Names logical axes by Flax's annotation."""

    ANNOTATION = {"embed": "embed"}


class MeshMlp(PlainMlp):
    """Names mesh axes by Flax's annotation."""

    ANNOTATION = {"embed": None, "mlp": "tensor"}


class TwofoldMlp(PlainMlp):
    """Splits one dimension by two mesh axes, which is what rules are for."""

    ANNOTATION = {"mlp": ("fsdp", "tensor")}


def words(*recipes):
    return [f"fiddler:luthier.recipes.{recipe}" for recipe in recipes]


@pytest.fixture
def make(shrunk, enough_tokens):
    """Return a function from a feed-forward class and recipes to a graph."""

    def make(mlp, *recipes):
        graph = shrunk("precision.matmul=highest", *enough_tokens, *words(*recipes))
        graph.model.block.mlp = mlp
        return graph

    return make


def test_fsdp_splits_the_largest_dimension_of_parameters_without_axes(make):
    program = programs.make(make(PlainMlp, "fsdp(4)", "tensor(2)"), jax.devices())
    placement = program.placements[f"{BLOCKS}.up.kernel"]
    assert (placement.shape, placement.spec) == ((2, 32, HIDDEN), jax.P(None, None, "fsdp"))
    assert placement.reason == "no logical axes: largest dimension divisible by fsdp=4"
    assert program.placements[f"{BLOCKS}.down.bias"].spec == jax.P(None, "fsdp")
    moments = [
        p for n, p in program.placements.items() if n.endswith("moment/blocks.mlp.up.kernel")
    ]
    assert len(moments) == 2
    for moment in moments:
        assert (moment.spec, moment.reason) == (placement.spec, placement.reason)
    assert unsplit(program) == ""


def test_explicit_axes_leave_parameters_without_axes_whole(make):
    graph = make(PlainMlp, "fsdp(8)")
    graph = apply(graph, ["parallelism.rules.parameters={}"])
    graph.parallelism.mesh.axis_type = AxisType.EXPLICIT
    program = programs.make(graph, jax.devices())
    assert program.placements[f"{BLOCKS}.up.kernel"].spec == jax.P(None, None, None)
    assert unsplit(program).startswith("fsdp=8 splits the batch, but none of the ")


@pytest.mark.parametrize(
    ("mlp", "up", "down"),
    [
        (AnnotatedMlp, (None, "fsdp", "tensor"), (None, "tensor", "fsdp")),
        (MeshMlp, (None, None, "tensor"), (None, "tensor", None)),
    ],
)
def test_annotations_of_flax_name_logical_axes_or_mesh_axes(make, mlp, up, down):
    program = programs.make(make(mlp, "fsdp(4)", "tensor(2)"), jax.devices())
    assert program.placements[f"{BLOCKS}.up.kernel"].spec == jax.P(*up)
    assert program.placements[f"{BLOCKS}.down.kernel"].spec == jax.P(*down)
    # The biases are not annotated, and so split by their size.
    assert program.placements[f"{BLOCKS}.up.bias"].spec == jax.P(None, "fsdp")


def test_an_annotation_with_several_names_for_a_dimension_is_refused_in_one_line(make):
    with pytest.raises(BadInput) as raised:
        programs.make(make(TwofoldMlp, "fsdp(4)", "tensor(2)"), jax.devices())
    assert str(raised.value).splitlines()[0] == (
        "Flax's annotation (('fsdp', 'tensor'), 'embed') gives one dimension several names: "
        "('fsdp', 'tensor'); write one name, and let a rule split it along several mesh axes"
    )


MESHES = [
    pytest.param(mlp, recipes, marks=marks)
    for mlp, recipes, marks in (
        (PlainMlp, ("fsdp(8)",), pytest.mark.full),
        (PlainMlp, ("fsdp(4)", "tensor(2)"), pytest.mark.slow),
        (AnnotatedMlp, ("fsdp(4)", "tensor(2)"), pytest.mark.slow),
        (MeshMlp, ("fsdp(4)", "tensor(2)"), pytest.mark.slow),
    )
]


@pytest.mark.parametrize(("mlp", "recipes"), MESHES)
def test_parameters_and_gradients_do_not_depend_on_the_mesh(make, case, relative, mlp, recipes):
    single, many = case(make(mlp)), case(make(mlp, *recipes), 8)
    batch, leaves = single.batches(1)[0], single.init()
    found = many.init()
    for name, array, expected in zip(many.program.names, found, leaves, strict=True):
        np.testing.assert_array_equal(np.asarray(array), np.asarray(expected), name)
    assert relative(gradient(many, batch, found), gradient(single, batch, leaves)) < 1e-6
