"""Measurements on a lent GPU: stages that are cut off, what they run, tables, traces."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from luthier import graph as graphs
from tools import gpu_hour
from tools.bench.gpu_hour import cases, experiment, tables, traces
from tools.bench.gpu_hour.cases import Case
from tools.bench.gpu_hour.traces import Event
from tools.gpu_hour import Stage

ROOT = Path(__file__).resolve().parents[2]


class Snippets(Stage):
    """A stage whose cases are lines of Python, instead of models."""

    def _snippet(self, case, folder):
        return self.result_of(["-c", case.overrides[0]], folder / "log")


def snippet(name, code="print('{\"answer\": 1}')"):
    return Case(name, "snippet", (code,))


def stage(folder, deadline=60.0):
    return Snippets(2, folder / "out", deadline, True, folder / "scratch")


def recorded(folder):
    return [(r["key"], r["status"]) for r in gpu_hour.read([folder / "out" / "stage2.jsonl"])]


def is_alive(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_stage_runs_what_is_not_recorded_also_after_a_torn_line(tmp_path):
    first, second = snippet("first"), snippet("second", "raise SystemExit('out of memory')")
    assert stage(tmp_path).run([first, second])
    assert recorded(tmp_path) == [("first#0", "ok"), ("second#0", "failed")]
    path = tmp_path / "out" / "stage2.jsonl"
    with path.open("a") as file:
        file.write('{"case": "third", "key": "third#0", "sta')
    assert stage(tmp_path).run([first, second, snippet("third")])
    assert [key for key, _ in recorded(tmp_path)] == ["first#0", "second#0", "third#0"]
    found = gpu_hour.read([path])
    assert "out of memory" in found[1]["result"]["error"]
    for record in found:
        assert {"chip", "date", "versions"} <= {*record}
        assert record["command"][0].startswith("python -c")


@pytest.mark.full
def test_a_stage_ends_before_its_deadline_and_gives_up_what_never_fits(tmp_path):
    asked = [snippet("long", "import time; time.sleep(60)"), snippet("next")]
    for _ in range(2):
        start = time.monotonic()
        assert not stage(tmp_path, deadline=5.5).run(asked)
        assert time.monotonic() - start < 5.5
    assert stage(tmp_path).run(asked)  # cut twice, it stops nothing any more
    assert recorded(tmp_path) == [("long#0", "too long")] * 2 + [("next#0", "ok")]


@pytest.mark.full
def test_a_killed_stage_takes_its_child_along_and_its_case_runs_again(tmp_path):
    code = f"import os, time; open({str(tmp_path / 'pid')!r}, 'w').write(str(os.getpid())); "
    code += f"os.path.exists({str(tmp_path / 'again')!r}) or time.sleep(60); print('{{}}')"
    program = "import sys, pathlib; import test_gpu_hour as t; "
    program += "t.stage(pathlib.Path(sys.argv[1])).run([t.snippet('case', sys.argv[2])])"
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "framework", Path(__file__).parent)))
    }
    command = [sys.executable, "-c", program, str(tmp_path), code]
    with subprocess.Popen(command, cwd=ROOT, env=environment) as process:
        while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGKILL)
    child, end = int((tmp_path / "pid").read_text()), time.monotonic() + 10
    while is_alive(child):
        assert time.monotonic() < end
        time.sleep(0.02)
    assert not (tmp_path / "out" / "stage2.jsonl").exists()
    (tmp_path / "again").touch()
    assert stage(tmp_path).run([snippet("case", code)])
    assert recorded(tmp_path) == [("case#0", "ok")]


def test_every_change_that_is_measured_can_be_made():
    sizes = cases.SIZES[False]
    own = experiment.SIZES[sizes["name"]]
    assert (sizes["vocab"], sizes["length"]) == (own.vocab_size, own.length)
    assert sizes["heads"] == own.num_heads
    for size in ("gpt2", "toy"):
        graphs.validate(experiment.experiment(size), ["tools"])
    for name, override in cases.VARIANTS:
        words = [*cases.BASE, cases.CUDNN.format(1), override.format(**sizes)]
        base = graphs.apply(experiment.experiment(), words[:-1], shelves=("luthier.recipes",))
        changed = graphs.apply(experiment.experiment(), words, shelves=("luthier.recipes",))
        graphs.validate(changed, ["tools"])
        assert graphs.diff(base, changed), name


def test_tokens_of_zipf_are_the_same_for_both_sides_and_uneven(tmp_path):
    experiment.write(tmp_path, "toy", 8)
    batches, size = np.load(tmp_path / "batches.npy"), experiment.SIZES["toy"]
    assert batches.shape == (8, size.rows, size.length + 1)
    counts = np.sort(np.bincount(batches.ravel(), minlength=size.vocab_size))[::-1]
    ranks = 1 / (np.arange(size.vocab_size) + 2.7)
    assert counts[0] / counts.sum() == pytest.approx(ranks[0] / ranks.sum(), rel=0.2)
    rows = experiment.Zipf(size.vocab_size, size.length).iterator(
        global_batch_size=size.rows, seed=experiment.SEED
    )
    batch = next(rows)
    np.testing.assert_array_equal(batch["inputs"], batches[0, :, :-1])
    np.testing.assert_array_equal(batch["targets"], batches[0, :, 1:])


def record(case, stage, result, status="ok", **more):
    made = {"case": case, "key": f"{case}#0", "stage": stage, "status": status, "round": 0}
    made |= {"toy": False, "result": result, "command": [], "chip": "NVIDIA H200"}
    return made | {"versions": {"jax": "0.11.2"}, "date": "2026-11-23T00:00:00+00:00"} | more


def whole():
    losses = [11 - 0.01 * step for step in range(300)]
    ours = {"losses": losses, "step_seconds": 0.08, "train_seconds": 60.0, "peak_bytes": 2**34}
    ours |= {"resumed": 151, "resumed_same": 151, "killed_after": 151}
    theirs = {"losses": [x + 0.5 * (i == 7) for i, x in enumerate(losses)]}
    theirs |= {"step_seconds": 0.1, "train_seconds": 35.0, "peak_bytes": None}
    base = {"step_seconds": 0.08, "tokens_per_step": 32768, "flops_per_step": 3.2e13}
    base |= {"peak_bytes": 2**34}
    return [
        record("ceilings", 1, {"square": 8e14, "copy_bytes": 3e12, "device": "x"}),
        record("base", 2, base),
        record("64 rows", 2, base | {"step_seconds": 0.1, "tokens_per_step": 65536}),
        record("einsum attention", 2, {"error": "Traceback\nRESOURCE_EXHAUSTED"}, "failed"),
        record(tables.LUTHIER, 3, ours),
        record(tables.TORCH, 3, theirs),
    ]


def test_the_first_table_shows_both_sides_over_the_same_batches(tmp_path):
    text = tables.write(whole(), tmp_path, tmp_path / "published")
    first = text.split("\n\n")[0].splitlines()
    assert first[2] == "| luthier train | 300 | 80 | 60 | 11 | 8.01 | 16 |"
    assert first[3] == "| nanoGPT | 300 | 100 | 35 | 11 | 8.01 | - |"
    assert "The losses differ by at most 0.5 in any step." in text
    assert text.count("*") > 50  # the curves lie over each other, all but at step 8
    assert "| 64 rows | 100 | - | 655,360 | 1.6 | 16 | 64.69 | 80 |" in text
    assert "einsum attention#0: RESOURCE_EXHAUSTED" in text
    assert "| copy_bytes | 3000 | GB/s |" in text
    assert "NVIDIA H200, 2026-11-23; jax 0.11.2." in text


def test_tables_are_of_one_chip_and_no_toy_is_published(tmp_path, capsys):
    lines = tmp_path / "stage1.jsonl"
    gpu_hour.append(lines, record("versions", 1, {}))
    gpu_hour.append(lines, record("versions", 1, {}, chip="NVIDIA H100 80GB HBM3"))
    assert gpu_hour.main(["merge", str(lines), "--results", str(tmp_path)]) == 2
    assert "of one chip" in capsys.readouterr().err
    toy = tmp_path / "toy.jsonl"
    gpu_hour.append(toy, record("versions", 1, {}, toy=True))
    assert gpu_hour.main(["merge", str(toy)]) == 2
    assert "toy sizes measure nothing" in capsys.readouterr().err
    assert gpu_hour.main(["merge", str(toy), str(toy), "--results", str(tmp_path)]) == 0
    assert (tmp_path / "gpu_hour.md").read_text().startswith("Not measured yet")


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


@pytest.mark.full
def test_a_trace_of_this_device_is_read(tmp_path):
    run = jax.jit(lambda x: jnp.tanh(x @ x) @ x)
    run(jnp.ones((256, 256))).block_until_ready()
    with jax.profiler.trace(str(tmp_path)):
        run(jnp.ones((256, 256))).block_until_ready()
    found = traces.shares(traces.read(tmp_path))
    assert found["matmul"] > 0
    assert sum(found.values()) == pytest.approx(1)


@pytest.mark.slow
def test_a_killed_and_resumed_run_is_measured_at_toy_size(tmp_path):
    command = [sys.executable, str(ROOT / "tools" / "gpu_hour.py"), "stage", "3", "--toy"]
    command += ["--out", str(tmp_path / "out"), "--scratch", str(tmp_path / "scratch")]
    subprocess.run(command, check=True)
    found = {r["case"]: r for r in gpu_hour.read([tmp_path / "out" / "stage3.jsonl"])}
    result = found[tables.LUTHIER]["result"]
    assert len(result["losses"]) == gpu_hour.STEPS[True]
    assert result["resumed"] == result["resumed_same"] > 0
