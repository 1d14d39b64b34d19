"""What a start does about checkpoints that are gone, unreadable, foreign, or never made."""

import errno
import json
import math
import os
import re
import shutil
import signal
import subprocess
import sys
import time

import jax
import numpy as np
import pytest

from luthier import graph as graphs
from luthier import planner, trainer
from luthier.checkpoint import Store
from luthier.checkpoint import commit as commit_lib
from luthier.checkpoint import files as files_lib
from luthier.cli import main
from luthier.errors import (
    CheckpointError,
    DataError,
    LockLost,
    RunError,
    TrainingStopped,
    VersionError,
)
from luthier.records import RunDirectory
from luthier.storage import list_trash, seal
from luthier.trainer import INTERRUPTED, PREEMPTED, CompiledStep, Request, Watcher, open_session

STOPPED = "training.stop=luthier.durations.Steps(11)"


class Leaving(Watcher):
    """Asks to leave after a number of steps, as a signal does."""

    def __init__(self, steps, reason=INTERRUPTED):
        self._steps, self._reason = steps, reason

    @property
    def requested(self):
        self._steps -= 1
        return self._reason if self._steps < 0 else None


def interrupted(graph, steps=7, reason=INTERRUPTED, **request):
    plan = planner.make(graph, jax.devices()[:1])
    return trained(graph, plan, CompiledStep(plan.program), Leaving(steps, reason), **request)


def trained(graph, plan, step, watcher, **request):
    with open_session(graph, plan, step, Request(**request), watcher) as session:
        session.run()
    return session.outcome


def rows(result, kind):
    lines = (result.directory / "metrics.jsonl").read_text().splitlines()
    return [row for row in map(json.loads, lines) if row["kind"] == kind]


def content(directory):
    """Every file of a run, none of which a start may touch when it is refused."""
    return {
        str(path.relative_to(directory)): path.read_bytes() if path.is_file() else b""
        for path in sorted(directory.rglob("*"))
        if path.name != "lock"
    }


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    """A run that was interrupted at step 7, with checkpoints of steps 5 and 7."""
    root = tmp_path_factory.mktemp("stopped")
    return interrupted(tiny(root))


@pytest.fixture
def run(stopped, tiny, tmp_path):
    """Return a copy of that run, and the graph that continues it."""
    name = stopped.directory.parent.name
    shutil.copytree(stopped.directory, tmp_path / name / stopped.directory.name)
    return tmp_path / name / stopped.directory.name, tiny(tmp_path)


@pytest.mark.full
def test_checkpoints_that_are_gone_are_missed_and_nothing_is_touched(run):
    directory, graph = run
    shutil.rmtree(directory / "checkpoints")
    before = content(directory)
    with pytest.raises(CheckpointError, match="saved at step 7, found none in") as refusal:
        trainer.run(graph)
    assert "is the disk mounted?" in str(refusal.value)
    assert "--from-scratch" in str(refusal.value)
    assert refusal.value.exit_code == 2
    assert content(directory) == before

    result = trainer.run(graph, from_scratch=True)
    assert result.directory == directory
    assert [row["step"] for row in rows(result, "step")] == list(range(1, 13))
    notices = " ".join(row["text"] for row in rows(result, "notice"))
    assert "lines of metrics.jsonl from the start are trained again; they stay in" in notices
    assert not list_trash(directory), "step 12 is saved: the record of 7 steps has gone"


def test_commit_files_that_are_gone_do_not_cost_the_arrays(run):
    directory, graph = run
    for path in (directory / "checkpoints").glob("*/commit.json"):
        path.unlink()
    before = content(directory)
    with pytest.raises(CheckpointError, match=r"\(without commit.json: 5, 7\)"):
        trainer.run(graph)
    assert content(directory) == before


