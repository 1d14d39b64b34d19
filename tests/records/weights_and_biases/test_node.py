from __future__ import annotations

import json
import re
import signal
import socket
import time

import pytest

from luthier.errors import RunError
from luthier.records import Ended, Header, Notice, Records, Step, Wandb, read_metrics, rebuild
from luthier.records.weights_and_biases import node as node_module
from luthier.records.weights_and_biases import resolved_mode


class Notices:
    """A sink that keeps what the user is told."""

    essential = False

    def __init__(self):
        self.texts = []

    def emit(self, event):
        if isinstance(event, Notice):
            self.texts.append(event.text)

    def flush(self):
        pass

    def close(self):
        pass


def train(run, wandb, steps=5, linger=0.0):
    """Record a run; return what the user was told, and how long a step's emit took at most."""
    recorder, notices, longest = Records(console=None, wandb=wandb).open(run), Notices(), 0.0
    recorder.add(notices)
    recorder.emit(Header("demo", total_steps=steps))
    for step in range(1, steps + 1):
        begin = time.perf_counter()
        recorder.emit(Step(step, {"loss": 1 / step}))
        longest = max(longest, time.perf_counter() - begin)
    time.sleep(linger)
    recorder.emit(Ended("finished", steps))
    recorder.close()
    return notices.texts, longest


def test_modes():
    assert [resolved_mode(mode, {}) for mode in ("auto", "online", "offline", "off")] == [
        "auto", "online", "offline", "off"
    ]  # fmt: skip
    for wish, mode in {
        "offline": "offline",
        "disabled": "off",
        "ONLINE": "online",
        "": "auto",
    }.items():
        assert resolved_mode("auto", {"WANDB_MODE": wish}) == mode
        assert resolved_mode("offline", {"WANDB_MODE": wish}) == "offline"
    assert resolved_mode("auto", {"WANDB_DISABLED": "true"}) == "off"
    with pytest.raises(RunError, match=r"records\.wandb\.mode: 'ofline' is not a mode; use one of"):
        resolved_mode("ofline")


def test_offline_with_a_hint_how_to_upload(run, fake):
    texts, _ = train(run, Wandb())
    (text,) = texts
    match = re.fullmatch(r"W&B: offline \(no API key\); to upload it: wandb sync (\S+)", text)
    assert match[1].startswith(str(run.path / "wandb" / "offline-run-"))
    rows = {call["step"]: call["row"]["train/loss"] for call in fake("log")}
    assert rows == {row["step"]: row["loss"] for row in read_metrics(run.metrics_path)}
    assert fake("finish")[0]["exit_code"] == 0


def test_the_run_is_described(run, fake, monkeypatch):
    monkeypatch.setenv("WANDB_SERVICE", "3-1-unix-somebody-elses")
    wandb = Wandb(project="p", entity="e", group="g", job_type="j", notes="n", tags=("a", "b"))
    train(run, wandb)
    (call,) = fake("init")
    wanted = {"project": "p", "entity": "e", "group": "g", "job_type": "j", "notes": "n"}
    assert wanted.items() <= call.items()
    assert call["tags"] == ["a", "b"]
    assert call["name"] == "demo/abc123"
    assert call["mode"] == "offline"
    assert call["config"]["model"] == {"dim": 8}
    assert call["settings"]["silent"] is True
    assert call["settings"]["disable_git"] is True
    assert "WANDB_SERVICE" not in call["environment"]


def test_a_restart_goes_on_under_the_same_id_and_replaces_the_offline_file(run, fake):
    train(run, Wandb(), steps=5)
    run.cut_back(3)
    recorder = Records(console=None, wandb=Wandb()).open(run)
    recorder.emit(Header("demo", step=3))
    recorder.emit(Step(4, {"loss": 0.5}))
    recorder.close()
    first, second = fake("init")
    assert first["id"] == second["id"]
    assert [call["step"] for call in fake("log")] == [1, 2, 3, 4, 5, 1, 2, 3, 4]
    assert len(list((run.path / "wandb").glob("offline-run-*"))) == 1
    assert fake("finish")[1]["exit_code"] == 1, "it has not said that it finished"


