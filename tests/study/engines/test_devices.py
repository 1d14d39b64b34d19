import pytest

from luthier.errors import BadInput
from luthier.study.engines import Devices, LocalSlice, cut, environment


@pytest.mark.parametrize(
    ("text", "kind", "numbers"),
    [
        ("cpu:8", "cpu", tuple(range(8))),
        ("cuda:0,2", "cuda", (0, 2)),
        ("gpu:2", "cuda", (0, 1)),
        ("tpu:4", "tpu", (0, 1, 2, 3)),
    ],
)
def test_devices_are_read(text, kind, numbers):
    assert Devices.parse(text) == Devices(kind, numbers)


@pytest.mark.parametrize("text", ["", "cpu", "cpu:", "cpu:0", "disk:3", "cuda:1,1", "cuda:-1"])
def test_unreadable_device_texts_are_rejected(text):
    with pytest.raises(BadInput) as caught:
        Devices.parse(text)
    assert str(caught.value) == (
        f"devices: cannot read the devices {text!r}; write kind:number or kind:i,j,...: cpu:8, "
        "cuda:4, cuda:0,2, tpu:4"
    )


def test_equal_slices_share_out_all_devices():
    found = cut(Devices.parse("cuda:0,1,4,5"), 2)
    assert [(slice.name, slice.devices) for slice in found] == [("0", (0, 1)), ("1", (4, 5))]


def test_named_slices_have_the_sizes_that_they_are_given():
    found = cut(Devices.parse("cpu:8"), {"large": 6, "small": 1})
    assert [(slice.name, len(slice.devices)) for slice in found] == [("large", 6), ("small", 1)]


@pytest.mark.parametrize(
    ("slices", "line"),
    [
        (
            3,
            "slices: 8 devices cannot be split into 3 equal slices; use one of 1, 2, 4, 8, or name "
            "the size of each slice",
        ),
        (
            {"a": 8, "b": 1},
            "slices: slices of 9 devices do not fit 8 devices; give each at least one, and all at "
            "most all",
        ),
        (
            {"a": 0},
            "slices: slice a has no device; give each at least one, and all at most all",
        ),
    ],
)
def test_slices_that_do_not_fit_are_reported(slices, line):
    with pytest.raises(BadInput) as caught:
        cut(Devices.parse("cpu:8"), slices)
    assert str(caught.value) == line


def test_cores_are_shared_out_where_there_are_enough(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)
    assert [slice.cores for slice in cut(Devices.parse("cpu:2"), 2)] == [(0, 1), (2, 3)]
    assert [slice.cores for slice in cut(Devices.parse("cpu:8"), 8)] == [()] * 8
    assert [slice.cores for slice in cut(Devices.parse("cpu:2"), 1)] == [()]


def test_a_worker_sees_its_own_devices_only():
    inherited = {
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8 --other",
        "CUDA_VISIBLE_DEVICES": "4,5,6,7",
        "WANDB_SERVICE": "3-1234-tcp",
        "PYTHONPATH": "mine",
        "HOME": "anywhere",
    }
    cpu = environment(LocalSlice("a", "cpu", (2, 3), (0,)), inherited, ["studies/x/source"])
    assert cpu["XLA_FLAGS"] == "--other --xla_force_host_platform_device_count=2"
    assert cpu["JAX_PLATFORMS"] == "cpu"
    assert cpu["OMP_NUM_THREADS"] == "1"
    assert cpu["PYTHONPATH"] == "studies/x/source:mine"
    assert "WANDB_SERVICE" not in cpu
    cuda = environment(LocalSlice("a", "cuda", (1, 3)), inherited)
    assert cuda["CUDA_VISIBLE_DEVICES"] == "5,7"
    assert environment(LocalSlice("a", "cuda", (1, 3)), {})["CUDA_VISIBLE_DEVICES"] == "1,3"
    tpu = environment(LocalSlice("a", "tpu", (2, 3)), inherited)
    assert (tpu["TPU_VISIBLE_CHIPS"], tpu["TPU_CHIPS_PER_PROCESS_BOUNDS"]) == ("2,3", "1,2,1")
    some = environment(LocalSlice("a", "tpu", (0,)), {"TPU_VISIBLE_CHIPS": "2,3"})
    assert some["TPU_VISIBLE_CHIPS"] == "2"
    assert environment(LocalSlice("a", "rocm", (1,)), {})["ROCR_VISIBLE_DEVICES"] == "1"
    hip = environment(LocalSlice("a", "rocm", (1,)), {"HIP_VISIBLE_DEVICES": "6,7"})
    assert (hip["HIP_VISIBLE_DEVICES"], "ROCR_VISIBLE_DEVICES" in hip) == ("7", False)
    with pytest.raises(BadInput) as caught:
        environment(LocalSlice("b", "cuda", (1, 4)), inherited)
    assert str(caught.value) == (
        "devices: slice b has device 4, and CUDA_VISIBLE_DEVICES=4,5,6,7 shows 4; "
        "use devices below 4, or set CUDA_VISIBLE_DEVICES to more of them"
    )


def test_what_is_compiled_is_kept_for_all_workers():
    made = environment(LocalSlice("a", "cpu", (0,)), {"XDG_CACHE_HOME": "/cache"})
    assert made["JAX_COMPILATION_CACHE_DIR"].startswith("/cache/luthier/compiled/")
    assert made["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] == "0"
    own = environment(LocalSlice("a", "cpu", (0,)), {"JAX_COMPILATION_CACHE_DIR": "/mine"})
    assert own["JAX_COMPILATION_CACHE_DIR"] == "/mine"