@pytest.mark.full
def test_one_read_error_is_tried_again(run, monkeypatch):
    graph = run[1]
    real, failed = open, []

    def flaky(path, *arguments, **options):
        if "checkpoints/7/arrays" in str(path) and not failed:
            failed.append(path)
            raise OSError(errno.EIO, "Input/output error", str(path))
        return real(path, *arguments, **options)

    monkeypatch.setattr(files_lib, "open", flaky, raising=False)
    result = trainer.run(graph)
    assert failed
    assert rows(result, "header")[1]["step"] == 7
    assert not any("damaged" in row["text"] for row in rows(result, "notice"))


def test_a_disk_that_keeps_refusing_ends_the_start_and_changes_nothing(run, monkeypatch):
    directory, graph = run

    def broken(path, *arguments, **options):
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    monkeypatch.setattr(files_lib, "open", broken, raising=False)
    monkeypatch.setattr("luthier.checkpoint.store._RETRY_SECONDS", (0.01,))
    before = content(directory)
    with pytest.raises(CheckpointError, match=r"cannot be read now: .*Stale file") as refusal:
        trainer.run(graph)
    assert "nothing was changed" in str(refusal.value)
    assert content(directory) == before


def test_a_checkpoint_of_another_version_is_refused_and_kept(run):
    directory, graph = run
    path = directory / "checkpoints" / "7" / "commit.json"
    whole = json.loads(path.read_text())
    del whole["checksum"]
    for change in ({"format": 2}, {"device_sums_of_the_future": {}}):
        content_ = whole | change
        path.write_text(json.dumps({"checksum": commit_lib._text_checksum(content_), **content_}))
        before = content(directory)
        with pytest.raises(VersionError, match=r"7 was written by luthier .*that this version"):
            trainer.run(graph)
        assert content(directory) == before