def test_off_starts_nothing(run, fake, monkeypatch):
    assert Wandb(mode="off").open(run, print) is None
    monkeypatch.setenv("WANDB_MODE", "disabled")
    assert Wandb().open(run, print) is None
    assert fake() == []
    assert not (run.path / "wandb").exists()


@pytest.mark.parametrize(
    ("behaviour", "reason", "linger"),
    [
        ("raise in init", "init is out of order", 0.0),
        ("raise in log", "log is out of order", 0.0),
        ("raise in log", "log is out of order", 1.5),
        ("raise in finish", "finish is out of order", 0.0),
        ("die in init", "ended by signal 9", 0.0),
        ("die in log", "ended by signal 9", 0.0),
        ("die in log", "ended by signal 9", 1.5),
    ],
)
def test_whatever_wandb_does_training_goes_on(run, fake, monkeypatch, behaviour, reason, linger):
    monkeypatch.setenv("FAKE_WANDB", behaviour)
    texts, longest = train(run, Wandb(), steps=20, linger=linger)
    failures = [text for text in texts if "stopped" in text]
    assert len(failures) == 1, texts
    assert reason in failures[0]
    assert "training continues; `luthier runs abc123 --sync wandb`" in failures[0]
    assert len(read_metrics(run.metrics_path)) == 20
    assert run.read_status().status == "finished"
    assert longest < 1.0


@pytest.mark.parametrize("behaviour", ["hang in init", "hang in log", "hang in finish"])
def test_a_wandb_that_hangs_is_left_behind(run, fake, monkeypatch, behaviour):
    monkeypatch.setenv("FAKE_WANDB", behaviour)
    begin = time.monotonic()
    texts, _ = train(run, Wandb(finish_seconds=1.0))
    assert time.monotonic() - begin < 10
    assert "W&B is not done after 1 s" in texts[-1]
    assert "--sync wandb` repeats it" in texts[-1]
    process = node_module._abandoned.pop()
    process.kill()
    process.wait()


def test_without_the_package_training_goes_on(run, fake, tmp_path):
    (tmp_path / "fake" / "wandb" / "__init__.py").write_text("raise ImportError('no such package')")
    texts, _ = train(run, Wandb())
    assert len(texts) == 1
    assert "no such package" in texts[0]
    assert "no such package" in (run.path / "wandb" / "mirror.log").read_text()


def test_a_place_that_cannot_be_written_switches_it_off(run, fake):
    (run.path / "wandb").write_text("in the way")
    texts, _ = train(run, Wandb())
    assert len(texts) == 1
    assert texts[0].startswith("W&B is off: ")


def test_what_wandb_prints_is_not_shown(run, fake, monkeypatch, capfd):
    monkeypatch.setenv("FAKE_WANDB", "chatter")
    train(run, Wandb())
    assert capfd.readouterr() == ("", "")
    assert "look at me" in (run.path / "wandb" / "mirror.log").read_text()


def online(monkeypatch, sock):
    monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
    monkeypatch.setenv("WANDB_BASE_URL", f"http://127.0.0.1:{sock.getsockname()[1]}")


