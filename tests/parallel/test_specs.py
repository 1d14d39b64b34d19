import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import PartitionSpec

from luthier.errors import ShardingError
from luthier.parallel import (
    AXES,
    ArrayInfo,
    Mesh,
    Rules,
    array_bytes,
    axis_product,
    make_mesh,
    parameter_rules,
    place,
    shardings,
)
from luthier.parallel.specs import resolve

LOGICAL = ("embed", "mlp", "heads", "kv_heads", "vocab", "layers", "unheard_of", None)
ONES = dict.fromkeys(AXES, 1)
SIZES = ONES | {"fsdp": 4, "tensor": 2}


def info(axes, shape, dtype="float32"):
    return ArrayInfo(shape, dtype, axes)


@st.composite
def arrays_and_rules(draw):
    sizes = {axis: draw(st.sampled_from((1, 2, 3, 4))) for axis in ("data", "fsdp", "tensor")}
    subsets = st.lists(st.sampled_from(tuple(sizes)), max_size=3, unique=True).map(tuple)
    table = {name: draw(subsets) for name in LOGICAL[:6]}
    axes = tuple(draw(st.lists(st.sampled_from(LOGICAL), max_size=4)))
    shape = tuple(draw(st.sampled_from((1, 4, 24, 36, 72))) for _ in axes)
    dtype = draw(st.sampled_from(("float32", "bfloat16", "int8")))
    return ArrayInfo(shape, dtype, axes), table, sizes


@given(arrays_and_rules())
def test_every_layout_is_sound(case):
    array, table, sizes = case
    try:
        placement = place({"x": array}, table, sizes)["x"]
    except ShardingError:
        # Refused if and only if some dimension is uneven.
        dimensions = resolve(array.axes, table, sizes)
        pairs = zip(array.shape, dimensions, strict=True)
        assert any(size % axis_product(d.mesh_axes, sizes) for size, d in pairs)
        return
    entries = [(e,) if isinstance(e, str) else e or () for e in placement.spec]
    assert len(entries) == len(array.shape)
    used = [axis for entry in entries for axis in entry]
    assert len(used) == len(set(used))
    for size, entry in zip(array.shape, entries, strict=True):
        assert size % axis_product(entry, sizes) == 0
    shards = axis_product(used, sizes)
    assert placement.bytes_per_device * shards == array_bytes(array.shape, array.dtype)
    for logical in array.axes:
        assert logical is None or logical in placement.reason
    for axis in {a for logical in array.axes for a in table.get(logical, ())}:
        assert axis in placement.reason


@pytest.mark.parametrize(
    ("axes", "spec", "reason"),
    [
        (("embed", "mlp"), ("fsdp", "tensor"), "embed -> fsdp; mlp -> tensor"),
        (
            ("heads", "vocab"),
            ("tensor", None),
            "heads -> tensor; vocab: tensor dropped, already used by heads",
        ),
        (("foo", None), (None, None), "no rule for 'foo': replicated; dimension 1 has no logical"),
        (("layers", "embed"), (None, "fsdp"), "layers: stage has size 1; embed -> fsdp"),
        (("rows", "embed"), ("fsdp", None), "rows -> fsdp (data has size 1); embed: fsdp dropped"),
        (("two", "mlp"), (None, "tensor"), "two: replica, data have size 1; mlp -> tensor"),
        (("lone", "mlp"), (None, "tensor"), "lone: data has size 1; mlp -> tensor"),
    ],
)
def test_specs_and_their_reasons(axes, spec, reason):
    table = parameter_rules() | {"rows": ("data", "fsdp"), "lone": ("data",)}
    table["two"] = ("replica", "data")
    placement = place({"x": info(axes, (8, 8))}, table, SIZES)["x"]
    assert placement.spec == PartitionSpec(*spec)
    assert placement.reason.startswith(reason)


def test_several_mesh_axes_share_out_one_dimension():
    sizes = ONES | {"data": 2, "fsdp": 4}
    table = Rules().activations
    placement = place({"inputs": info(("batch", "length"), (16, 8), "int32")}, table, sizes)
    assert placement["inputs"].spec == PartitionSpec(("data", "fsdp"), None)
    assert placement["inputs"].bytes_per_device == 16 * 8 * 4 // 8


def test_fsdp_splits_the_largest_dimension_of_arrays_without_axes():
    found = place({"x": info(None, (8, 12, 12, 9)), "odd": info(None, (3, 5))}, {}, SIZES)
    assert found["x"].spec == PartitionSpec(None, "fsdp", None, None)
    assert found["x"].reason == "no logical axes: largest dimension divisible by fsdp=4"
    assert found["x"].bytes_per_device == 8 * 12 * 12 * 9
    assert found["odd"].spec == PartitionSpec(None, None)
    assert found["odd"].reason == (
        "no logical axes, and no dimension divisible by fsdp=4: replicated"
    )
    whole = place({"x": info((None, None), (8, 12))}, {}, SIZES)["x"]
    assert (whole.spec, whole.bytes_per_device) == (PartitionSpec(None, None), 8 * 12 * 4)


