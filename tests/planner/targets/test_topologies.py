import sys
import types

import jax
import pytest
from jax.experimental import topologies

from luthier.errors import BadInput
from luthier.planner import targets


def test_a_cpu_needs_no_compiler():
    assert targets.missing_compiler(targets.read("cpu:8")) == ""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("v5e-16", "the TPU compiler is not installed (pip install 'luthier[plan-tpu]', Linux"),
        ("h100:8", "the GPU compiler is not installed (pip install 'luthier[plan-gpu]', Linux"),
    ],
)
def test_an_absent_compiler_is_reported_with_its_extra(monkeypatch, text, line):
    monkeypatch.setattr(targets, "_is_installed", lambda module: False)
    assert targets.missing_compiler(targets.read(text)).startswith(line)
    with pytest.raises(BadInput, match="or plan with --level shapes"):
        targets.devices(targets.read(text))


def test_the_environment_shows_no_accelerator_and_asks_nobody():
    made = targets.environment(
        targets.read("v5e-16"), {"PATH": "p", "CUDA_VISIBLE_DEVICES": "0", "XLA_FLAGS": "x"}
    )
    assert made["PATH"] == "p"
    assert made["JAX_PLATFORMS"] == "cpu"
    assert made["CUDA_VISIBLE_DEVICES"] == ""
    assert made["TPU_SKIP_MDS_QUERY"] == "1"
    assert made["ALLOW_MULTIPLE_LIBTPU_LOAD"] == "1"
    assert made["XLA_FLAGS"] == ""
    assert targets.environment(targets.read("cpu:4"), {})["XLA_FLAGS"].endswith("device_count=4")


def test_stand_ins_are_virtual_devices():
    assert targets.stand_ins(targets.read("v5e-8")) == jax.devices("cpu")[:8]
    with pytest.raises(BadInput, match="needs 512 virtual devices, and JAX runs with"):
        targets.stand_ins(targets.read("v5p-1024"))


def test_a_gpu_is_described_for_the_compiler():
    description = targets.description(targets.CHIPS["h100"])
    assert "core_count: 132" in description
    assert "cuda_compute_capability { major: 9 minor: 0 }" in description
    assert 'device_description_str: "NVIDIA H100 80GB HBM3"' in description


@pytest.fixture
def described(monkeypatch, tmp_path):
    """Have the compilers' packages found, and return what JAX is asked to describe."""
    for name in ("libtpu", "jax_plugins/xla_cuda13"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    # First set and then taken away, so that what the search imports does not outlive the test.
    monkeypatch.setitem(sys.modules, "jax_plugins", sys)
    monkeypatch.delitem(sys.modules, "jax_plugins")
    monkeypatch.syspath_prepend(tmp_path)
    found = []

    def describe(**options):
        found.append(options)
        return types.SimpleNamespace(devices=["one", "two"])

    monkeypatch.setattr(topologies, "get_topology_desc", describe)
    return found


def test_hosts_of_a_slice_are_described_as_they_are_cut(described):
    assert targets.devices(targets.read("v5e-1")) == ["one", "two"]
    targets.devices(targets.read("2xv5e-16"))
    targets.devices(targets.read("v4-8"))
    one, slices, plane = described
    assert one["platform"] == "tpu"
    assert one["chips_per_host_bounds"] == (1, 1, 1)
    assert "num_slices" not in one
    assert slices["num_slices"] == 2
    assert slices["chips_per_host_bounds"] == (2, 2, 1)
    assert plane["chip_config_name"] == "megacore"


def test_a_gpu_slice_is_described_without_a_gpu(described):
    targets.devices(targets.read("h100:8"))
    (options,) = described
    assert options["platform"] == "cuda"
    assert options["topology"] == options["topology_name"]
    assert options["target_config"] == targets.description(targets.CHIPS["h100"])


def test_a_slice_that_the_compiler_does_not_know_is_refused_in_one_line(described, monkeypatch):
    def refuse(**options):
        raise RuntimeError("INVALID_ARGUMENT: no such topology\nat tpu.cc:1")

    monkeypatch.setattr(topologies, "get_topology_desc", refuse)
    with pytest.raises(BadInput) as caught:
        targets.devices(targets.read("v5e-4"))
    line = "--slice: the compiler does not know v5e-4: INVALID_ARGUMENT: no such topology"
    assert str(caught.value) == line
