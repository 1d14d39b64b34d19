"""Measure luthier on a GPU that is lent for minutes, in commands of ten: pack, run stages, merge.

    python tools/gpu_hour.py pack DIR                     # here: wheels, code; prints the commands
    python tools/gpu_hour.py stage N --out DIR            # there, N = 1 to 4; until it is done
    python tools/gpu_hour.py merge FILE.jsonl ...         # here: tools/bench/results/gpu_hour.*

Stages: 1 the machine (versions, three steps, the fastest product and copy); 2 GPT-2 of 124M, one
change at a time, beside compiled nanoGPT, in turns; 3 `luthier train` of 300 steps with a
checkpoint, an evaluation and a SIGKILL in it, and nanoGPT over the same batches from the same
initial weights; 4 sixteen packed trials beside one.

Every case is a process of its own, the only one in memory, and a line of JSON as soon as it ends. A
stage ends itself before `--deadline`; the next call runs the cases that are not recorded in `--out`
or in `results/` of the bundle. `--toy` runs all of it at a size for a CPU.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import platform
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.bench.gpu_hour import bundle, cases, runs, tables
from tools.bench.gpu_hour.cases import BASE, CUDNN, EINSUM, SIZES, Case

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "tools" / "bench" / "results"
PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "fiddle", "grain", "torch")
# Asks Linux to be killed when its parent ends (PR_SET_PDEATHSIG, which exec keeps), then becomes
# the command. Not by `preexec_fn`, which forks a process that may have threads.
TIED = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); "
TIED += "os.execv(sys.executable, [sys.executable, *sys.argv[1:]])"
STEPS = {False: 300, True: 60}  # of stage 3
EXPERIMENT = "tools.bench.gpu_hour.experiment"


def read(paths: Sequence[Path]) -> list[dict[str, Any]]:
    """Return the records of files; a line that was torn by a kill is no record."""
    found = []
    for path in paths:
        for line in path.read_text(encoding="utf-8", errors="replace").split("\n"):
            try:
                record = json.loads(line)
            except ValueError:
                continue
            if isinstance(record, dict) and "case" in record:
                found.append(record)
    return found


def append(path: Path, record: Mapping[str, Any]) -> None:
    """Append a record, durably; a torn last line is ended first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a+b") as file:
        if file.tell() and path.read_bytes()[-1:] != b"\n":
            file.write(b"\n")
        file.write(json.dumps(record).encode() + b"\n")
        file.flush()
        os.fsync(file.fileno())


