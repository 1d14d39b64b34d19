import io
import json

import jax
import pytest

from luthier.cli import main
from luthier.cli.commands import plan
from luthier.plan.targets import topologies

TINY = "trials.tiny"


@pytest.fixture(autouse=True)
def _own(monkeypatch, tmp_path, project):
    monkeypatch.setitem(main.COMMANDS, "plan", "tell what an experiment would cost on a slice")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    jax.devices()  # so that no test chooses how many devices the session has


def test_shapes_are_told_in_this_process(capsys):
    assert main.main(["plan", TINY, "--slice", "v5e-4", "--level", "shapes", "--sharding"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("tiny on v5e-4: 4 x TPU v5 lite\n")
    assert "fits: needs " in out
    assert "embedding.table" in out


def test_without_the_compiler_one_line_says_so(capsys, monkeypatch):
    monkeypatch.setattr(topologies, "_is_installed", lambda module: False)
    assert main.main(["plan", TINY, "--slice", "h100:4"]) == 0
    (note, *_) = [n for n in capsys.readouterr().out.splitlines() if n.startswith("note: ")]
    assert note.startswith("note: planned by shapes alone: the GPU compiler is not installed")


def test_a_step_is_compiled_and_written_as_a_page(capsys, project):
    words = ["plan", TINY, "--slice", "cpu:4", "--json", "--html", "plan.html"]
    assert main.main(words) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["subject"]["level"], report["fits"]) == ("compile", True)
    assert report["memory"]["bytes_per_device"]["temporaries"] > 0
    assert "<title>tiny on cpu:4</title>" in (project / "plan.html").read_text()


def test_a_search_lists_overrides(capsys):
    words = ["plan", TINY, "--slice", "v5e-4", "--level", "shapes", "--search"]
    assert main.main(words) == 0
    out = capsys.readouterr().out
    assert "found by search" in out
    assert "parallelism.mesh." in out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([TINY], "no slice is named; write --slice v5e-16, h100:8 or cpu:8"),
        ([TINY, "--slice", "v5f-4"], "--slice: no device is called 'v5f'; did you mean v5p"),
        ([TINY, "--slice", "cpu:4", "model.dims=3"], "did you mean"),
        (["--slice", "cpu:4"], "no experiment is named"),
        (
            [TINY, "--slice", "v5e-4", "--level", "shapes", "--html", "no/such/x.html"],
            "cannot write",
        ),
    ],
)
def test_bad_input_is_one_line(words, message, capsys):
    assert main.main(["plan", *words]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert "Traceback" not in err


def test_all_problems_come_at_once(capsys):
    assert main.main(["plan", TINY, "--slice", "v5f-4", "model.dims=3"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2


def test_progress_tells_the_time_that_is_left(monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    monkeypatch.setattr("sys.stderr", shown := Terminal())
    with plan._Progress() as progress:
        progress.tell({"phase": "compile", "seconds_left": 40.4})
        assert progress.line() == "compile, about 40 s left"
        progress.tell({"phase": "shapes", "seconds_left": None})
        assert progress.line() == "shapes"
    assert shown.getvalue().endswith("\r\x1b[K")
