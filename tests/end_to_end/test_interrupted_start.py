"""Ctrl-C ends a start soon, with one line, whatever it is at: imports, planning, or a compiler."""

from __future__ import annotations

import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

MOST_SECONDS = 3.0
TRAIN = [sys.executable, "-m", "luthier", "train", "quickstart", "training.steps=100000"]


def _start(folder, **streams):
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder / "cache"), "WANDB_MODE": "disabled"}
    environment.pop("JAX_COMPILATION_CACHE_DIR", None)  # the one of the tests is full
    return subprocess.Popen(TRAIN, cwd=folder, env=environment, **streams)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [0.5, 1, 2, 3, 5, 8, 12, 16, 20, 25, 30])
def test_an_interrupt_ends_a_start_soon_with_one_line(tmp_path, seconds):
    process = _start(tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    begin = time.monotonic()
    out, err = process.communicate(timeout=60)
    took = time.monotonic() - begin
    assert process.returncode == 130, err
    if "step 1/" in out:  # it trained, and saved where it was
        assert "interrupted at step" in out
        assert "to resume: luthier train" in out
        assert err == ""
    else:
        assert err.startswith("luthier: interrupted")
        assert len(err.splitlines()) == 1
    assert took < MOST_SECONDS


def _shown_within(terminal, seconds):
    """Return what a terminal shows within a time, or until the first loss."""
    shown, deadline = b"", time.monotonic() + seconds
    while (left := deadline - time.monotonic()) > 0:
        if select.select([terminal], [], [], left)[0]:
            shown += os.read(terminal, 1 << 16)
        if b"loss" in shown:
            break
    return shown.decode(errors="replace")


@pytest.mark.slow
def test_a_terminal_shows_what_a_start_is_at(tmp_path):
    terminal, slave = pty.openpty()
    process = _start(tmp_path, stdin=slave, stdout=slave, stderr=slave)
    os.close(slave)
    try:
        begin = _shown_within(terminal, 2.0)
        assert "luthier train quickstart: starting JAX ..." in begin
        shown = _shown_within(terminal, 120.0)
        stages = ["reading the config", "planning", "opening the data", "compiling the init"]
        places = [(begin + shown).index(stage) for stage in [*stages, "compiling the train step"]]
        assert places == sorted(places)
        assert "loss" in shown
    finally:
        process.send_signal(signal.SIGINT)
        _shown_within(terminal, 5.0)
        process.kill()
        process.wait()
        os.close(terminal)
