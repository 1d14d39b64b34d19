"""`luthier sweep` beside the sweeps that one would write by hand: what a study costs.

    python tools/bench/sweep.py --json FILE                # every way, d=32 and d=128, 12 trials
    python tools/bench/sweep.py --trials 12 64 --rounds 3
    python tools/bench/sweep.py --trials 3 --steps 8 --dims 32 --held-out-bytes 20000  # a smoke run

Every way draws learning rates at random, and trains and evaluates the same model on the same rows:
a decoder of one layer on bytes, 60 steps of 4 sequences of 48 bytes, and at the end of each trial
all of the held-out plays. `luthier sweep` is the command, in a process of its own with an empty
cache of compiled programs, with all that a study has: driver, sampler, gate, journal, evaluations,
records and checkpoints of every trial, report, Optuna's copy; `checkpoints=None` saves nothing, as
most of the others. The ways beside it
(`tools/bench/sweep_peers`) are one process each, with luthier's model in a step, an optimizer and
a loop of plain JAX and optax, without records; only one of them saves:

- `plain loop`: Optuna's ask and tell around one jitted step, the rate a runtime argument.
- `plain loop, accuracy`: the same, and evaluations compute the accuracy beside the loss, as those
  of `luthier sweep`.
- `plain loop, saving`: the plain loop, and Orbax saves the last state of each trial.
- `plain loop, vmapped`: the plain loop over as many trials at a time as `luthier sweep` packs.
- `hydra -m`: hydra's basic launcher, all jobs in its process, one compile. HYDRA_PYTHON names an
  interpreter in which hydra and luthier can be imported.
- `Ray Tune`: one actor, reused for all trials. RAY_PYTHON names its interpreter.

Ways take turns in each round, and the order is reversed in every other one. Times are from the
start of a process to its end, with those of its own processes; medians of the rounds. Compare CPU
seconds where other work shares the machine. `separate` (`--separate`) is one cold `luthier train`
process per trial, 3 of them timed and scaled.
"""

from __future__ import annotations

import argparse
import collections
import dataclasses
import importlib.util
import json
import os
import pathlib
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from luthier.data import Shakespeare
from tools.bench import report
from tools.bench.sweep_peers.launch import HIGHEST, LOWEST

PEAK = "optimizer.learning_rate.peak"
EXPERIMENT = "configs.lm.quickstart"
NUM_LANES = 8
"""Trials that share a program where they are packed, and in the vmapped loop."""

NUM_SEPARATE = 3


@dataclasses.dataclass(frozen=True)
class Case:
    """A size of the model, a number of trials, and a folder for what they write."""

    dim: int
    num_trials: int
    steps: int
    held_out: pathlib.Path | None
    folder: pathlib.Path

    @property
    def overrides(self) -> list[str]:
        """Changes to the experiment that all ways make."""
        made = [
            "model.num_layers=1",
            f"model.dim={self.dim}",
            f"model.block.mlp.hidden_dim={3 * self.dim}",
            "data.length=48",
            "training.global_batch_size=4",
            f"training.steps={self.steps}",
        ]
        if self.held_out is not None:
            source = f"luthier.data.TextFiles(pattern={str(self.held_out)!r})"
            made.append(f"evaluations.held_out.data.source={source}")
        return made


@dataclasses.dataclass(frozen=True)
class Taken:
    """What one run of a way took.

    Args:
      wall: Seconds from the start of its process to its end.
      cpu: CPU seconds of the process and of those that it started.
      best: The best loss that it reached, nats per token.
      parts: Where the time went, in one line; empty where that is not recorded.
    """

    wall: float
    cpu: float
    best: float
    parts: str = ""


