"""Measure what the driver of a sweep costs: trials that take no time, in processor seconds.

* driver, sampler: processor time a trial, of the driver without the sampler, and of the sampler.
* driver, a decision at the end: the same over the last tenth of the trials, divided by the settings
  that were suggested and the rungs that were reached in it.
* sampler, a trial at the end: its processor time over the last tenth, divided by the settings.
* memory: of the driver's process, after a tenth of the trials and at their end.
* journal: the file in which the driver writes down all that it decides.
* `luthier sweep show` of the study: processor time, start included.

Each round is a process of its own; medians of the rounds.

Command: python tools/bench/driver.py [--trials 10000] [--sampler tpe] [--scheduler asha]
         [--rounds 3] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import pathlib
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tools.bench import child, report

TRIALS = """
import json, sys
from tools.bench import driver
print(json.dumps(driver.drive(**json.loads(sys.argv[1]))))
"""

SHOW = """
import contextlib, io, json, sys, time
from luthier.cli import main
with contextlib.redirect_stdout(io.StringIO()):
    main(["sweep", "show", sys.argv[1]])
print(json.dumps(time.process_time()))
"""

UNITS = {
    "driver, a trial": "ms",
    "sampler, a trial": "ms",
    "driver, a decision at the end": "ms",
    "sampler, a trial at the end": "ms",
    "memory after a tenth": "MiB",
    "memory at the end": "MiB",
    "journal": "MiB",
    "luthier sweep show": "s",
}


def drive(trials: int, sampler: str, slices: int, scheduler: str = "") -> dict[str, float]:
    """Drive a study in this process; return what it took, by the names of `UNITS`."""
    sys.path.insert(0, str(child.ROOT / "tests" / "study"))
    import fiddle as fdl
    import simulated_engine as toys

    from luthier import study as studies
    from luthier.study.driver import sampling

    by_name = ("ask", "record", "show_rungs")
    spent_by = [_timed(sampling.OptunaSuggester, name) for name in by_name]
    with tempfile.TemporaryDirectory() as directory:
        budget = fdl.Config(studies.Budget, trials=trials)
        study = toys.make_study(sampler, directory=directory, budget=budget)
        if scheduler:
            # Rungs at 1, 3, 9 and 27 steps, each of which is evaluated.
            study.base.steps, study.scheduler = 27, studies.scheduler(scheduler)
        view = _Progress(trials // 10, spent_by)
        start = time.process_time()
        outcome = studies.run(
            study, packages=toys.PACKAGES, engine=toys.InstantEngine(slices), view=view
        )
        spent = time.process_time() - start
        by_sampler = sum(spent[0] for spent in spent_by)
        return {
            "driver, a trial": 1e3 * (spent - by_sampler) / trials,
            "sampler, a trial": 1e3 * by_sampler / trials,
            "driver, a decision at the end": 1e3 * view.seconds_of_decision(),
            "sampler, a trial at the end": 1e3 * view.seconds_of_suggestion(),
            "memory after a tenth": view.memory[0],
            "memory at the end": view.memory[-1],
            "journal": (outcome.directory / "journal.jsonl").stat().st_size / 2**20,
            "luthier sweep show": child.result_of(SHOW, [str(outcome.directory)]),
        }


def _timed(kind: type, name: str) -> list[float]:
    """Let a method add up the time that it takes; return where."""
    method, spent = getattr(kind, name), [0.0]

    def timed(*given: Any) -> Any:
        start = time.process_time()
        try:
            return method(*given)
        finally:
            spent[0] += time.process_time() - start

    setattr(kind, name, timed)
    return spent


class _Progress:
    """A view that looks at the memory and the time of this process after each tenth of the trials.

    Args:
      every: Trials of a tenth.
      spent_by: The time of the sampler so far, which does not count.
    """

    def __init__(self, every: int, spent_by: Sequence[list[float]]):
        self.every, self.memory = every, list[float]()
        self._spent_by, self._ledger = spent_by, None
        self._seconds, self._decisions = list[float](), list[int]()
        self._sampler_seconds, self._settings = list[float](), list[int]()

    def update(self, ledger: Any, slices: Any) -> None:
        self._ledger = ledger
        if len(ledger.trials) >= self.every * (len(self.memory) + 1):
            with open("/proc/self/statm", encoding="ascii") as file:
                pages = int(file.read().split()[1])
            self.memory.append(pages * resource.getpagesize() / 2**20)
            self._look()

    def _look(self) -> None:
        by_sampler = sum(spent[0] for spent in self._spent_by)
        self._seconds.append(time.process_time() - by_sampler)
        self._sampler_seconds.append(by_sampler)
        assert self._ledger is not None
        self._settings.append(len(self._ledger.settings))
        self._decisions.append(sum(1 + trial.rung for trial in self._ledger.trials))

    def seconds_of_decision(self) -> float:
        """Return the time of the driver for each decision of the last tenth."""
        seconds, decisions = self._seconds[-2:], self._decisions[-2:]
        return (seconds[1] - seconds[0]) / (decisions[1] - decisions[0])

    def seconds_of_suggestion(self) -> float:
        """Return the time of the sampler for each setting of the last tenth."""
        seconds, settings = self._sampler_seconds[-2:], self._settings[-2:]
        return (seconds[1] - seconds[0]) / (settings[1] - settings[0])


def rows(taken: Sequence[Mapping[str, float]]) -> list[dict[str, Any]]:
    """Return the rows of the table: medians and spread of the rounds."""
    found = {name: [one[name] for one in taken] for name in UNITS}
    return [
        {
            "what": name,
            "value": statistics.median(values),
            "unit": UNITS[name],
            "spread": max(values) - min(values),
        }
        for name, values in found.items()
    ]


def main() -> None:
    """Take all rounds, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--scheduler", default="", help="asha, or successive-halving")
    parser.add_argument("--slices", type=int, default=4)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args()
    study = {name: getattr(options, name) for name in ("trials", "sampler", "slices", "scheduler")}
    taken = []
    for _ in range(options.rounds):
        taken.append(child.result_of(TRIALS, [json.dumps(study)]))
        print(json.dumps(taken[-1]), flush=True)
    made = report.Report("driver", study | {"rounds": options.rounds}, rows(taken))
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


if __name__ == "__main__":
    main()
