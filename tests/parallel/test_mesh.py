import dataclasses
import math

import jax
import pytest
from hypothesis import given
from hypothesis import strategies as st

from luthier.errors import ShardingError
from luthier.parallel import AXES, AcrossSlices, Mesh, make_mesh
from luthier.parallel.mesh import alternatives, describe_sizes


@pytest.mark.parametrize(
    ("mesh", "num_devices", "sizes"),
    [
        (Mesh(), 8, {"data": 8}),
        (Mesh(fsdp=4), 8, {"data": 2, "fsdp": 4}),
        (Mesh(data=1, fsdp=-1, tensor=2), 8, {"fsdp": 4, "tensor": 2}),
        (Mesh(stage=2, sequence=2, expert=2), 8, {"stage": 2, "expert": 2, "sequence": 2}),
        (Mesh(), 1, {}),
        (Mesh(replica=2, fsdp=4, tensor=2), 16, {"replica": 2, "fsdp": 4, "tensor": 2}),
        (Mesh(across_slices=AcrossSlices(data=2)), 8, {"data": 8}),
        (Mesh(fsdp=4, across_slices=AcrossSlices(replica=2)), 8, {"replica": 2, "fsdp": 4}),
        (
            Mesh(data=1, fsdp=-1, across_slices=AcrossSlices(fsdp=2, data=2)),
            16,
            {"data": 2, "fsdp": 8},
        ),
    ],
)
def test_sizes_multiply_out_and_stand_in_the_order_of_the_axes(mesh, num_devices, sizes):
    found = mesh.sizes(num_devices)
    assert tuple(found) == AXES
    assert {axis: size for axis, size in found.items() if size != 1} == sizes


@pytest.mark.parametrize(
    ("mesh", "lines"),
    [
        (
            Mesh(fsdp=4, tensor=3),
            "parallelism.mesh: data=-1 x fsdp=4 x tensor=3 does not divide 8 devices; "
            "set parallelism.mesh.tensor=2, or use a multiple of 12 devices",
        ),
        (
            Mesh(fsdp=16),
            "parallelism.mesh: data=-1 x fsdp=16 does not divide 8 devices; "
            "set parallelism.mesh.fsdp=8, or use a multiple of 16 devices",
        ),
        (
            Mesh(data=2, fsdp=2),
            "parallelism.mesh: data=2 x fsdp=2 takes 4 devices, and there are 8; "
            "set parallelism.mesh.fsdp=4, set parallelism.mesh.data=4, or use 4 devices",
        ),
        (
            Mesh(data=1),
            "parallelism.mesh: every axis=1 takes 1 device, and there are 8; "
            "set parallelism.mesh.data=8, or use 1 device",
        ),
        (
            Mesh(fsdp=8, across_slices=AcrossSlices(data=2)),
            "parallelism.mesh: data=-1 x fsdp=8 does not divide 4 devices in each of 2 slices; "
            "set parallelism.mesh.fsdp=4, or use a multiple of 16 devices",
        ),
        (
            Mesh(across_slices=AcrossSlices(data=3)),
            "parallelism.mesh.across_slices: 8 devices cannot be split into 3 equal slices; "
            "use a multiple of 3 devices",
        ),
        (
            Mesh(data=-1, fsdp=-1, tensor=0),
            "parallelism.mesh.tensor: 0 devices along an axis; "
            "give 1 or more, or -1 to fill the mesh\n"
            "parallelism.mesh: data and fsdp are -1, but only one can fill; "
            "keep one of them, for example parallelism.mesh.fsdp=1",
        ),
    ],
)
def test_a_mesh_that_does_not_fit_says_what_would(mesh, lines):
    with pytest.raises(ShardingError) as caught:
        mesh.sizes(8)
    assert str(caught.value) == lines


@given(
    st.sampled_from(AXES),
    st.tuples(st.integers(1, 6), st.integers(1, 6)),
    st.integers(1, 64),
)
def test_filling_takes_every_device_or_is_refused(filler, others, num_devices):
    names = [axis for axis in ("data", "fsdp", "tensor", "stage") if axis != filler][:2]
    given = {"data": 1, filler: -1} | dict(zip(names, others, strict=True))
    mesh = Mesh(**given)
    if num_devices % (others[0] * others[1]):
        with pytest.raises(ShardingError):
            mesh.sizes(num_devices)
    else:
        sizes = mesh.sizes(num_devices)
        assert math.prod(sizes.values()) == num_devices


def test_make_mesh_has_automatic_axes_over_the_given_devices():
    mesh = make_mesh({"data": 1, "fsdp": 2, "tensor": 2}, jax.devices()[:4])
    assert dict(mesh.shape) == {"data": 1, "fsdp": 2, "tensor": 2}
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
    assert set(mesh.devices.flat) == set(jax.devices()[:4])


def test_a_mesh_arranges_devices_across_slices():
    mesh = Mesh(data=1, fsdp=-1, tensor=2, across_slices=AcrossSlices(fsdp=2)).arrange(
        jax.devices()
    )
    assert {axis: size for axis, size in mesh.shape.items() if size != 1} == {
        "fsdp": 4,
        "tensor": 2,
    }
    assert set(mesh.axis_types) == {jax.sharding.AxisType.Auto}
    assert [d.id for d in mesh.devices.flat] == list(range(8))


def test_a_mesh_of_one_slice_is_that_of_its_sizes():
    mesh = Mesh(fsdp=4)
    assert mesh.arrange(jax.devices()) == make_mesh(mesh.sizes(8), jax.devices())


def test_make_mesh_refuses_another_number_of_devices():
    with pytest.raises(ShardingError, match="takes 4 devices, and there are 8"):
        make_mesh({"data": 2, "fsdp": 2, "tensor": 1}, jax.devices())


def test_a_mesh_is_a_value():
    assert Mesh(fsdp=2) == dataclasses.replace(Mesh(), fsdp=2)
    assert set(Mesh.RANGES) == set(AXES)


def test_words():
    assert describe_sizes({"data": 2, "fsdp": 1, "tensor": 4}) == "data=2 x tensor=4"
    assert describe_sizes({"data": 1}) == "every axis=1"
    assert alternatives(["a"]) == "a"
    assert alternatives(["a", "b"]) == "a, or b"
    assert alternatives(["a", "b", "c"]) == "a, b, or c"