def sweep(case: Case, lanes: str, wandb: str, *words: str) -> Taken:
    """Run `luthier sweep` on one device; `words` are further overrides of the experiment."""
    folder = case.folder / f"{lanes}-{wandb}-{time.time_ns()}"
    (folder / "cache").mkdir(parents=True)
    overrides = [
        *case.overrides,
        "evaluations.held_out.every=None",
        "reset:evaluations.held_out.num_batches",
        f"checkpoints.every=Steps({case.steps})",
        f"records.wandb.mode={wandb}",
        *words,
    ]
    (folder / "bench_study.py").write_text(
        STUDY.format(
            experiment=EXPERIMENT,
            overrides=overrides,
            peak=PEAK,
            lowest=LOWEST,
            highest=HIGHEST,
            lanes=lanes,
            num_lanes=NUM_LANES,
            num_trials=case.num_trials,
            directory=str(folder),
        )
    )
    command = [sys.executable, "-m", "luthier", "sweep", "bench_study:study", "--devices", "cpu:1"]
    started = time.time()
    wall, cpu, _ = _timed(command, _environment(folder / "cache", folder))
    lines = _lines(folder / "bench" / "journal.jsonl")
    ends = [line for line in lines if line["kind"] == "ended"]
    if [line["outcome"] for line in ends] != ["complete"] * case.num_trials:
        raise RuntimeError(f"{len(ends)} trials of {folder} have ended")
    best = min(line["values"][0] for line in ends)
    return Taken(wall, cpu, best, split_time(folder / "bench", lines, started, wall))


STUDY = """
import fiddle as fdl
from luthier import graph as graphs
from luthier import study as studies
def study():
    base = graphs.apply(graphs.resolve({experiment!r}), {overrides!r})
    space = studies.Space({{{peak!r}: studies.Log({lowest!r}, {highest!r})}})
    graph = studies.study_of("bench", base, space, studies.sampler("random"), ())
    graph.packing.lanes, graph.packing.num_lanes = {lanes!r}, {num_lanes}
    graph.budget = fdl.Config(studies.Budget, trials={num_trials})
    graph.directory = {directory!r}
    return graph
"""


def split_time(
    folder: pathlib.Path, lines: Sequence[Mapping[str, Any]], began: float, wall: float
) -> str:
    """Return where the time of a study went, in one line, from its journal and its runs' records.

    Packed trials have the device group together: the time that their own clocks count is scaled to
    the time in which any trial was open. Trials that wait in a worker for their turn are not open.

    Args:
      folder: The study.
      lines: Its journal.
      began: When the command was started, by the clock of the journal.
      wall: Seconds from then to its end.
    """
    leased, open_seconds, opened = [], 0.0, list[tuple[float, float]]()
    kinds = collections.Counter[str]()
    for line in lines:
        if line["kind"] == "leased":
            leased.append(line["at"])
        if line["kind"] != "ended":
            continue
        spans = [
            span
            for span in _lines(folder / "trials" / f"{line['trial']:04d}/run/goodput.jsonl")
            if span["kind"] == "span"
        ]
        for span in spans:
            kinds.update(span["seconds"])
        opened.append((spans[0]["start"], line["at"]))
        open_seconds += line["at"] - spans[0]["start"]
        kinds["closing"] += line["at"] - spans[-1]["end"]
    kinds["step"] += kinds.pop("data_wait", 0.0)
    named = {
        "init": "opening and initialization",
        "compile": "compile",
        "step": "steps",
        "evaluate": "evaluation",
        "save": "saving",
        "closing": "closing (with W&B)",
    }
    busy, reached = 0.0, 0.0
    for start, end in sorted(opened):
        busy += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    parts = {"start": min(leased) - began}
    parts |= {name: kinds[kind] * busy / open_seconds for kind, name in named.items()}
    parts |= {"driver, reading and planning": reached - min(leased) - busy}
    parts |= {"end": began + wall - reached}
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in parts.items())