class Stage:
    """The run of a stage: children one after another, none longer than the stage.

    Args:
      number: The stage.
      out: Where records go.
      deadline: Seconds from now at which it must have ended.
      toy: Whether sizes are for a CPU.
      scratch: Weights, batches, runs and compiled programs.
    """

    def __init__(self, number: int, out: Path, deadline: float, toy: bool, scratch: Path):
        self.number, self.toy = number, toy
        self.end = time.monotonic() + deadline
        self.path = out / f"stage{number}.jsonl"
        self.scratch = scratch
        self.size = SIZES[toy]
        self.chip = _chip()
        self.commands: list[str] = []
        scratch.mkdir(parents=True, exist_ok=True)
        # Recorded configs name classes of this package; the project file allows it.
        (scratch / "pyproject.toml").write_text('[tool.luthier]\npackages = ["tools"]\n')

    def run(self, asked: Sequence[Case]) -> bool:
        """Run what is not recorded; return whether nothing is left."""
        records = read([*self.path.parent.glob("*.jsonl"), *ROOT.glob("results/*.jsonl")])
        here = (self.number, self.toy, self.chip)
        records = [r for r in records if (r["stage"], r["toy"], r["chip"]) == here]
        is_first = True
        for case in asked:
            own = [r["status"] for r in records if r["key"] == case.key]
            # A case that was cut twice, though it came first, is too long for any stage.
            if {"ok", "failed"} & {*own} or own.count("too long") > 1:
                print(f"{case.key}: recorded", flush=True)
                continue
            left = self.end - time.monotonic()
            if left < (5 if is_first or self.toy else case.seconds):
                print(f"{case.key}: {left:.0f} s left; run the stage again", flush=True)
                return False
            status, result = self._measure(case)
            if status == "cut" and is_first:
                status = "too long"
            self._record(case, status, result)
            if status in ("cut", "too long"):
                return False
            is_first = False
        return True

    def _measure(self, case: Case) -> tuple[str, dict[str, Any]]:
        self.commands, start = [], time.monotonic()
        folder = self.scratch / "case"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        try:
            result = getattr(self, f"_{case.kind}")(case, folder)
        except subprocess.TimeoutExpired:
            return "cut", {}
        except (RuntimeError, OSError, LookupError, ValueError, StopIteration) as error:
            return "failed", {"error": str(error)[-2000:]}
        return "ok", {**result, "case_seconds": time.monotonic() - start}

    def _record(self, case: Case, status: str, result: Mapping[str, Any]) -> None:
        record = {"case": case.name, "key": case.key, "stage": self.number, "status": status}
        record |= {"round": case.round, "toy": self.toy, "result": dict(result)}
        record |= {"command": self.commands, "chip": self.chip, "versions": _versions()}
        record["date"] = datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
        append(self.path, record)
        shown = {k: v for k, v in result.items() if not isinstance(v, (list, dict))}
        print(f"{case.key}: {status} {json.dumps(shown)[:600]}", flush=True)

    def start(self, command: Sequence[str], log: Path) -> subprocess.Popen[str]:
        """Start a process, which ends with this one, whatever ends this one."""
        self.commands.append(shlex.join(["python", *command]))
        paths = [str(ROOT), str(ROOT / "framework"), os.environ.get("PYTHONPATH", "")]
        own = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1"}
        own |= {"JAX_COMPILATION_CACHE_DIR": str(self.scratch / "compiled")}
        own |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "1", "TF_CPP_MIN_LOG_LEVEL": "2"}
        with log.open("ab") as output:
            return subprocess.Popen(
                [sys.executable, "-c", TIED, *command],
                cwd=self.scratch,
                env={**os.environ, **own},
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, process: subprocess.Popen[str], log: Path, is_over: Any = None) -> None:
        """Wait for a process to end, or until `is_over`; what is late is killed."""
        try:
            while process.poll() is None and not (is_over and is_over()):
                if time.monotonic() > self.end - 3:
                    raise subprocess.TimeoutExpired(process.args, 0)
                time.sleep(0.05)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
        if process.returncode and not (is_over and process.returncode == -signal.SIGKILL):
            output = log.read_text(errors="replace").strip()
            raise RuntimeError(f"exit code {process.returncode}: {output}")

    def result_of(self, command: Sequence[str], log: Path) -> Any:
        """Return the last JSON object that a process printed."""
        self.wait(self.start(command, log), log)
        lines = log.read_text(errors="replace").splitlines()
        # Libraries may warn on their way out, after the answer.
        return json.loads(next(line for line in reversed(lines) if line.startswith("{")))

    def _versions(self, case: Case, folder: Path) -> dict[str, Any]:
        code = "import jax, json, luthier.trainer; d = jax.devices(); "
        code += "print(json.dumps({'devices': [x.device_kind for x in d]}))"
        return self.result_of(["-c", code], folder / "log")

    def _ceilings(self, case: Case, folder: Path) -> dict[str, Any]:
        side = "256" if self.toy else "8192"
        command = ["-m", "tools.bench.gpu_hour.probe", str(self.size["name"]), side]
        return self.result_of(command, folder / "log")

    def _train(self, case: Case, folder: Path, steps: int, *words: str) -> list[str]:
        core = EINSUM if self.toy else CUDNN.format(1)  # there is no cuDNN on a CPU
        filled = [o.format(**self.size) if "{vocab}" in o else o for o in case.overrides]
        command = ["-m", "luthier", "train", f"{EXPERIMENT}:experiment({self.size['name']!r})"]
        return [
            *command,
            *BASE,
            core,
            f"training.steps={steps}",
            f"records.directory={folder / 'runs'}",
            *words,
            *filled,
        ]

    def _bare(self, case: Case, folder: Path, *words: str) -> dict[str, Any]:
        steps = 3 if self.number == 1 else 20 if self.toy else 70
        none = ("evaluations={}", "checkpoints=None", "optimizer.learning_rate.warmup_steps=1")
        command = self._train(case, folder, steps, *none, *words)
        self.wait(self.start(command, folder / "log"), folder / "log")
        return runs.of_run(folder)

    def _profile(self, case: Case, folder: Path) -> dict[str, Any]:
        result = self._bare(case, folder, "--profile", "steps=12:15")
        code = "import json, pathlib, sys; from tools.bench.gpu_hour import traces as t; "
        code += "e = t.read(pathlib.Path(sys.argv[1])); "
        code += "print(json.dumps({'shares': t.shares(e), 'longest': t.longest(e)}))"
        return result | self.result_of(["-c", code, str(folder / "runs")], folder / "log")

    def _files(self) -> Path:
        """Return the folder of initial weights and batches; another machine makes the same."""
        files = self.scratch / f"files-{self.size['name']}"
        if not (files / "done").exists():
            command = ["-m", EXPERIMENT, str(files), str(self.size["name"]), str(STEPS[self.toy])]
            self.wait(self.start(command, self.scratch / "log"), self.scratch / "log")
            (files / "done").touch()
        return files

    def _torch(self, case: Case, folder: Path) -> dict[str, Any]:
        steps = STEPS[self.toy] if self.number == 3 else 20 if self.toy else 70
        command = [str(ROOT / "tools" / "bench" / "gpu_hour" / "nanogpt.py"), str(self._files())]
        heads = str(self.size["heads"])
        return self.result_of(
            [*command, heads, str(steps), "no" if self.toy else "yes"], folder / "log"
        )

    def _product(self, case: Case, folder: Path) -> dict[str, Any]:
        steps, log = STEPS[self.toy], folder / "log"
        words = [f"restore=safetensors:{self._files() / 'weights'}"]
        words += [f"checkpoints.every=Steps({steps // 3})"]
        words += [f"evaluations.held_out.every=Steps({steps // 3})"]
        command = self._train(case, folder, steps, *words)
        start = time.monotonic()
        # Killed after the checkpoint of a third, on its way to the next; then the same command.
        process = self.start(command, log)
        self.wait(process, log, lambda: runs.last_step(folder) > steps // 2)
        if process.returncode == 0:
            raise RuntimeError("the run ended before it could be killed")
        before = runs.losses(folder)
        self.wait(self.start(command, log), log)
        after, result = runs.losses(folder), runs.of_run(folder)
        both = sorted({*before} & {*after})
        same = sum(before[step] == after[step] for step in both)
        result |= {"losses": [after[step] for step in sorted(after)], "resumed": len(both)}
        result |= {"resumed_same": same, "killed_after": max(before)}
        return result | {"train_seconds": time.monotonic() - start}

    def _packed(self, case: Case, folder: Path) -> dict[str, Any]:
        size = "packed-toy" if self.toy else "packed"
        command = ["-m", "tools.bench.gpu_hour.packed", size, *case.overrides]
        return self.result_of(command, folder / "log")

    def _sweep(self, case: Case, folder: Path) -> dict[str, Any]:
        number, lanes = case.overrides
        size = "packed-toy" if self.toy else "packed"
        # The baseline, trial 0, has a program of its own: packed are the trials after it.
        total = int(number) + (lanes != "single")
        reference = f"{EXPERIMENT}:study({size!r}, {total}, {lanes!r}, {int(number)})"
        command = ["-m", "luthier", "sweep", reference, f"directory={folder / 'studies'}"]
        command.append(f"base.training.steps={30 if self.toy else 300}")
        start = time.monotonic()
        self.wait(self.start(command, folder / "log"), folder / "log")
        wall = time.monotonic() - start
        files = sorted(folder.glob("studies/*/trials/*/run/metrics.jsonl"))[-int(number) :]
        trials = [runs.of_run(file) for file in files]
        if len(trials) != int(number):
            raise RuntimeError(f"{len(trials)} trials: {(folder / 'log').read_text()}")
        seconds = statistics.median(run["step_seconds"] for run in trials)
        return {
            "step_seconds": seconds,
            "trial_steps_per_second": len(trials) / seconds,
            "wall_seconds": wall,
            "losses_at_end": [run["loss"] for run in trials],
        }


def _versions() -> dict[str, str | None]:
    found: dict[str, str | None] = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            found[name] = None
    return found


def _chip() -> str:
    asked = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader"]
    if shutil.which(asked[0]) is None:
        return "cpu"
    return subprocess.run(asked, capture_output=True, text=True).stdout.strip() or "unknown"


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; return 0, or 75 where a stage has cases left, or 2."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    packing = commands.add_parser("pack", help="make the bundle")
    packing.add_argument("folder", type=Path)
    staging = commands.add_parser("stage", help="measure, and record line by line")
    staging.add_argument("number", type=int, choices=(1, 2, 3, 4))
    staging.add_argument("--out", type=Path, required=True, help="the folder of records")
    staging.add_argument("--deadline", type=float, default=560, help="seconds")
    staging.add_argument("--toy", action="store_true", help="a size for CPUs")
    scratch = Path(tempfile.gettempdir()) / "gpu-hour"
    staging.add_argument("--scratch", type=Path, default=scratch)
    merging = commands.add_parser("merge", help="write the tables")
    merging.add_argument("files", type=Path, nargs="+")
    merging.add_argument("--results", type=Path, default=RESULTS)
    arguments = parser.parse_args(argv)
    if arguments.command == "pack":
        bundle.pack(arguments.folder.absolute())
        return 0
    if arguments.command == "merge":
        try:
            # The same record may be in several files; a case that was run again counts once.
            records = {(r["chip"], r["stage"], r["key"]): r for r in read(arguments.files)}
            print(tables.write([*records.values()], arguments.results, RESULTS))
        except ValueError as error:
            print(f"gpu_hour: {error}", file=sys.stderr)
            return 2
        return 0
    stage = Stage(
        arguments.number,
        arguments.out.absolute(),
        arguments.deadline,
        arguments.toy,
        arguments.scratch.absolute(),
    )
    return 0 if stage.run(cases.of_stage(arguments.number, arguments.toy)) else 75


if __name__ == "__main__":
    sys.exit(main())
