"""What the driver of a sweep costs: 10,000 trials that take no time, in processor time.

    python tools/bench_driver.py [--trials 10000] [--sampler tpe]

Prints the driver's processor time a trial with the sampler's own taken out, the time of `luthier
sweep show`, and the memory of the driver after each tenth of the trials.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "sweep"))


def main() -> None:
    import fiddle as fdl
    import simulated_engine as toys

    from luthier import sweep
    from luthier.sweep.driver import suggestions

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trials", type=int, default=10_000)
    parser.add_argument("--sampler", default="tpe")
    parser.add_argument("--slices", type=int, default=4)
    arguments = parser.parse_args()

    spent_by = [_timed(suggestions.OptunaSuggester, name) for name in ("ask", "tell")]
    with tempfile.TemporaryDirectory() as directory:
        budget = fdl.Config(sweep.Budget, trials=arguments.trials)
        study = toys.make_study(arguments.sampler, directory=directory, budget=budget)
        view = _Memory(arguments.trials // 10)
        start = time.process_time()
        outcome = sweep.run(
            study,
            packages=toys.PACKAGES,
            engine=toys.InstantEngine(arguments.slices),
            view=view,
        )
        spent = time.process_time() - start
        sampler = sum(spent[0] for spent in spent_by)
        per_trial = (spent - sampler) / arguments.trials
        print(f"driver: {1e3 * per_trial:.2f} ms of processor time a trial, without the sampler")
        print(f"sampler: {1e3 * sampler / arguments.trials:.2f} ms a trial")
        print("memory in MiB after each tenth:", *(f"{mib:.0f}" for mib in view.found))
        size = (outcome.directory / "journal.jsonl").stat().st_size
        print(f"journal: {size / 2**20:.1f} MiB")
        _show(outcome.directory)


def _timed(kind: type, name: str) -> list[float]:
    """Let a method add up the time that it takes; return where."""
    method, spent = getattr(kind, name), [0.0]

    def timed(*given):
        start = time.process_time()
        try:
            return method(*given)
        finally:
            spent[0] += time.process_time() - start

    setattr(kind, name, timed)
    return spent


class _Memory:
    """A view that looks at the memory of this process."""

    def __init__(self, every: int):
        self.every, self.found = every, []

    def update(self, ledger, slices) -> None:
        if len(ledger.trials) >= self.every * (len(self.found) + 1):
            with open("/proc/self/statm", encoding="ascii") as file:
                pages = int(file.read().split()[1])
            self.found.append(pages * resource.getpagesize() / 2**20)


def _show(directory: pathlib.Path) -> None:
    import subprocess

    code = (
        "import sys, time; from luthier.cli import main; "
        f"main.main(['sweep', 'show', {str(directory)!r}]); "
        "print(f'show: {time.process_time():.2f} s of processor time, start included')"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    print(done.stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
