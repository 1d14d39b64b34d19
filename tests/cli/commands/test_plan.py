import io
import json
import re
import shlex
from pathlib import Path

import jax
import pytest

from luthier.cli import COMMANDS, main
from luthier.cli.commands import plan
from luthier.folders import manual_pages
from luthier.planner import targets

TINY = "trials.tiny"
ROOT = Path(__file__).resolve().parents[3]
PAGE = Path(manual_pages()["plan"]).read_text(encoding="utf-8")


@pytest.fixture(autouse=True)
def _own(monkeypatch, tmp_path, project):
    monkeypatch.setitem(COMMANDS, "plan", "tell what an experiment would cost on a slice")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.devices()  # so that no test chooses how many devices the session has


def test_shapes_are_planned_in_this_process(capsys):
    assert main(["plan", TINY, "--slice", "v5e-4", "--level", "shapes", "--sharding"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny on v5e-4: 4 x TPU v5 lite\n")
    assert "fits by estimate: needs an estimated " in out
    assert "embedding.table" in out


CHIP = (
    "luthier.planner.GpuChip(name='h20', device_kind='NVIDIA H20', memory_bytes=102625181696, "
    "memory_bandwidth=4.0e12, peak_flops={'bfloat16': 148e12, 'float32': 44e12}, "
    "link_bandwidth=450e9, network_bandwidth=50e9, source='data sheet', usable=0.5, "
    "compute_capability=(9, 0), num_cores=78, fpus_per_core=128, "
    "shared_memory_per_core=233472, l2_cache_bytes=62914560, clock_ghz=1.98)"
)


def test_a_device_that_is_in_no_table_is_a_node(capsys):
    slice = f"luthier.planner.GpuSlice(chip={CHIP}, devices_per_host=4)"
    assert main(["plan", TINY, "--slice", slice, "--level", "shapes", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["subject"]["slice"] == "h20:4"
    assert report["subject"]["devices"] == {"count": 4, "kind": "NVIDIA H20", "slices": 1}
    assert report["memory"]["limit_bytes"] == 102_625_181_696 // 2
    # Float32 by default is TF32 on a GPU; this one tells no such peak, so it is that of bfloat16.
    seconds = report["flops"]["full"] / (4 * 148e12)
    assert report["step"]["seconds_by_term"]["compute"] == pytest.approx(seconds, rel=1e-6)
    wrong = slice.replace("usable=0.5", "usable=1.5")
    assert main(["plan", TINY, "--slice", wrong, "--level", "shapes"]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("luthier: chip.usable: 1.5 is out of range [set by --slice")
    assert "GpuChip needs 0 < usable <= 1" in line


@pytest.mark.slow
def test_a_device_that_is_in_no_table_is_compiled_for(capsys):
    reason = targets.missing_compiler(targets.read("h100:4"))
    if reason:
        pytest.skip(reason)
    slice = f"luthier.planner.GpuSlice(chip={CHIP}, devices_per_host=4)"
    assert main(["plan", TINY, "--slice", slice, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["subject"]["level"], report["fits"]) == ("compile", True)
    assert report["step"]["seconds_by_term"]["memory"] > 0


def test_without_the_compiler_one_line_says_so(capsys, monkeypatch):
    monkeypatch.setattr(targets, "_is_installed", lambda module: False)
    assert main(["plan", TINY, "--slice", "h100:4"]) == 0
    (note, *_) = [n for n in capsys.readouterr().out.splitlines() if n.startswith("note: ")]
    assert note.startswith("note: planned by shapes alone: the GPU compiler is not installed")


@pytest.mark.full
def test_a_step_is_compiled_and_written_as_a_page(capsys, project):
    words = ["plan", TINY, "--slice", "cpu:4", "--json", "--html", "plan.html"]
    assert main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["subject"]["level"], report["fits"]) == ("compile", True)
    assert report["memory"]["bytes_per_device"]["temporaries"] > 0
    assert "<title>tiny on cpu:4</title>" in (project / "plan.html").read_text()


@pytest.mark.full
def test_a_search_lists_overrides(capsys):
    words = ["plan", TINY, "--slice", "v5e-4", "--level", "shapes", "--search"]
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "found by search" in out
    assert "parallelism.mesh." in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([TINY], "no target is given; write --slice v5e-16, h100:8 or cpu:8"),
        ([TINY, "--slice", "v5f-4"], "--slice: no device is called 'v5f'; did you mean v5p"),
        ([TINY, "--slice", "cpu:4", "model.dims=3"], "did you mean"),
        (["--slice", "cpu:4"], "no experiment is given"),
        (
            [TINY, "--slice", "v5e-4", "--level", "shapes", "--html", "no/such/x.html"],
            "cannot write",
        ),
    ],
)
def test_bad_input_is_one_line(words, message, capsys):
    assert main(["plan", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


@pytest.mark.full
def test_a_plan_names_the_argument_that_set_a_value(capsys):
    words = ["model.vocab_size=100", "evaluations.held_out.weights=EMA"]
    assert main(["plan", TINY, "--slice", "cpu:2", *words]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 2
    assert all(any(f": {word}]" in line for line in lines) for word in words)


def test_all_problems_come_at_once(capsys):
    assert main(["plan", TINY, "--slice", "v5f-4", "model.dims=3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_progress_shows_the_time_left(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", shown := Terminal())
    with plan._Progress() as progress:
        progress.update({"phase": "compile", "seconds_left": 40.4})
        assert progress.line() == "compile, about 40 s left"
        progress.update({"phase": "shapes", "seconds_left": None})
        assert progress.line() == "shapes"
    assert shown.getvalue().endswith("\r\x1b[K")


@pytest.mark.slow
@pytest.mark.parametrize("command", re.findall(r"^    luthier (plan .*)$", PAGE, re.MULTILINE))
def test_every_command_of_the_page_works(command, monkeypatch, tmp_path):
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    assert main(shlex.split(command)) == 0