def test_online_with_a_key_and_a_server(run, fake, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as sock:
        online(monkeypatch, sock)
        texts, _ = train(run, Wandb())
    assert texts == ["W&B: https://wandb.test/run"]
    (call,) = fake("init")
    assert (call["mode"], call["resume"]) == ("online", "allow")
    assert "0" * 40 not in (run.path / "wandb.json").read_text()


def test_online_the_server_is_not_given_rows_that_it_has(run, fake, monkeypatch):
    monkeypatch.setenv("FAKE_WANDB_STEP", "4")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        online(monkeypatch, sock)
        train(run, Wandb(), steps=6)
    assert [call["step"] for call in fake("log")] == [4, 5, 6]


def test_a_refused_key_falls_back_to_offline(run, fake, monkeypatch):
    monkeypatch.setenv("FAKE_WANDB", "online raises in init")
    with socket.create_server(("127.0.0.1", 0)) as sock:
        online(monkeypatch, sock)
        texts, _ = train(run, Wandb())
    assert len(texts) == 1
    assert texts[0].startswith("W&B: offline (online failed: bad key); to upload it: wandb sync")
    assert [call["step"] for call in fake("log")] == [1, 2, 3, 4, 5]


def test_rebuild_makes_the_mirror_anew(run, fake):
    train(run, None)
    first = rebuild(run)
    assert (first.mode, first.url) == ("offline", "")
    assert [call["step"] for call in fake("log")] == [1, 2, 3, 4, 5]
    assert fake("finish")[0]["exit_code"] == 0
    run.cut_back(2)
    second = rebuild(run, "offline", Wandb(project="other"))
    assert [path.name for path in (run.path / "wandb").glob("offline-run-*")] == [
        second.path.rpartition("/")[2]
    ]
    assert [call["step"] for call in fake("log")][5:] == [1, 2]
    assert fake("init")[1]["project"] == "other"
    assert fake("init")[0]["id"] == fake("init")[1]["id"]


def test_rebuild_says_why_it_cannot(run, fake, monkeypatch):
    monkeypatch.setenv("FAKE_WANDB", "raise in log")
    train(run, None)
    with pytest.raises(RunError, match=r"log is out of order; see .*mirror\.log") as caught:
        rebuild(run)
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with pytest.raises(RunError, match="switched off"):
        rebuild(run)


def test_rebuild_does_not_disturb_a_live_mirror(run, fake, monkeypatch):
    monkeypatch.setattr(node_module, "PATIENCE_SECONDS", 0.1)
    recorder = Records(console=None, wandb=Wandb()).open(run)
    deadline = time.monotonic() + 20
    while not fake("init") and time.monotonic() < deadline:
        time.sleep(0.05)
    with pytest.raises(RunError, match="is being written by process"):
        rebuild(run)
    recorder.close()


TRAINING = """
import sys, time
from luthier.records import Records, RunDirectory, Step, Header, Wandb

recorder = Records(console=None, wandb=Wandb()).open(RunDirectory(sys.argv[1]))
recorder.emit(Header("demo"))
for step in range(1, 101):
    recorder.emit(Step(step, {"loss": 1 / step}))
recorder.flush()
print("flushed", flush=True)
time.sleep(60)
"""


def wait_for_wandb(run, ready, seconds=60):
    deadline = time.monotonic() + seconds
    while not ready() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert ready(), (run.path / "wandb" / "mirror.log").read_text()


def test_interrupts_and_kills_of_training_leave_the_mirror_whole(run, fake, start):
    process = start(TRAINING, run.path)
    assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    wait_for_wandb(run, lambda: fake("finish"))
    assert [call["step"] for call in fake("log")] == list(range(1, 101))
    assert fake("finish")[0]["exit_code"] == 1


@pytest.mark.full
def test_the_real_wandb_after_training_was_killed(run, read_wandb, start):
    """W&B's own offline file would hold next to nothing after a SIGKILL."""
    process = start(TRAINING, run.path)
    assert process.stdout.readline() == "flushed\n"
    process.send_signal(signal.SIGKILL)
    process.wait()

    def contents():
        found = list((run.path / "wandb").glob("offline-run-*"))
        over = found and (run.path / "wandb" / "lock").read_text() == ""
        return read_wandb(found[0]) if over else None

    wait_for_wandb(run, lambda: contents() is not None)
    assert [row["_step"] for row in contents()["history"]] == list(range(1, 101))
    assert contents()["exit"] == 1


def test_settings_of_a_node_are_json(run):
    node_module.write_settings(Wandb(tags=("a",)), run)
    settings = json.loads((run.path / "wandb.json").read_text())
    node_module.write_settings(Wandb(project="x"), run)
    again = json.loads((run.path / "wandb.json").read_text())
    assert settings["tags"] == ["a"]
    assert re.fullmatch("[0-9a-f]{8}", settings["id"])
    assert again["id"] == settings["id"]
    assert again["project"] == "x"