@pytest.mark.full
def test_a_damaged_checkpoint_and_its_record_wait_in_the_trash(run):
    directory, graph = run
    largest = max(
        (directory / "checkpoints" / "7" / "arrays").rglob("*"),
        key=lambda path: path.stat().st_size,
    )
    damaged = bytearray(largest.read_bytes())
    damaged[len(damaged) // 2] ^= 4
    largest.write_bytes(damaged)
    before = (directory / "metrics.jsonl").read_bytes()
    result = interrupted(graph, steps=1)
    assert result.step == 6
    (checkpoint,) = list_trash(directory / "checkpoints")
    assert checkpoint.path.name == "7"
    assert "7 is damaged" in checkpoint.reason
    (record,) = list_trash(directory)
    assert record.path.read_bytes() == before
    trainer.run(graph)
    assert not list_trash(directory / "checkpoints")
    assert not list_trash(directory)


def test_a_run_whose_folder_is_moved_ends_and_stays_in_one_piece(tiny, tmp_path):
    graph = tiny(tmp_path / "runs")
    plan = planner.make(graph, jax.devices()[:1])
    moved = tmp_path / "moved"
    places, taken = [], []

    class Moving(CompiledStep):
        def __call__(self, state, batch):
            taken.append(1)
            if len(taken) == 7:
                places.extend(tmp_path.glob("runs/quickstart/*"))
                deadline = time.monotonic() + 60
                while not (places[0] / "checkpoints" / "5" / "commit.json").exists():
                    assert time.monotonic() < deadline
                    time.sleep(0.01)
                places[0].rename(moved)
            return super().__call__(state, batch)

    with pytest.raises(LockLost, match="was moved or deleted while it was in use"):
        trained(graph, plan, Moving(plan.program), Watcher())
    assert not places[0].exists()
    moved.rename(places[0])
    result = trainer.run(graph)
    assert (result.directory, result.status) == (places[0], "finished")
    assert [row["step"] for row in rows(result, "step")] == list(range(1, 13))


@pytest.mark.full
def test_a_run_without_checkpoints_is_never_begun_again_over_its_record(tiny, tmp_path):
    graph = tiny(tmp_path, "checkpoints=None")
    first = interrupted(graph, reason=PREEMPTED)
    assert first.exit_code == 1, "a queue must not start it again and again"
    assert "to resume" not in first.message
    assert "keeps no checkpoints" in first.message
    (header,) = rows(first, "header")
    assert "keeps no checkpoints" in header["notes"]["checkpoints"]
    before = content(first.directory)
    with pytest.raises(RunError, match=r"keeps no checkpoints .* it cannot be continued; start a"):
        trainer.run(graph, run=first.directory.name)
    second = trainer.run(graph)
    assert second.directory.name == f"{first.directory.name}-2"
    assert content(first.directory) == before
    assert any("cannot be continued; this is" in row["text"] for row in rows(second, "notice"))


RUNNER = """
import pathlib, sys, time
factor, poison = float(sys.argv[1]), int(sys.argv[2])
real = time.perf_counter
time.perf_counter = lambda: real() * factor
import jax, jax.numpy as jnp
from luthier.trainer import loop
step, taken = loop.CompiledStep.__call__, []
def poisoned(self, leaves, batch):
    taken.append(1)
    if len(taken) == poison:
        leaves = tuple(
            x * jnp.nan if jnp.issubdtype(x.dtype, jnp.floating) else x for x in leaves
        )
    return step(self, leaves, batch)
if poison:
    loop.CompiledStep.__call__ = poisoned
from luthier.cli import main
sys.exit(main(["train", "defaults:experiment"]))
"""


@pytest.fixture
def defaults(tiny, tmp_path):
    """Return a function that starts a process that trains, with neither guard nor checkpoints set.

    Its clock is so much faster, which makes a quarter of an hour short.
    """
    graph = tiny(tmp_path / "runs", "training.steps=100000")
    del graph.checkpoints
    assert "guard" not in graph.training.__arguments__
    graph.evaluations = {}
    (tmp_path / "graph.json").write_text(graphs.to_json(graph))
    (tmp_path / "defaults.py").write_text(
        "import pathlib\nfrom luthier import graph\n"
        "def experiment():\n    return graph.from_json(pathlib.Path('graph.json').read_text())\n"
    )
    (tmp_path / "runner.py").write_text(RUNNER)
    started = []

    def start(factor, poison=0):
        command = [sys.executable, "runner.py", str(factor), str(poison)]
        with (tmp_path / "output.txt").open("w") as output:
            process = subprocess.Popen(command, cwd=tmp_path, stdout=output, stderr=output)
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def _recorded(folder):
    paths = list(folder.glob("runs/*/*/metrics.jsonl"))
    if not paths:
        return []
    lines = paths[0].read_bytes().split(b"\n")[:-1]
    return [json.loads(line) for line in lines]


def _until(process, folder, is_there):
    for _ in range(1200):
        if found := is_there(_recorded(folder)):
            return found
        assert process.poll() is None, (folder / "output.txt").read_text()
        time.sleep(0.1)
    raise AssertionError("nothing came of it")


@pytest.mark.full
def test_a_run_that_sets_nothing_survives_sigkill(defaults, tmp_path):
    process = defaults(600)

    def trained_on(rows):
        saved = [row["step"] for row in rows if row["kind"] == "saved"]
        return saved and rows[-1]["step"] > saved[-1] + 5

    _until(process, tmp_path, trained_on)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    seconds = {
        row["step"]: row["values"]["seconds"]
        for row in _recorded(tmp_path)
        if row["kind"] == "step"
    }
    again = defaults(1)
    header = _until(again, tmp_path, lambda rows: [r for r in rows if r["kind"] == "header"][1:])
    assert header[0]["step"] > 0
    # A save is committed in the background: what is lost is the interval, and what that took.
    assert seconds[max(seconds)] - seconds[header[0]["step"]] < 2 * 900


@pytest.mark.full
def test_a_run_that_sets_nothing_ends_as_diverged_and_keeps_what_is_finite(defaults, tmp_path):
    process = defaults(10_000, poison=50)
    process.wait(timeout=300)
    output = (tmp_path / "output.txt").read_text()
    assert process.returncode == 1, output
    assert "Traceback" not in output
    assert "10 steps in a row had a non-finite or spiking gradient" in output
    (directory,) = (tmp_path / "runs").glob("*/*")
    assert RunDirectory(directory).read_status().status == "diverged"
    with Store(directory / "checkpoints") as store:
        finite = [s for s in store.steps() if math.isfinite(store.read(s).metrics["loss"])]
    assert finite
    assert max(finite) < 50
    trained = trainer.load_run(str(directory), step=max(finite))
    assert all(np.isfinite(np.asarray(leaf, np.float32)).all() for leaf in trained.leaves)


@pytest.mark.full
@pytest.mark.parametrize(("limit", "last"), [(4, 12), (10, 100)])
def test_without_a_guard_a_loss_that_is_not_finite_ends_the_run(tiny, tmp_path, limit, last):
    graph = tiny(
        tmp_path,
        "training.guard=None",
        f"training.divergence.max_nonfinite_steps={limit}",
        "optimizer.learning_rate:=luthier.optim.Constant(1e30)",
        "optimizer.clip_norm=None",
        "checkpoints.every.count=1",
        "evaluations:={}",
    )
    with pytest.raises(TrainingStopped, match="was not finite in the last"):
        trainer.run(graph)
    (directory,) = (tmp_path / "quickstart").iterdir()
    status = RunDirectory(directory).read_status()
    assert status.status == "diverged"
    assert status.step <= last
    with Store(directory / "checkpoints") as store:
        assert any(math.isfinite(store.read(step).metrics["loss"]) for step in store.steps())


@pytest.mark.full
def test_changed_defaults_are_reported_on_resume_and_evaluation(run, tiny):
    directory, graph = run
    path = directory / "config.values.json"
    values = json.loads(path.read_text())
    values["training"]["divergence"] = None
    values["optimizer"]["eps"] = 1e-3
    path.write_text(json.dumps(values))
    trained = trainer.load_run(str(directory))
    (line,) = trained.notices
    assert line.startswith("kept as recorded, although the defaults have changed: ")
    assert "optimizer.eps=0.001" in line
    assert "training.divergence=None" in line
    # What is evaluated is what was trained, and not what the defaults are today.
    assert trained.program.experiment.training.divergence is None
    result = interrupted(graph, steps=1)
    notices = [row["text"] for row in rows(result, "notice")]
    assert line in notices
    assert any("optimizer.eps" in notice for notice in notices if notice != line)


LAYERS = """
from own_code.numbers import FACTOR
from luthier import losses

def activation(x):
    return x * FACTOR
"""


@pytest.fixture
def own_code(tmp_path, monkeypatch):
    """Return the folder of a package of the user's own."""
    folder = tmp_path / "own_code"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "layers.py").write_text(LAYERS)
    (folder / "numbers.py").write_text("FACTOR = 1.0\n")
    (folder / "plots.py").write_text("COLOUR = 'red'\n")
    monkeypatch.syspath_prepend(tmp_path)
    yield folder
    for name in [name for name in sys.modules if name.split(".")[0] == "own_code"]:
        del sys.modules[name]


