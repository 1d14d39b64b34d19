"""A bucket that is a folder, and a run's directory."""

import pytest

from luthier.records.object_storage import Bucket


@pytest.fixture
def bucket(tmp_path):
    return Bucket(f"file://{tmp_path}/bucket")


@pytest.fixture
def run(tmp_path):
    """Return the directory of a run that has begun."""
    path = tmp_path / "runs" / "lab" / "ab12"
    (path / "checkpoints").mkdir(parents=True)
    (path / "config.json").write_text('{"a": 1}')
    (path / "status.json").write_text('{"status": "running"}')
    (path / "metrics.jsonl").write_text('{"step": 1}\n')
    (path / "lock").write_text("me")
    return path


@pytest.fixture
def save(run):
    """Return what saves a checkpoint."""

    def save(step, text="weights", is_whole=True):
        folder = run / "checkpoints" / str(step) / "state"
        folder.mkdir(parents=True)
        (folder / "array").write_text(text)
        if is_whole:
            (folder.parent / "commit.json").write_text("{}")

    return save
