import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import program as programs
from luthier.contrib.optimizers import soap
from luthier.optim import AdamScale, Axes, Layout, NewtonSchulz, adafactor, muon, state_axes
from luthier.optim.layouts import complete
from luthier.program.step import structure_of
from tests.optim.experiments import small_graph

KERNEL = Layout((3, 6, 2, 4), ("layers", "embed", "heads", "head_dim"), 1)


def test_a_kernel_of_many_dimensions_is_a_matrix_for_each_layer():
    assert KERNEL.num_stacked == 1
    assert KERNEL.is_matrix
    assert KERNEL.matrix_shape == (6, 8)
    x = jnp.arange(144.0).reshape(KERNEL.shape)
    matrices = KERNEL.to_matrices(x)
    assert matrices.shape == (3, 6, 8)
    np.testing.assert_array_equal(matrices[1, 2], x[1, 2].ravel())
    np.testing.assert_array_equal(KERNEL.from_matrices(matrices), x)


def test_norms_are_of_each_layer():
    x = np.random.default_rng(0).normal(size=KERNEL.shape).astype(np.float32)
    expected = [np.linalg.norm(layer) for layer in x]
    np.testing.assert_allclose(KERNEL.norm(jnp.asarray(x)).ravel(), expected, rtol=1e-6)
    squares = [np.mean(layer**2) for layer in x]
    np.testing.assert_allclose(KERNEL.mean_square(jnp.asarray(x)).ravel(), squares, rtol=1e-6)


@pytest.mark.parametrize(
    ("layout", "is_matrix"),
    [
        (Layout((3, 6), ("layers", "embed")), False),
        (Layout((11, 6), ("vocab", "embed")), False),
        (Layout((6, 6), None, 1), True),
        (Layout((3, 6), ("layers", "embed"), 1), False),
        (Layout((), None), False),
    ],
)
def test_what_is_a_matrix(layout, is_matrix):
    assert layout.is_matrix is is_matrix


def test_without_layouts_shapes_decide():
    found = complete({"a": jnp.ones((2, 3)), "b": jnp.ones((2, 3, 4))}, None)
    assert found["a"].is_matrix
    assert not found["b"].is_matrix
    known = {"a": KERNEL, "other": KERNEL}
    assert complete({"a": jnp.ones(KERNEL.shape)}, known) == {"a": KERNEL}


def test_a_model_knows_its_layouts():
    experiment = programs.make(
        small_graph("luthier.optim.muon(0.01)"), jax.devices()[:1]
    ).experiment
    layouts = structure_of(experiment).layouts()
    matrices = {name: x for name, x in layouts.items() if x.is_matrix}
    query = matrices["blocks.attention.query.kernel"]
    assert query.axes == ("layers", "embed", "heads", "head_dim")
    assert query.num_inputs == 1
    assert matrices["blocks.attention.output.kernel"].num_inputs == 2
    assert not [name for name in matrices if "norm" in name or "table" in name]


def test_a_state_reports_the_axes_that_its_arrays_keep():
    layouts = {"k": KERNEL, "t": Layout((11, 6), ("vocab", "embed")), "b": Layout((6,), ("embed",))}
    arrays = {name: jnp.ones(x.shape) for name, x in layouts.items()}
    axes_tree = state_axes(adafactor(0.1, least_factored_dim=2).init(arrays, layouts), layouts)
    factored = axes_tree.stages[1]
    assert factored.rows == {"k": Axes(("layers", "heads", "head_dim")), "t": Axes(("embed",))}
    assert factored.columns == {"k": Axes(("layers", "embed", "heads")), "t": Axes(("vocab",))}
    assert factored.entries == {"b": Axes(("embed",))}
    axes_tree = state_axes(soap(0.1).init(arrays, layouts), layouts)
    sides = axes_tree.stages[1].parts["matrices"]
    assert sides.left_map == sides.left == {"k": Axes(("layers", "embed", None))}
    assert sides.right == {"k": Axes(("layers", "heads", None))}


