"""Sixteen learning rates, fifty steps each: what a sweep costs, one way and another.

    python tools/bench/sweep.py --json FILE      # both workloads, all of our ways
    python tools/bench/sweep.py --peers          # and hydra and Ray Tune, where they are installed
    python tools/bench/sweep.py --trials 2 --steps 8 --workloads d32   # a smoke run

Every way trains the same graphs: a decoder of 4 layers on bytes, AdamW with clipping, with the
records, evaluations and checkpoints of the experiment as it is. `separate` is one `luthier train`
process per trial; `warm` has a cache of compiled programs that was filled before. `luthier sweep`
is the command, with its driver, sampler, gate, journal, report and Optuna's copy. Wall time covers
everything from the first process to the last result. `bare` is what no sweep can do without: one
compile, and the steps of all trials in a plain loop, in one process that runs already. Ways take
turns in each round; medians of the rounds.

Peers run `luthier train` through their own launchers, from environments of their own:
HYDRA_PYTHON and RAY_PYTHON name their interpreters, in which luthier is importable.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pathlib
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from luthier import graph as graphs
from luthier import planner
from luthier.study.views.text import read_status
from tools.bench import report

PEAK = "optimizer.learning_rate.peak"
EXPERIMENT = "configs.lm.quickstart"
COMMON = ("optimizer.learning_rate.warmup_steps=5",)


@dataclasses.dataclass(frozen=True)
class Workload:
    """A size of the model and its batch, 4 layers deep."""

    dim: int
    length: int
    batch: int

    @property
    def overrides(self) -> tuple[str, ...]:
        """What it sets in the experiment."""
        return (
            f"model.dim={self.dim}",
            f"model.block.mlp.hidden_dim={3 * self.dim}",
            f"data.length={self.length}",
            f"training.global_batch_size={self.batch}",
        )


OURS = ("luthier sweep", "luthier sweep, lanes=auto")
WORKLOADS = {"d128": Workload(128, 128, 8), "d32": Workload(32, 32, 4)}


@dataclasses.dataclass(frozen=True)
class Case:
    """One workload, with the overrides of each of its trials."""

    trials: tuple[tuple[str, ...], ...]
    steps: int
    folder: pathlib.Path

    def environment(self, cache: str | None) -> dict[str, str]:
        """Return the environment of a process, with its own cache of compiled programs or none."""
        made = {k: v for k, v in os.environ.items() if not k.startswith("JAX_COMPILATION_CACHE")}
        made |= {"JAX_PLATFORMS": "cpu", "PYTHONPATH": os.getcwd()}
        if cache is None:
            made["JAX_ENABLE_COMPILATION_CACHE"] = "false"
        else:
            made["JAX_COMPILATION_CACHE_DIR"] = str(self.folder / cache)
            made["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
            made["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
        return made


def separate(case: Case, cache: str | None) -> None:
    """Run each trial as a `luthier train` process."""
    for number, overrides in enumerate(case.trials):
        place = f"records.directory={case.folder / str(time.time_ns()) / str(number)}"
        command = [sys.executable, "-m", "luthier", "train", EXPERIMENT, *overrides, place]
        subprocess.run(command, env=case.environment(cache), check=True, stdout=subprocess.DEVNULL)


STUDY = """
from luthier import graph as graphs
from luthier import study as studies
from luthier.study import samplers
def study():
    base = graphs.apply(graphs.resolve({experiment!r}), {words!r})
    space = studies.Space({{{peak!r}: studies.Ordinal({rates!r})}})
    graph = samplers.study_of("bench", base, space, samplers.sampler("grid"), ())
    graph.packing.lanes = {lanes!r}
    graph.directory = {directory!r}
    return graph