@pytest.mark.full
def test_changed_code_is_named_and_refused_where_it_decides(own_code, tiny, tmp_path, capsys):
    from luthier.cli.commands.recorded.runs import print_code_difference

    packages = ("own_code",)
    activation = "model.block.mlp.activation=own_code.layers.activation"
    root = tmp_path / "runs"
    graph = graphs.apply(tiny(root), [activation], packages=packages)
    first = interrupted(graph, packages=packages)
    (own_code / "plots.py").write_text("COLOUR = 'blue'\n")
    second = interrupted(graph, steps=1, packages=packages)
    assert second.directory == first.directory
    assert "code changed since step 7: own_code/plots.py" in [
        row["text"] for row in rows(second, "notice")
    ]
    (own_code / "numbers.py").write_text("FACTOR = 0.5\n")  # imported by the layer
    before = content(first.directory)
    with pytest.raises(RunError, match=r"changed since step 8: own_code/numbers.py") as refusal:
        trainer.run(graph, packages=packages)
    assert "--accept-changes" in str(refusal.value)
    assert content(first.directory) == before
    other = interrupted(graph, steps=1, packages=packages, new=True)
    result = trainer.run(graph, packages=packages, accept_changes=True)
    assert result.step == 12
    assert (first.directory / "code.1.json").exists()
    print_code_difference(first.directory.name, other.directory.name, str(root))
    assert capsys.readouterr().out == ""
    (own_code / "numbers.py").write_text("FACTOR = 0.25\n")
    third = interrupted(graph, steps=1, packages=packages, new=True)
    print_code_difference(first.directory.name, third.directory.name, str(root))
    assert "-FACTOR = 0.5\n+FACTOR = 0.25\n" in capsys.readouterr().out


