import jax
import jax.numpy as jnp
import pytest

from luthier.planner.search import Manual, contracted, out_labels, reshaped, spread_back

B, L, D, H = "batch", "length", "embed", "heads"


def labels_of(function, shapes, given):
    avals = [jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes]
    (equation,) = jax.make_jaxpr(function)(*avals).jaxpr.eqns
    return equation, out_labels(equation, given)


@pytest.mark.parametrize(
    ("function", "shapes", "given", "expected"),
    [
        (jnp.matmul, [(4, 8), (8, 6)], [(B, D), (D, H)], (B, H)),
        (lambda x: jnp.transpose(x, (1, 0)), [(4, 8)], [(B, D)], (D, B)),
        (lambda x: x[:, None, :], [(4, 8)], [(B, D)], (B, None, D)),
        (lambda x: jnp.sum(x, 1), [(4, 8)], [(B, D)], (B,)),
        (lambda x: jnp.argmax(x, 0), [(4, 8)], [(B, D)], (D,)),
        (lambda x, y: x + y, [(4, 8), (4, 8)], [(B, None), (None, D)], (B, D)),
        (lambda x: jnp.squeeze(x, 1), [(4, 1, 8)], [(B, None, D)], (B, D)),
    ],
)
def test_axes_follow_an_equation(function, shapes, given, expected):
    assert labels_of(function, shapes, given)[1] == [expected]


@pytest.mark.parametrize(
    ("before", "after", "labels", "expected"),
    [
        ((4, 8, 16), (4, 8, 2, 8), (B, L, H), (B, L, H, None)),
        ((4, 8, 2, 8), (4, 8, 16), (B, L, H, None), (B, L, H)),
        ((4, 8, 16), (32, 16), (B, L, D), (B, D)),
        ((4, 8), (4, 1, 8), (B, D), (B, None, D)),
        ((4, 1), (4,), (B, None), (B,)),
    ],
)
def test_axes_that_lead_a_group_survive_reshaping(before, after, labels, expected):
    assert reshaped(before, after, labels) == expected


def test_a_gather_of_rows_has_the_axes_of_indices_and_of_rows():
    function = lambda table, ids: table.at[ids].get(mode="clip")
    avals = [jax.ShapeDtypeStruct((32, 8), "float32"), jax.ShapeDtypeStruct((4, 6), "int32")]
    jaxpr = jax.make_jaxpr(function)(*avals).jaxpr
    (equation,) = [e for e in jaxpr.eqns if e.primitive.name == "gather"]
    given = [("vocab", D), (B, L, None)]
    assert out_labels(equation, given) == [(B, L, D)]


def test_contracted_axes_of_a_product():
    sum_over_rows = lambda x, y: jax.lax.dot_general(x, y, (((0,), (0,)), ((), ())))
    equation, found = labels_of(sum_over_rows, [(4, 8), (4, 6)], [(B, D), (B, H)])
    assert contracted(equation, [(B, D), (B, H)]) == (B,)
    assert found == [(D, H)]


TABLE = {"batch": ("stage", "data", "fsdp"), "length": ("sequence",), "experts": ("expert",)}
SIZES = {"stage": 2, "data": 1, "fsdp": 4, "sequence": 2, "expert": 8}


def test_mesh_axes_imply_logical_axes():
    manual = Manual(TABLE, SIZES)
    spec = jax.sharding.PartitionSpec
    assert manual.constrained(spec("sequence", ("stage", "fsdp")), (None, None)) == (L, B)
    assert manual.constrained(spec(None, "expert"), (L, None)) == (None, "experts")
    open_ = spec(spec.UNCONSTRAINED, None)
    assert manual.constrained(open_, (L, D)) == (L, D)
    assert manual.placed(spec("sequence"), (B, None)) == (B, None)  # what is known stays
    assert manual.placed(spec(None, "stage"), (None, None)) == (None, "layers")


def test_a_part_makes_the_whole_as_often_as_there_are_places():
    manual = Manual(TABLE, SIZES)
    assert manual.places((B, L)) == 1
    inside = manual.within({"manual_axes": frozenset({"stage", "sequence"})})
    assert inside.places((B, L)) == 4
    assert inside.places((None, L)) == 2


def test_axes_spread_back_by_element_and_by_view():
    function = lambda x, y: jnp.exp(x.reshape(4, 2, 3)).transpose(1, 0, 2) + y
    avals = [jax.ShapeDtypeStruct(s, jnp.float32) for s in [(4, 6), (2, 4, 3)]]
    jaxpr = jax.make_jaxpr(function)(*avals).jaxpr
    labels = {v: (None,) * len(v.aval.shape) for e in jaxpr.eqns for v in (*e.invars, *e.outvars)}
    labels[jaxpr.outvars[0]] = (H, B, None)
    known = {}
    spread_back(jaxpr.eqns, labels, known)
    assert known[jaxpr.invars[0]] == (B, H)
    assert known[jaxpr.invars[1]] == (H, B, None)