def test_a_factored_state_keeps_the_mesh_axes_that_remain():
    graph = small_graph(
        "luthier.optim.adafactor(0.01, least_factored_dim=4)",
        "parallelism.mesh.fsdp=4",
        "parallelism.mesh.tensor=2",
    )
    placements = programs.make(graph, jax.devices()).placements
    spec = {n.partition("stages/")[2]: p.spec for n, p in placements.items()}
    own = placements["parameters/blocks.mlp.up.kernel"]
    assert own.spec == jax.P(None, "fsdp", "tensor")
    # Of (layers, embed, mlp) rows have lost mlp, the larger, and columns embed, with which FSDP
    # goes; it takes the other dimension then, so that every device holds its part only.
    assert spec["1/rows/blocks.mlp.up.kernel"] == jax.P(None, "fsdp")
    assert spec["1/columns/blocks.mlp.up.kernel"] == jax.P(None, ("tensor", "fsdp"))


def test_square_states_are_sharded_along_one_side():
    mesh = ("parallelism.mesh.fsdp=4", "parallelism.mesh.tensor=2")
    graph = small_graph("luthier.optim.soap(0.01)", *mesh)
    placements = programs.make(graph, jax.devices()).placements
    start = "optimizer/stages/1/parts/matrices/"
    name = "blocks.attention.query.kernel"
    assert placements[f"{start}left/{name}"].spec == jax.P(None, "fsdp", None)
    assert placements[f"{start}right_map/{name}"].spec == jax.P(None, ("tensor", "fsdp"), None)
    assert placements[f"{start}first_moment/{name}"].spec == jax.P(None, "fsdp", "tensor", None)


SHARDED = {
    "muon": muon(0.02, scale=AdamScale(0.3), weight_decay=0.3),
    "muon, converging": muon(0.02, iteration=NewtonSchulz(12, (1.875, -1.25, 0.375))),
    "adafactor": adafactor(0.05, least_factored_dim=8, momentum=0.6, weight_decay=0.3),
}


@pytest.mark.full
@pytest.mark.parametrize("name", SHARDED)
def test_an_update_on_a_mesh_is_that_on_one_device(name):
    mesh = jax.make_mesh((4, 2), ("fsdp", "tensor"), (jax.sharding.AxisType.Auto,) * 2)
    rules = {"embed": "fsdp", "mlp": "tensor", "heads": "tensor", "vocab": "tensor"}
    layouts = {
        "blocks.mlp.up.kernel": Layout((2, 16, 32), ("layers", "embed", "mlp"), 1),
        "blocks.query.kernel": Layout((2, 16, 4, 8), ("layers", "embed", "heads", "k"), 1),
        "embedding.table": Layout((64, 16), ("vocab", "embed")),
        "norm.scale": Layout((16,), ("embed",)),
    }
    rng = np.random.default_rng(0)
    start = {n: 0.1 * rng.normal(size=x.shape).astype(np.float32) for n, x in layouts.items()}
    gradients = [
        {n: rng.normal(size=x.shape).astype(np.float32) for n, x in layouts.items()}
        for _ in range(3)
    ]
    optimizer = SHARDED[name]

    def spread(arrays):
        shardings = {
            n: jax.NamedSharding(mesh, jax.P(*(rules.get(a) for a in layouts[n].axes)))
            for n in arrays
        }
        return jax.device_put(arrays, shardings)

    def train(place):
        parameters, step = place(start), jax.jit(lambda g, s, p: optimizer.update(g, s, p, layouts))
        state = jax.jit(lambda p: optimizer.init(p, layouts))(parameters)
        with jax.default_matmul_precision("highest"):
            for gradient in gradients:
                updates, state = step(place(gradient), state, parameters)
                parameters = {n: p + updates[n] for n, p in parameters.items()}
        return parameters

    alone, together = train(lambda arrays: jax.tree.map(jnp.asarray, arrays)), train(spread)
    for n in layouts:
        assert len(together[n].sharding.device_set) == 8
        moved = np.linalg.norm(alone[n] - start[n])
        assert np.linalg.norm(np.asarray(together[n]) - np.asarray(alone[n])) <= 1e-6 * moved, n
