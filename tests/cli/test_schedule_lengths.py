"""Other numbers of steps than a schedule was made for: the message has the whole fix."""

import shlex

import pytest

from luthier import graph as graphs
from luthier.cli import main

RATE = "optimizer.learning_rate"
WARMUP = f"{RATE}.warmup_steps:=75"
STABLE = f"{RATE}:=luthier.optim.WarmupStableDecay(1e-3, 90, 90, 900)"
SHARED = f"{RATE}.total_steps=ref:training.steps"

CASES = [
    # Shared steps: the warmup shrinks in proportion to the schedule that it was part of.
    ([WARMUP, "training.steps=40"], ["training.steps=40", f"{RATE}.warmup_steps=3"]),
    # A schedule with a length of its own, whose warmup would not fit either.
    (["training.steps:=40"], ["training.steps:=40", SHARED, f"{RATE}.warmup_steps=3"]),
    (
        [STABLE, "training.steps=40"],
        [STABLE, "training.steps=40", SHARED, f"{RATE}.warmup_steps=4", f"{RATE}.decay_steps=4"],
    ),
    ([f"{RATE}.warmup_steps:=2000"], [f"{RATE}.warmup_steps=90"]),
]


@pytest.mark.parametrize(("overrides", "fix"), CASES)
def test_the_fix_that_is_printed_is_whole(overrides, fix, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    assert main(["train", "configs.lm.quickstart", *overrides]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    words = shlex.split(line.partition("; write ")[2])
    assert words == fix
    graphs.validate(graphs.apply(graphs.resolve("configs.lm.quickstart"), words))


def test_other_problems_are_reported_beside_it(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    words = [WARMUP, "training.steps=40", "optimizer.b2=1.5"]
    assert main(["train", "configs.lm.quickstart", *words]) == 2
    first, second = capsys.readouterr().err.splitlines()
    assert first.endswith(f"{RATE}.warmup_steps=3")
    assert "optimizer.b2: 1.5 is out of range" in second
