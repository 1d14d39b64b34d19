"""A corpus that lives in a bucket: prepared there, and trained on by processes that are killed."""

import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import processes

from tests import object_stores

STEPS = 30
CACHE_BYTES = 1 << 20


def data(place):
    packing = "packing=luthier.data.Concatenate(), tokenizer=luthier.data.Bytes()"
    return (
        f"data:=luthier.data.Prepared({place!r}, length=32, {packing})",
        f"training.steps={STEPS}",
        "checkpoints.every.count=5",
        "evaluations={}",
    )


def prepare(folder, place):
    command = [sys.executable, "-m", "luthier", "data", "prepare", place, "--shards", "8"]
    command += ["--experiment", "configs.lm.quickstart", "--processes", "1"]
    subprocess.run(command, cwd=folder, env=processes.environment(), check=True)


def kill(folder, step, *arguments):
    """Train, and kill the launcher and its processes after a step."""
    process = subprocess.Popen(
        processes.command(*arguments),
        cwd=folder,
        env=processes.environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while processes.last_step(folder) < step or not processes.committed(folder):
        assert process.poll() is None
        time.sleep(0.05)
    children = pathlib.Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    for each in (process.pid, *map(int, children)):
        os.kill(each, signal.SIGKILL)
    process.wait()


@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(("scheme", "count"), [("gs", 1), ("s3", 2)])
def test_a_run_on_a_bucket_has_the_losses_of_one_on_a_disk(tmp_path, monkeypatch, scheme, count):
    objects, sizes = {}, []

    def before_read(key, num_bytes):
        if key.endswith("/tokens.npy"):
            sizes.append(num_bytes)
            if len(sizes) % 50 == 7:
                return 503  # TensorStore repeats the request
        return None

    path = os.pathsep.join((str(processes.REPOSITORY / "framework"), str(processes.REPOSITORY)))
    monkeypatch.setattr(processes, "environment", lambda: os.environ | {"PYTHONPATH": path})
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("LUTHIER_DATA_CACHE_BYTES", str(CACHE_BYTES))
    with object_stores.serving({"lab": objects}, before_read=before_read) as (address, _):
        for name, value in object_stores.environment(address).items():
            monkeypatch.setenv(name, value)
        folders = [tmp_path / "disk", tmp_path / "bucket"]
        for folder, place in zip(folders, ("corpus", f"{scheme}://lab/corpus"), strict=True):
            folder.mkdir()
            prepare(folder, place)
        on_disk = folders[0] / "corpus"
        for path in on_disk.rglob("*.*"):
            assert objects[f"corpus/{path.relative_to(on_disk).as_posix()}"] == path.read_bytes()
        several = ("--processes", str(count), "--devices", f"cpu:{count}") if count > 1 else ()
        processes.train(folders[0], *data("corpus"), *several)
        streamed = (*data(f"{scheme}://lab/corpus"), *several)
        kill(folders[1], 12, *streamed)
        processes.train(folders[1], *streamed)
    wanted, found = (processes.losses(folder) for folder in folders)
    assert [step for step, _ in found] == list(range(1, STEPS + 1))
    assert found == wanted
    assert sizes
    (cache,) = (tmp_path / "cache" / "luthier" / "pieces").iterdir()
    assert cache.stat().st_size <= CACHE_BYTES