def test_changed_code_is_refused_where_the_save_is_not_yet_recorded(own_code, tiny, tmp_path):
    packages = ("own_code",)
    activation = "model.block.mlp.activation=own_code.layers.activation"
    graph = graphs.apply(tiny(tmp_path / "runs"), [activation], packages=packages)
    first = interrupted(graph, packages=packages)
    # As a failure after step 7 leaves it: the checkpoint is whole, and its line is not written.
    path = first.directory / "metrics.jsonl"
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join(line for line in lines if json.loads(line)["kind"] != "saved"))
    status = json.loads((first.directory / "status.json").read_text())
    (first.directory / "status.json").write_text(json.dumps(status | {"saved_step": None}))
    (own_code / "numbers.py").write_text("FACTOR = 0.5\n")
    with pytest.raises(RunError, match=r"changed since step 7: own_code/numbers.py"):
        trainer.run(graph, packages=packages)


@pytest.fixture
def prepared(tmp_path, tiny):
    """Return the folder of a prepared corpus, and the graph of a run on it."""
    from luthier.data import Bytes, Documents, plan_layout, prepare, survey

    source, tokenizer = Documents(["To be, or not to be. " * 20] * 60), Bytes()
    layout = plan_layout(source, tokenizer, survey(source, tokenizer), 3)
    folder = tmp_path / "prepared"
    prepare(source, tokenizer, str(folder), layout)
    data = (
        f"data:=luthier.data.Prepared({str(folder)!r}, length=32, "
        "packing=luthier.data.Concatenate(), tokenizer=luthier.data.Bytes())"
    )
    return folder, tiny(tmp_path / "runs", data, "evaluations={}")


def _reverse(path):
    tokens = np.load(path)
    tokens[1:500] = tokens[1:500][::-1].copy()
    np.save(path, tokens)


@pytest.mark.full
def test_tokens_that_changed_between_two_starts_are_refused(prepared):
    folder, graph = prepared
    first = interrupted(graph)
    _reverse(folder / "shard-00001" / "tokens.npy")
    before = content(first.directory)
    with pytest.raises(DataError, match="shard-00001: its tokens differ from their digest") as why:
        trainer.run(graph)
    assert "--accept-changes" in str(why.value)
    assert content(first.directory) == before
    again = trainer.run(graph, accept_changes=True)
    assert again.step == 12
    assert any("differ from their digest" in row["text"] for row in rows(again, "notice"))


def test_a_thread_finds_what_is_damaged_and_remembers_what_is_right(prepared, tmp_path):
    from luthier.data import Verification

    folder, graph = prepared
    data = graphs.build(graph.data)
    _reverse(folder / "shard-00002" / "tokens.npy")

    def read_all():
        verification = Verification(data, tmp_path, duty=1.0)
        assert verification.start() == []
        with verification:
            verification._thread.join(30)
        return verification

    verification = read_all()
    with pytest.raises(DataError, match="shard-00002: its tokens differ from their digest"):
        verification.check()
    shards = json.loads((tmp_path / "verified.json").read_text())["shards"]
    assert [entry["verified"] for entry in shards.values()] == [True, True, False]
    again = Verification(data, tmp_path, duty=1.0)
    (problem,) = again.start()  # it is read first now, so that the user can agree to it
    assert problem.what.endswith("shard-00002: its tokens differ from their digest")
    again.accept()
    read_all().check()


