"""How a study stands, read from its folder; nothing that it names is imported."""

from __future__ import annotations

import dataclasses
import math
import pathlib
from collections.abc import Sequence

from luthier.storage import Holder, holder
from luthier.sweep.driver.journal import load_journal
from luthier.sweep.driver.ledger import Ledger, Trial
from luthier.sweep.driver.mirror import read_facts


@dataclasses.dataclass(frozen=True)
class Standing:
    """How a study stands.

    Args:
      name: Its name.
      metrics: The names of its objectives.
      directions: `lower` or `higher` for each of them.
      num_trials: Trials of its budget; None for no limit.
      ledger: Its trials.
      driver: The process that drives it now; None where there is none.
      problems: What is wrong with its journal, a line each; what is whole was read.
    """

    name: str
    metrics: Sequence[str]
    directions: Sequence[str]
    num_trials: int | None
    ledger: Ledger
    driver: Holder | None = None
    problems: Sequence[str] = ()

    def words(self, trial: Trial) -> str:
        """Return what a trial sets, in words."""
        if trial.setting == 0:
            return "(the baseline)"
        return " ".join(self.ledger.settings[trial.setting].words) or "(nothing)"

    def best(self) -> list[Trial]:
        """Return the best complete trial; with several objectives, those that none beats."""
        complete = [t for t in self.ledger.trials if t.state == "complete" and t.copy_of is None]
        told = [t for t in complete if t.values and not any(map(math.isnan, t.values))]
        signs = [1.0 if direction == "lower" else -1.0 for direction in self.directions]
        keys = {
            t.number: tuple(s * v for s, v in zip(signs, t.values or (), strict=True)) for t in told
        }
        if len(signs) == 1:
            return sorted(told, key=lambda t: (keys[t.number], t.number))[:1]
        front: list[Trial] = []
        for trial in sorted(told, key=lambda t: (keys[t.number], t.number)):
            key = keys[trial.number]
            if not any(_beats(keys[other.number], key) for other in front):
                front.append(trial)
        return front


def _beats(first: tuple[float, ...], second: tuple[float, ...]) -> bool:
    return first != second and all(a <= b for a, b in zip(first, second, strict=True))


def read_standing(directory: pathlib.Path) -> Standing:
    """Return how the study in a folder stands.

    Args:
      directory: The study's folder.

    Raises:
      RunError: Its journal cannot be read.
      VersionError: It was written by a later luthier.
    """
    facts = read_facts(directory)
    ledger, contents = Ledger(), load_journal(directory / "journal.jsonl")
    for line in contents.lines:
        ledger.follow(line)
    return Standing(
        facts.get("name", directory.name),
        facts.get("metrics", ()),
        facts.get("directions", ()),
        facts.get("trials"),
        ledger,
        holder(directory / "lock"),
        contents.problems,
    )
