"""Runs with two tiers of checkpoints whose process is really told to go, or really killed."""

import json
import signal
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import processes
from processes import kill, losses, run_directory, train, train_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    directory = tmp_path_factory.mktemp("undisturbed")
    train(directory, "training.steps=40", "checkpoints.every.count=12")
    return losses(directory)


def _words(tmp_path, copying):
    fast = f"luthier.checkpoint.FastTier('{tmp_path}/fast', luthier.durations.Steps(4))"
    return (
        "training.steps=40",
        "checkpoints.every.count=12",
        f"checkpoints.fast:={fast}",
        f"checkpoints.copying:=luthier.checkpoint.{copying}()",
    )


def _steps(folder):
    return sorted(int(path.parent.name) for path in folder.rglob("commit.json"))


@pytest.mark.parametrize("copying", ["HostCopy", "DeviceCopy"])
def test_sigterm_saves_this_very_step_into_the_durable_tier(tmp_path, undisturbed, copying):
    words = _words(tmp_path, copying)
    process = train_until(tmp_path, 17, signal.SIGTERM, *words)
    assert process.returncode == 75
    run = run_directory(tmp_path)
    status = json.loads((run / "status.json").read_text())
    assert status["step"] == max(_steps(run / "checkpoints")) >= 17
    train(tmp_path, *words)
    again = [row for row in processes.lines(tmp_path) if row["kind"] == "header"]
    assert again[1]["step"] == status["step"], "no step is lost"
    assert losses(tmp_path) == undisturbed, "bit-identical losses"
    assert _steps(tmp_path / "fast") == [], "a finished run leaves nothing there"


def test_sigkill_goes_on_from_the_fast_tier(tmp_path, undisturbed):
    words = _words(tmp_path, "HostCopy")
    process = kill(tmp_path, 22, *words)
    assert process.returncode == -signal.SIGKILL
    saved = [*_steps(tmp_path / "fast"), *_steps(run_directory(tmp_path) / "checkpoints")]
    train(tmp_path, *words)
    again = [row for row in processes.lines(tmp_path) if row["kind"] == "header"]
    assert again[1]["step"] == max(saved) >= 12
    assert max(_steps(tmp_path / "fast"), default=0) == 0
    assert losses(tmp_path) == undisturbed, "bit-identical losses"