def test_who_agrees_to_a_changed_shard_agrees_to_no_other(prepared, tmp_path):
    from luthier.data import Verification

    folder, graph = prepared
    data = graphs.build(graph.data)
    _reverse(folder / "shard-00002" / "tokens.npy")
    assert Verification(data, tmp_path).start() == []  # it is left to the thread
    _reverse(folder / "shard-00001" / "tokens.npy")
    second = Verification(data, tmp_path, duty=1.0)
    (problem,) = second.start()
    assert "shard-00001" in problem.what
    second.accept()
    with second:
        second._thread.join(30)
    with pytest.raises(DataError, match="shard-00002: its tokens differ from their digest"):
        second.check()


@pytest.mark.full
def test_a_shard_that_is_cut_short_while_it_is_used_ends_the_run_at_the_save(prepared):
    folder, graph = prepared
    plan = planner.make(graph, jax.devices()[:1])
    taken = []

    class Cutting(CompiledStep):
        def __call__(self, state, batch):
            taken.append(1)
            if len(taken) == 3:  # the end of a shard that these few batches do not reach
                path = folder / "shard-00002" / "tokens.npy"
                os.truncate(path, path.stat().st_size - 8)
            return super().__call__(state, batch)

    with pytest.raises(DataError, match=r"shard-00002: its files were written .* bytes, not "):
        trained(graph, plan, Cutting(plan.program), Watcher())


def _add_format(path, number):
    if path.suffix == ".jsonl":
        lines = path.read_bytes().count(b"\n")
        with open(path, "ab") as file:
            file.write(seal(b'{"kind":"future","step":1,"time":1.0}', lines, number))
        return
    fields = json.loads(path.read_text())
    if path.name == "commit.json":  # the position in it, that is
        del fields["checksum"]
        fields["extra"]["position"]["format"] = number
        fields = {"checksum": commit_lib._text_checksum(fields), **fields}
    else:
        fields["format"] = number
    path.write_text(json.dumps(fields))


@pytest.mark.parametrize(
    ("name", "listed"),
    [
        ("status.json", 0),
        ("metrics.jsonl", 2),
        ("goodput.jsonl", 0),
        ("checkpoints/7/commit.json", 0),
    ],
)
def test_files_of_a_later_version_are_refused_and_nothing_is_touched(run, capsys, name, listed):
    directory, graph = run
    _add_format(directory / name, 99)
    before = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    later = r"written by a later luthier \(format 99, known: \d\); update luthier; nothing was"
    with pytest.raises(VersionError, match=later) as refusal:
        trainer.run(graph)
    assert refusal.value.exit_code == 2
    assert main(["runs", str(directory)]) == listed
    shown = capsys.readouterr()
    if name in ("status.json", "metrics.jsonl"):
        assert re.search(later, shown.out + shown.err)
    if name == "goodput.jsonl":
        assert main(["runs", str(directory), "--goodput"]) == 2
        assert re.search(later, capsys.readouterr().err)
    now = {path: path.read_bytes() for path in directory.rglob("*") if path.is_file()}
    now.pop(directory / "lock", None)
    before.pop(directory / "lock", None)
    assert now == before


@pytest.mark.full
def test_what_a_later_version_adds_to_its_files_is_ignored(run):
    directory, graph = run
    for name in ("metrics.jsonl", "goodput.jsonl"):
        path = directory / name
        lines = path.read_bytes().splitlines(keepends=True)
        fields = json.loads(lines[-1])
        number = fields.pop("n")
        fields.pop("crc")
        added = json.dumps({**fields, "added": {"later": [1]}}).encode()
        path.write_bytes(b"".join([*lines[:-1], seal(added, number)]))
    status = json.loads((directory / "status.json").read_text())
    (directory / "status.json").write_text(json.dumps({**status, "added": [1]}))
    path = directory / "checkpoints" / "7" / "commit.json"
    fields = json.loads(path.read_text())
    del fields["checksum"]
    for part in (fields["extra"]["position"], fields["extra"]["position"]["progress"]):
        part["added"] = 1
    path.write_text(json.dumps({"checksum": commit_lib._text_checksum(fields), **fields}))
    result = trainer.run(graph)
    assert (result.status, result.step) == ("finished", 12)
    assert [row["step"] for row in rows(result, "step")] == list(range(1, 13))
