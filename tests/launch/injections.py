"""A study of short trials, whose workers are killed at random moments."""

import collections
import contextlib
import os
import pathlib
import random
import signal

import fiddle as fdl
import simulated_engine
from meanwhile import Meanwhile
from short_worker import ShortSlices

from luthier import study as studies
from luthier.study.driver import read_journal


class Killer(Meanwhile):
    """Kills workers at random moments within the `with` block, at most as often as was said.

    How far the study is decides when, not the clock: a quick machine gets as many kills.

    Args:
      folder: The folder of the study.
      kills: How often.
      trials: Trials of the study, over which the kills are spread.
      seed: Of the moments.
    """

    def __init__(self, folder, kills, trials, seed=0):
        super().__init__()
        self._folder, self._left, self._trials = pathlib.Path(folder), kills, trials
        self._chance = random.Random(seed)
        self.done = 0

    def run(self):
        due, spread = 0, 2 * self._trials // self._left
        while self._left and not self._over.wait(self._chance.uniform(0.0, 0.1)):
            if sum(1 for _ in self._folder.glob("trials/*/result.json")) < due:
                continue
            files = sorted(self._folder.glob("launch/*/worker-*.pid"))
            with contextlib.suppress(OSError, ValueError, IndexError):
                pid = int(self._chance.choice(files).read_text())
                if b"short_worker" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes():
                    os.kill(pid, signal.SIGKILL)
                    self.done += 1
                    due += self._chance.randrange(1, spread)
                    self._left -= 1


def drive(folder, engine, slices, trials, kills, seed=0):
    """Drive short trials over an engine while workers are killed; return the outcome and kills."""
    study = simulated_engine.make_study(
        "random",
        budget=fdl.Config(studies.Budget, trials=trials, retries=10**6),
        directory=str(folder),
        dedupe=None,
    )
    with Killer(folder / "toy", kills, trials, seed) as killer:
        outcome = studies.run(
            study, packages=simulated_engine.PACKAGES, engine=ShortSlices(engine, slices=slices)
        )
    return outcome, killer.done


def check_nothing_lost(folder, outcome, trials):
    """Check that every trial was run to its end once, with all of its steps."""
    assert outcome.is_over
    assert [trial.state for trial in outcome.ledger.trials] == ["complete"] * trials
    lines = read_journal(folder / "toy" / "journal.jsonl")
    ended = [line["trial"] for line in lines if line["kind"] == "ended"]
    assert sorted(ended) == list(range(trials))
    for trial in range(trials):
        result = studies.read_result(folder / "toy" / "trials" / f"{trial:04d}")
        assert [step for step, _ in result.result["series"]] == [1, 2, 3, 4]
    return collections.Counter(trial.losses for trial in outcome.ledger.trials)