def by_hand(case: Case, way: str, python: str = sys.executable) -> Taken:
    """Run a sweep of `tools/bench/sweep_peers`."""
    folder = case.folder / f"{way}-{time.time_ns()}"
    together = NUM_LANES if way == "vmapped" else 1
    words = [way, str(case.num_trials), str(together), str(folder), *case.overrides]
    command = [python, "-m", "tools.bench.sweep_peers.launch", *words]
    wall, cpu, printed = _timed(command, _environment(None))
    return Taken(wall, cpu, float(re.findall(r"^best (\S+)$", printed, re.MULTILINE)[-1]))


def separate(case: Case) -> Taken:
    """Run some trials as cold `luthier train` processes; return their time scaled to all trials."""
    walls, cpus, best = [], [], float("inf")
    for number in range(NUM_SEPARATE):
        folder = case.folder / f"separate-{number}-{time.time_ns()}"
        (folder / "cache").mkdir(parents=True)
        rate = LOWEST * (HIGHEST / LOWEST) ** (number / (NUM_SEPARATE - 1))
        words = [*case.overrides, f"{PEAK}={rate:.6g}", f"records.directory={folder}"]
        words += ["evaluations.held_out.every=None", "reset:evaluations.held_out.num_batches"]
        words += ["records.wandb.mode=off", f"checkpoints.every=Steps({case.steps})"]
        command = [sys.executable, "-m", "luthier", "train", EXPERIMENT, *words]
        wall, cpu, _ = _timed(command, _environment(folder / "cache"))
        (status,) = folder.glob("*/*/status.json")
        loss = json.loads(status.read_text())["evaluations"]["held_out"]["nats_per_token"]
        walls, cpus, best = [*walls, wall], [*cpus, cpu], min(best, loss)
    return Taken(
        statistics.mean(walls) * case.num_trials, statistics.mean(cpus) * case.num_trials, best
    )


def _environment(cache: pathlib.Path | None, *search: pathlib.Path) -> dict[str, str]:
    """Return the environment of a process, with its own cache of compiled programs or none."""
    dropped = ("JAX_COMPILATION_CACHE", "WANDB_", "XDG_CACHE_HOME")
    made = {k: v for k, v in os.environ.items() if not k.startswith(dropped)}
    inherited = [made["PYTHONPATH"]] if made.get("PYTHONPATH") else []
    made["PYTHONPATH"] = os.pathsep.join([*map(str, search), os.getcwd(), *inherited])
    made |= {"JAX_PLATFORMS": "cpu"}
    if cache is not None:
        made["XDG_CACHE_HOME"] = str(cache)
    return made


