from __future__ import annotations

import os
import time

import pytest

from luthier.cli import completion


def test_what_is_no_experiment_begins_nothing(project, monkeypatch):
    monkeypatch.setattr(os, "posix_spawn", None)
    assert not completion.start("configs.nothing")
    assert not completion.start("run:")
    assert not completion.start("run:last")
    assert not completion.start("seed=1")


def test_the_files_that_a_reference_names(project):
    toy = str(project / "configs" / "toy.py")
    assert completion.sources("configs.toy") == [toy]
    assert completion.sources("configs.toy:experiment(size=3)") == [toy]
    recorded = str(project / "runs" / "toy" / "0a1b2c3d" / "config.json")
    assert completion.sources("run:0a1b") == [recorded]
    assert completion.sources("runs/toy/0a1b2c3d") == [recorded]


def test_one_build_at_a_time(project, monkeypatch):
    begun = []
    monkeypatch.setattr(os, "posix_spawn", lambda _, command, *__, **___: begun.append(command))
    assert completion.start("configs.toy")
    assert not completion.start("configs.toy")
    assert [command[2:] for command in begun] == [["luthier", "completion", "index", "configs.toy"]]


@pytest.mark.full
def test_the_first_tab_makes_the_index_for_the_next(project):
    assert completion.complete(["train", "configs.toy", "opt"]) == []
    end = time.monotonic() + 120
    while completion.load("configs.toy") is None and time.monotonic() < end:
        time.sleep(0.2)
    assert completion.complete(["train", "configs.toy", "opt"]) == [("optimizer.", "")]