def test_the_name_of_a_mesh_axis_means_itself_where_no_rule_has_it():
    placement = place({"x": info((None, "tensor"), (8, 8))}, parameter_rules(), SIZES)["x"]
    assert placement.spec == PartitionSpec(None, "tensor")
    own = place({"x": info((None, "tensor"), (8, 8))}, {"tensor": ("fsdp",)}, SIZES)["x"]
    assert own.spec == PartitionSpec(None, "fsdp")


def test_without_fsdp_arrays_without_axes_are_replicated():
    found = place({"step": info(None, ()), "x": info(None, (3, 5)), "y": info((), ())}, {}, ONES)
    assert found["step"].reason == found["y"].reason == "scalar: replicated"
    assert found["x"].reason == "no logical axes: replicated"
    assert found["x"].spec == PartitionSpec(None, None)
    assert found["x"].bytes_per_device == 60


def test_all_uneven_arrays_are_reported_at_once_with_their_remedies():
    arrays = {
        "decoder.embedding.table": info(("vocab", "embed"), (257, 64)),
        "block.query.kernel": info(("embed", "heads", "head_dim"), (66, 7, 4)),
        "inputs": info(("batch",), (12,)),
        "bias": info(("mlp",), (4, 4)),
        "fine": info(("embed",), (8,)),
    }
    table = parameter_rules() | {"batch": ("data", "fsdp")}
    with pytest.raises(ShardingError) as caught:
        place(arrays, table, ONES | {"data": 2, "fsdp": 4, "tensor": 2})
    assert str(caught.value).splitlines() == [
        "decoder.embedding.table: dimension 0 'vocab' (257) is not divisible by mesh axis "
        "tensor=2 (rule vocab -> tensor); set its pad_to_multiple=2, or parallelism.mesh.tensor=1",
        "block.query.kernel: dimension 0 'embed' (66) is not divisible by mesh axis fsdp=4 "
        "(rule embed -> fsdp); make embed a multiple of 4, parallelism.mesh.fsdp=2, "
        "or parallelism.rules.parameters.embed=()",
        "block.query.kernel: dimension 1 'heads' (7) is not divisible by mesh axis tensor=2 "
        "(rule heads -> tensor); make heads a multiple of 2, parallelism.mesh.tensor=1, "
        "or parallelism.rules.parameters.heads=()",
        "inputs: dimension 0 'batch' (12) is not divisible by mesh axes data=2 x fsdp=4 = 8 "
        "(rule batch -> data, fsdp); use a multiple of 8 rows, or parallelism.mesh.fsdp=2",
        "bias: 1 logical axes ('mlp',) for the 2 dimensions of shape (4, 4); "
        "give its logical_axes one name, or None, per dimension",
    ]


def test_a_dimension_that_many_arrays_have_is_reported_once():
    names = ("up", "gate", "down")
    arrays = {name: info(("embed",), (66,)) for name in names} | {"norm": info(("mlp",), (7,))}
    with pytest.raises(ShardingError) as caught:
        place(arrays, parameter_rules(), ONES | {"fsdp": 4, "tensor": 2})
    first, second = str(caught.value).splitlines()
    assert "(rule embed -> fsdp), also in 2 other arrays; make embed a multiple of 4" in first
    assert second.startswith("norm: dimension 0 'mlp' (7)")


def test_rules_of_unknown_mesh_axes_are_refused_before_any_array():
    with pytest.raises(ShardingError, match=r"my\.rules\.embed: the mesh has no axis 'model'"):
        place({}, {"embed": ("model",)}, SIZES, path="my.rules")


def test_shardings_put_arrays_where_the_bytes_say():
    sizes = Mesh(fsdp=4, tensor=2).sizes(8)
    mesh = make_mesh(sizes, jax.devices())
    arrays = {"w": info(("embed", "mlp"), (16, 8), jnp.bfloat16), "b": info(("mlp",), (8,))}
    placements = place(arrays, parameter_rules(), sizes)
    for name, sharding in shardings(placements, mesh).items():
        placement = placements[name]
        array = jax.device_put(np.zeros(placement.shape, placement.dtype), sharding)
        assert {shard.data.nbytes for shard in array.addressable_shards} == {
            placement.bytes_per_device
        }
    assert math.prod(sizes.values()) == 8