def _timed(command: Sequence[str], environment: Mapping[str, str]) -> tuple[float, float, str]:
    """Return wall and CPU seconds of a process with all that it waited for, and what it printed."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)}: exit {done.returncode}\n{done.stderr[-3000:]}")
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return wall, cpu, done.stdout


def _lines(path: pathlib.Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def ways(with_separate: bool) -> dict[str, Any]:
    """Return the ways that can be measured here: from a case to what a run takes."""
    made = {
        "plain loop": lambda case: by_hand(case, "loop"),
        "plain loop, accuracy": lambda case: by_hand(case, "accuracy"),
        "plain loop, saving": lambda case: by_hand(case, "saving"),
        "luthier sweep": lambda case: sweep(case, "single", "off"),
        "luthier sweep, checkpoints=None": lambda case: sweep(
            case, "single", "off", "checkpoints=None"
        ),
        "luthier sweep, W&B offline": lambda case: sweep(case, "single", "offline"),
        "plain loop, vmapped": lambda case: by_hand(case, "vmapped"),
        "luthier sweep, packed": lambda case: sweep(case, "vmap", "off"),
        "luthier sweep, lanes=auto": lambda case: sweep(case, "auto", "off"),
    }
    if importlib.util.find_spec("wandb") is None:
        print("luthier sweep, W&B offline: left out, wandb is not installed")
        del made["luthier sweep, W&B offline"]
    for name, way in (("hydra -m", "hydra"), ("Ray Tune", "ray")):
        python = os.environ.get(f"{way.upper()}_PYTHON", sys.executable)
        probe = subprocess.run([python, "-c", f"import {way}"], capture_output=True)
        if probe.returncode:
            print(f"{name}: left out, {python} has no {way} (set {way.upper()}_PYTHON)")
            continue
        made[name] = lambda case, way=way, python=python: by_hand(case, way, python)
    if with_separate:
        made["luthier train, separate"] = separate
    return made


def rows(case: Case, rounds: Sequence[Mapping[str, Taken]]) -> list[dict[str, Any]]:
    """Return the rows of a case: medians of the rounds, and of the ratios within them."""
    made = []
    for way in rounds[0]:
        took = [taken[way] for taken in rounds]
        beside = "plain loop, vmapped" if "packed" in way or "vmapped" in way else "plain loop"
        pairs = [(taken[way], taken.get(beside)) for taken in rounds]
        walls = [a.wall / b.wall for a, b in pairs if b is not None]
        cpus = [a.cpu / b.cpu for a, b in pairs if b is not None]
        made.append(
            {
                "d": case.dim,
                "trials": case.num_trials,
                "way": way,
                "wall s": statistics.median(one.wall for one in took),
                "spread": max(one.wall for one in took) - min(one.wall for one in took),
                "CPU s": statistics.median(one.cpu for one in took),
                "wall / loop": statistics.median(walls) if walls else None,
                "CPU / loop": statistics.median(cpus) if cpus else None,
                "best loss": min(one.best for one in took),
            }
        )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Time all ways of all cases, and write the rows as JSON where that is wanted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dims", type=int, nargs="+", default=[32, 128])
    parser.add_argument("--trials", type=int, nargs="+", default=[12])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--held-out-bytes", type=int, help="of the held-out plays; default: all")
    parser.add_argument("--ways", nargs="+", metavar="WAY", help="only these")
    parser.add_argument("--separate", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args(arguments)
    possible = ways(options.separate)
    chosen = options.ways or list(possible)
    if unknown := [way for way in chosen if way not in possible]:
        parser.error(f"cannot measure {unknown[0]!r}; there are {', '.join(possible)}")
    found: list[dict[str, Any]] = []
    notes: list[str] = []
    loads: list[float] = []
    for dim in options.dims:
        for num_trials in options.trials:
            with tempfile.TemporaryDirectory(prefix="luthier-bench-") as folder:
                held_out = None
                if options.held_out_bytes is not None:
                    held_out = pathlib.Path(folder, "held_out.txt")
                    text = b"".join(Shakespeare(split="held_out"))[: options.held_out_bytes]
                    held_out.write_bytes(text)
                case = Case(dim, num_trials, options.steps, held_out, pathlib.Path(folder))
                rounds: list[dict[str, Taken]] = []
                for number in range(options.rounds):
                    rounds.append({})
                    for way in chosen if number % 2 == 0 else reversed(chosen):
                        taken = rounds[-1][way] = possible[way](case)
                        loads.append(os.getloadavg()[0])
                        print(
                            f"d={dim}, {num_trials} trials, round {number + 1}: {way}: "
                            f"{taken.wall:.1f} s wall, {taken.cpu:.1f} s CPU, load {loads[-1]:.1f}",
                            flush=True,
                        )
                rounds = [{way: taken[way] for way in chosen} for taken in rounds]
                found += rows(case, rounds)
                where = [
                    f"d={dim}, {num_trials} trials, {way}: {taken.parts}"
                    for way, taken in rounds[-1].items()
                    if taken.parts
                ]
                print("\n".join(where), flush=True)
                notes += where
    if max(loads) > 2 * (os.cpu_count() or 1):
        notes.append(
            f"Other work on the machine caused a load of {min(loads):.0f} to {max(loads):.0f}, so "
            "compare the CPU seconds."
        )
    kept = ("steps", "rounds", "held_out_bytes")
    made = report.Report("sweep", {name: getattr(options, name) for name in kept}, found, notes)
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


if __name__ == "__main__":
    main()
