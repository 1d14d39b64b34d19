import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

from luthier.parallel import ArrayInfo, Mesh, parameter_rules, place_derived

SIZES = Mesh(data=1, fsdp=4, tensor=2).sizes(8)


def placed(axes, shape, sizes=SIZES):
    info = ArrayInfo(shape, jnp.float32, axes)
    return place_derived({"x": info}, parameter_rules(), sizes)["x"]


@pytest.mark.parametrize(
    ("axes", "shape", "spec", "reason"),
    [
        (("embed",), (64,), ("fsdp",), "embed -> fsdp"),
        (("mlp",), (96,), (("tensor", "fsdp"),), "mlp -> tensor -> fsdp (spare)"),
        (
            ("layers", "mlp", None),
            (8, 6, 6),
            ("fsdp", "tensor", None),
            "layers: stage has size 1 -> fsdp (spare); mlp -> tensor; "
            "dimension 2 has no logical axis: replicated",
        ),
        (
            ("layers", "mlp", None),
            (3, 7, 8),
            (None, None, "fsdp"),
            "layers: stage has size 1; dimension 1 has no logical axis: replicated; "
            "dimension 2 has no logical axis: replicated -> fsdp (spare)",
        ),
        (
            ("vocab", "heads", "mlp"),
            (7, 9, 6),
            (None, None, "tensor"),
            "dimension 0 has no logical axis: replicated; dimension 1 has no logical axis: "
            "replicated; mlp -> tensor",
        ),
        (("embed",), (5,), (None,), "dimension 0 has no logical axis: replicated"),
        ((), (), (), "scalar: replicated"),
    ],
)
def test_a_spare_axis_takes_the_first_dimension_that_it_divides(axes, shape, spec, reason):
    placement = placed(axes, shape)
    assert placement.spec == PartitionSpec(*spec)
    assert placement.reason == reason


def test_bytes_are_those_of_a_shard():
    assert placed(("mlp",), (96,)).bytes_per_device == 96 * 4 // 8
    assert placed(("embed",), (5,)).bytes_per_device == 20


def test_a_mesh_without_the_spare_axis_leaves_it_out():
    placement = placed(("mlp",), (96,), Mesh(tensor=2).sizes(8))
    assert placement.spec == PartitionSpec("tensor")
    assert placement.reason == "mlp -> tensor"