"""


def ours(case: Case, lanes: str) -> None:
    """Run `luthier sweep` over all trials on one device, with everything that a study has.

    The first rate is that of the experiment, so the grid's first point is a copy of the baseline.
    """
    folder = case.folder / f"{lanes}-{time.time_ns()}"
    folder.mkdir()
    rates = tuple(float(words[-1].partition("=")[2]) for words in case.trials)
    fields = {"experiment": EXPERIMENT, "words": list(case.trials[0]), "peak": PEAK}
    fields |= {"rates": rates, "lanes": lanes, "directory": str(folder)}
    (folder / "bench_study.py").write_text(STUDY.format(**fields))
    # A cache of its own, so that no other way has compiled for this one.
    made = case.environment(f"{folder.name}/cache")
    made["PYTHONPATH"] += os.pathsep + str(folder)
    command = [sys.executable, "-m", "luthier", "sweep", "bench_study:study", "--devices", "cpu:1"]
    subprocess.run(command, env=made, check=True, stdout=subprocess.DEVNULL)
    ledger = read_status(folder / "bench").ledger
    if ledger.count("complete") != len(case.trials) + 1:
        raise RuntimeError(f"{ledger.count('complete')} trials of {folder} are complete")


def bare(case: Case) -> tuple[float, float]:
    """Return wall and CPU seconds of one compile, and of the steps of all trials in a plain loop.

    Those of the steps are taken from the median of one trial's.
    """
    graph = graphs.apply(graphs.resolve(EXPERIMENT), [*case.trials[0]])
    start, processor = time.perf_counter(), time.process_time()
    program = planner.make(graph, jax.devices()[:1], (PEAK,)).program
    step, values = program.compile_step(), program.values()
    leaves = jax.block_until_ready(program.init(values))
    compiled = time.perf_counter() - start
    compiled_processor = time.process_time() - processor
    batch = {
        name: jax.device_put(np.zeros(entry.shape, entry.dtype), entry.sharding)
        for name, entry in program.batch.items()
    }
    times, processor = [], time.process_time()
    for _ in range(case.steps):
        start = time.perf_counter()
        leaves, vector = step(values, leaves, batch)
        jax.block_until_ready(vector)
        times.append(time.perf_counter() - start)
    stepped = statistics.median(times) * case.steps * len(case.trials)
    stepped_processor = (time.process_time() - processor) * len(case.trials)
    print(f"  bare: one compile {compiled:.1f} s, all steps {stepped:.1f} s")
    return compiled + stepped, compiled_processor + stepped_processor


HYDRA = """
import hydra, subprocess, sys, os
@hydra.main(version_base=None, config_path=None)
def main(config):
    subprocess.run([sys.executable, "-m", "luthier", "train", {experiment!r}, *{common!r},
        "{peak}=" + str(config.rate), "records.directory=" + os.getcwd()], check=True,
        stdout=subprocess.DEVNULL)
main()
"""

RAY = """
import json, os, sys
from ray import tune
import ray
class Trial(tune.Trainable):
    def setup(self, config): pass
    def reset_config(self, config): return True
    def step(self):
        import luthier
        from luthier import graph as graphs
        sys.path.insert(0, {here!r})
        words = [*{common!r}, "{peak}=" + str(self.config["rate"])]
        words += ["records.directory=" + os.getcwd()]
        luthier.train(graphs.apply(graphs.resolve({experiment!r}), words), new=True)
        return {{"done": True}}
ray.init(num_cpus=1, log_to_driver=False)
never = tune.CheckpointConfig(checkpoint_at_end=False)
results = tune.Tuner(Trial, param_space={{"rate": tune.grid_search({rates!r})}},
    run_config=tune.RunConfig(storage_path={folder!r}, checkpoint_config=never, verbose=0),
    tune_config=tune.TuneConfig(reuse_actors=True)).fit()
