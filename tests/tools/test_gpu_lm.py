"""The bench of language models on GPUs: its shapes, how it reads traces, and that it runs."""

import json
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from tools.bench.gpu_lm import shapes, traces
from tools.bench.gpu_lm.traces import Event

ROOT = Path(__file__).resolve().parents[2]


def test_sizes_are_what_names_say():
    sizes = {name: shape.parameters for name, shape in shapes.SHAPES.items()}
    assert sizes["gpt2-124m"] == 123_689_472  # 124,439,808 with positions, unpadded
    assert sizes["llama32-1b"] == 1_235_814_400
    assert round(sizes["gpt2-350m"] / 1e6) == 354
    assert round(sizes["gpt2-1b"] / 1e9, 1) == 1.3


def test_the_convention_of_palm():
    shape = shapes.SHAPES["gpt2-124m"]
    assert shape.palm_flops(1024) == 6 * shape.parameters + 12 * 12 * 768 * 1024


@pytest.mark.parametrize("length", [256, 1024, 8192])
def test_documents_of_a_packed_row_are_uneven_and_fill_it(length):
    for row in range(8):
        ends = shapes.ends(length, row)
        sizes = {b - a for a, b in zip([0, *ends], ends, strict=False)}
        assert ends[-1] == length
        assert len(ends) == shapes.NUM_DOCUMENTS
        assert min(sizes) > 0
        assert len(sizes) > 3


NAMES = {
    "__cudnn$fmhaSoftmax": "attention",
    "cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7": "attention",
    "nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_NNT cublas-gemm.3": "matmul",
    "sm90_xmma_gemm_bf16bf16_bf16f32_f32_tn_n": "matmul",
    "gemm_fusion_dot.12": "matmul",
    "dot.3 dot.3": "matmul",
    "ncclDevKernel_AllGather_RING_LL all-gather-start.1": "collective",
    "MemcpyD2D copy.4": "copy",
    "input_reduce_select_fusion_2": "fusion",
    "loop_add_fusion": "fusion",
    "while.4": "other",
}


@pytest.mark.parametrize(("name", "expected"), NAMES.items())
def test_what_a_kernel_is_by_its_name(name, expected):
    assert traces.category(name) == expected


def test_where_the_time_goes():
    events = [
        Event("dot.1", "1", 0, 40),
        Event("while.1", "2", 60, 100),  # the loop itself takes 10 of it
        Event("loop_add_fusion", "2", 60, 90),
        Event("MemcpyD2D", "1", 70, 90),
    ]
    found = traces.shares(events)
    assert found.pop("idle") == pytest.approx(0.2)
    assert found == pytest.approx({"matmul": 0.32, "fusion": 0.24, "copy": 0.16, "other": 0.08})
    assert traces.longest(events, 1) == [("matmul", "dot.1", pytest.approx(0.4))]
    assert traces.shares([]) == {}


def test_a_trace_of_this_device_is_read(tmp_path):
    run = jax.jit(lambda x: jnp.tanh(x @ x) @ x)
    run(jnp.ones((256, 256))).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        run(jnp.ones((256, 256))).block_until_ready()
    found = traces.shares(traces.read(tmp_path))
    assert found["matmul"] > 0
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.slow
def test_it_runs_from_end_to_end_at_toy_size(tmp_path):
    words = ["--toy", "--shapes", "toy-llama", "--lengths", "256", "--rounds", "1", "--steps", "1"]
    words += ["--variant", "no fusion=compiler.cpu={'xla_disable_hlo_passes': 'fusion'}"]
    words += ["--json", str(tmp_path / "found.json")]
    command = [sys.executable, str(ROOT / "tools" / "bench_gpu_lm.py"), *words]
    subprocess.run(command, check=True, capture_output=True)
    found = json.loads((tmp_path / "found.json").read_text())
    sides = [row["side"] for row in found["rows"]]
    assert sides == ["luthier", "luthier, packed", "luthier, no fusion"]
    (profile,) = found["profiles"]
    assert profile["matmul_flops"] > 0
    assert 0 <= profile["shares"]["idle"] < 1
