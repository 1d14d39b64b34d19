import jax
import pytest

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