sys.exit(str(results.errors[0]) if results.errors else 0)
"""


def peer(case: Case, name: str, python: str) -> None:
    """Run the trials through another launcher."""
    common = [word for word in case.trials[0] if not word.startswith(PEAK)]
    rates = [float(words[-1].partition("=")[2]) for words in case.trials]
    fields = {"experiment": EXPERIMENT, "common": common, "peak": PEAK, "rates": rates}
    fields |= {"here": os.getcwd(), "folder": str(case.folder)}
    program = {"hydra": HYDRA, "ray": RAY}[name].format(**fields)
    path = case.folder / f"launch_by_{name}.py"
    path.write_text(program)
    words = ["--multirun", "+rate=" + ",".join(map(str, rates))] if name == "hydra" else []
    subprocess.run(
        [python, str(path), *words],
        cwd=case.folder,
        env=case.environment(name),
        check=True,
        stdout=subprocess.DEVNULL,
    )


def timed(name: str, call: Callable[[], None]) -> tuple[float, float]:
    """Return wall and CPU seconds of a call, with those of its processes."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    call()
    wall, after = time.perf_counter() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    cpu = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    print(f"  {name:28s} {wall:8.1f} s wall {cpu:8.1f} s CPU", flush=True)
    return wall, cpu


def measure(name: str, case: Case, with_peers: bool) -> dict[str, tuple[float, float]]:
    """Time all ways of one workload."""
    print(f"{name}: {len(case.trials)} trials x {case.steps} steps")
    found = {"bare": bare(case)}
    found["separate, cold"] = timed("separate, cold", lambda: separate(case, None))
    separate(dataclasses.replace(case, trials=case.trials[:1]), "warm")
    found["separate, warm cache"] = timed("separate, warm cache", lambda: separate(case, "warm"))
    for way, lanes in zip(OURS, ("single", "auto"), strict=True):
        found[way] = timed(way, lambda x=lanes: ours(case, x))
    for peer_name in ("hydra", "ray") if with_peers else ():
        python = os.environ.get(f"{peer_name.upper()}_PYTHON")
        if not python or shutil.which(python) is None:
            print(f"  {peer_name}: skipped, set {peer_name.upper()}_PYTHON to its interpreter")
            continue
        found[peer_name] = timed(peer_name, lambda p=peer_name, x=python: peer(case, p, x))
    return found


def rows(name: str, rounds: Sequence[Mapping[str, tuple[float, float]]]) -> list[dict[str, Any]]:
    """Return the rows of a workload: medians and spread of the rounds, and ratios within them."""
    best = [min(taken[way][0] for way in OURS) for taken in rounds]
    made = []
    for way in rounds[0]:
        walls, processor = zip(*(taken[way] for taken in rounds), strict=True)
        ratios = [wall / least for wall, least in zip(walls, best, strict=True)]
        made.append(
            {
                "workload": name,
                "way": way,
                "wall s": statistics.median(walls),
                "spread": max(walls) - min(walls),
                "CPU s": statistics.median(processor),
                "to the better of ours": statistics.median(ratios),
            }
        )
    return made


def main(arguments: Sequence[str] | None = None) -> None:
    """Time the sweep, and write what was found as JSON where that is wanted."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trials", type=int, default=16)
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--workloads", nargs="+", choices=list(WORKLOADS), default=list(WORKLOADS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("--json", type=pathlib.Path)
    options = parser.parse_args(arguments)
    jax.config.update("jax_platforms", "cpu")
    sys.path.insert(0, os.getcwd())
    rates = np.geomspace(1e-4, 1e-2, options.trials)
    found: list[dict[str, Any]] = []
    for name in options.workloads:
        steps = f"training.steps={options.steps}"
        shared = (*WORKLOADS[name].overrides, *COMMON, steps)
        trials = tuple((*shared, f"{PEAK}={rate:.6g}") for rate in rates)
        rounds = []
        for _ in range(options.rounds):
            with tempfile.TemporaryDirectory(prefix="luthier-bench-") as folder:
                case = Case(trials, options.steps, pathlib.Path(folder))
                rounds.append(measure(name, case, options.peers))
        found += rows(name, rounds)
    kept = ("trials", "steps", "rounds")
    made = report.Report("sweep", {name: getattr(options, name) for name in kept}, found)
    print(report.table(made))
    if options.json:
        report.write(made, options.json)


if __name__ == "__main__":
    main()
