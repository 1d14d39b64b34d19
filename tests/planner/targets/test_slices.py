import pytest

from luthier.errors import BadInput
from luthier.planner import CpuSlice, GpuSlice, TpuSlice, targets

# How many devices, of which shape and in how many slices, as the vendors have them.
SLICES = {
    "cpu:8": (8, None, 1),
    "v2-8": (8, (2, 2), 1),
    "v3-32": (32, (4, 4), 1),
    "v4-8": (4, (2, 2, 1), 1),
    "v4-16": (8, (2, 2, 2), 1),
    "v4-64": (32, (2, 4, 4), 1),
    "v4-384": (192, (4, 4, 12), 1),
    "v4:4x4x8": (128, (4, 4, 8), 1),
    "v5p-1024": (512, (8, 8, 8), 1),
    "v5e-1": (1, (1, 1), 1),
    "v5e-8": (8, (2, 4), 1),
    "v5litepod-16": (16, (4, 4), 1),
    "V5E-128": (128, (8, 16), 1),
    "v6e-256": (256, (16, 16), 1),
    "tpu7x-8": (8, (2, 2, 1), 1),
    "2xv5e-16": (32, (4, 4), 2),
    "h100:8": (8, None, 1),
    "h200:8x4": (32, None, 4),
    "a100-40gb:8": (8, None, 1),
    "b200:8": (8, None, 1),
}


@pytest.mark.parametrize("text", SLICES)
def test_names_stand_for_slices(text):
    found = targets.read(text)
    shape = found.shape if isinstance(found, TpuSlice) else None
    assert (found.num_devices, shape, found.num_slices) == SLICES[text]
    again = targets.read(str(found))
    assert again == found


def test_a_slice_is_named_as_its_compiler_names_it():
    assert targets.read("v4-8").topology_name == "v4:2x2x1"
    assert targets.read("h200:8x4").topology_name == "4x1x8"
    assert targets.read("cpu:3") == CpuSlice(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h10:8", "--slice: no device is called 'h10'; did you mean h100?; there are cpu, v2, "),
        ("v5f-16", "no device is called 'v5f'; did you mean v5p"),
        ("v4-6", "--slice: there is not a slice 'v4-6'; did you mean v4-64"),
        ("v5e:4", "'v5e:4': chips of a v5e are along 2 dimensions; write v5e:4x4"),
        ("v4:4x4", "chips of a v4 are along 3 dimensions; write v4:2x2x1"),
        (
            "h100",
            "'h100' has no number of devices; write cpu:8, v5e-16, v4:2x2x1, 2xv5e-16, h100:8",
        ),
        ("h100-8", "cannot read 'h100-8'; write h100:8 for one host, h100:8x4 for four"),
        ("2xh100:8", "cannot read '2xh100:8'"),
        ("v5e-0", "'v5e-0' has no devices"),
        ("00xv5e-16", "'00xv5e-16' has no devices; write cpu:8, v5e-16"),
        ("cpu:100000", "cpu:100000 has 100000 devices, and at most 16384 can be planned"),
        ("h100:8x8192", "h100:8x8192 has 65536 devices, and at most 16384 can be planned"),
        ("eight", "cannot read 'eight'"),
    ],
)
def test_unreadable_slices_are_refused_with_the_nearest(text, message):
    with pytest.raises(BadInput) as caught:
        targets.read(text)
    assert message in str(caught.value)


def test_a_device_of_ones_own_is_a_node():
    chip = (
        "luthier.planner.GpuChip(name='h20', device_kind='NVIDIA H20', memory_bytes=102625181696, "
        "memory_bandwidth=4.0e12, peak_flops={'bfloat16': 148e12, 'float32': 44e12}, "
        "link_bandwidth=450e9, network_bandwidth=50e9, source='data sheet', "
        "compute_capability=(9, 0), num_cores=78, fpus_per_core=128, "
        "shared_memory_per_core=233472, l2_cache_bytes=62914560, clock_ghz=1.98)"
    )
    found = targets.read(f"luthier.planner.GpuSlice(chip={chip}, devices_per_host=8)")
    assert isinstance(found, GpuSlice)
    assert (found.num_devices, found.chip.name, str(found)) == (8, "h20", "h20:8")
    with pytest.raises(BadInput, match="is not a slice"):
        targets.read("luthier.parallel.Mesh(data=8)")
