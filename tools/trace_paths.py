"""Print through which modules of luthier a thing passes: how far a reader has to follow it.

    python tools/trace_paths.py                # all four ways
    python tools/trace_paths.py override       # one override, from text to the config
    python tools/trace_paths.py learning_rate  # a value, from the command line to the optimizer
    python tools/trace_paths.py batch          # a batch, from the source to the loss
    python tools/trace_paths.py trial          # a trial of a sweep, from the sampler to its result

The ways are measured, not written down: real commands run under `sys.setprofile`. A module is on
the way of a value where a function of it takes, holds or returns the value; on the way of an
override where any function of it is called. Prints the modules in the order of their first call,
the number of calls, and for a batch the names of the variables that hold it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import io
import os
import pathlib
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parents[1]
PACKAGE = str(ROOT / "framework" / "luthier") + os.sep
EXPERIMENT = "configs.lm.quickstart"
PEAK = "optimizer.learning_rate.peak"
VALUE = 1.2345e-3  # occurs nowhere else
TINY = (
    *("model.dim=32", "model.num_layers=1", "model.block.mlp.hidden_dim=32"),
    *("training.steps=2", "training.global_batch_size=4", "data.length=32"),
    *("optimizer.learning_rate.warmup_steps=1", "records.samples=None", "checkpoints=None"),
    "evaluations.held_out.num_batches=1",
)


class Trace:
    """What a profiled call of luthier passed.

    Args:
      holds: Whether a variable's value is the one that is followed; None to follow every call.
    """

    def __init__(self, holds: Callable[[Any], bool] | None = None):
        self.calls: collections.Counter[str] = collections.Counter()
        self.names: dict[str, set[str]] = {}
        self._holds = holds

    def _on_event(self, frame: FrameType, event: str, result: Any) -> None:
        file = frame.f_code.co_filename
        if not file.startswith(PACKAGE) or event not in ("call", "return"):
            return
        place = file.removeprefix(PACKAGE)
        if self._holds is None:
            if event == "call":
                self.calls[place] += 1
            return
        # At its return a function has bound all its locals, its arguments among them.
        if event == "return":
            names = {name for name, value in frame.f_locals.items() if self._holds(value)}
            if names or self._holds(result):
                self.calls[place] += 1
                self.names.setdefault(place, set()).update(names)

    @contextlib.contextmanager
    def running(self) -> Iterator[Trace]:
        """Follow what this process does, in all threads that start meanwhile."""
        threading.setprofile(self._on_event)
        sys.setprofile(self._on_event)
        try:
            yield self
        finally:
            sys.setprofile(None)
            threading.setprofile(None)

    def report(self, title: str) -> str:
        """Return the way as text."""
        total = sum(self.calls.values())
        lines = [f"{title}: {len(self.calls)} files, {total} calls"]
        for place, count in self.calls.items():
            names = ", ".join(sorted(self.names.get(place, ())))
            lines.append(f"  {place:48s} {count:5d}  {names}".rstrip())
        return "\n".join(lines)


def override() -> str:
    """Follow `graph.apply` of one override."""
    from luthier import graph

    experiment = graph.resolve(EXPERIMENT)
    graph.apply(experiment, ["seed=1"])  # what is cached once a process does not count
    with Trace().running() as trace:
        graph.apply(experiment, [f"{PEAK}={VALUE!r}"])
    return trace.report("an override, from text to the config")


def learning_rate() -> str:
    """Follow a value from the command line into the schedule that the optimizer calls."""
    import fiddle as fdl

    from luthier import graph
    from luthier.cli import main as run

    def holds(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return any(holds(item) for item in value)
        if isinstance(value, str):
            return repr(VALUE) in value
        if isinstance(value, fdl.Buildable):  # the schedule's node, or one that holds it
            return getattr(value, "peak", None) == VALUE
        is_value = isinstance(value, float) and value == VALUE
        return is_value or getattr(value, "peak", None) == VALUE

    with Trace(holds).running() as trace, contextlib.redirect_stdout(io.StringIO()):
        run(["show", EXPERIMENT, f"{PEAK}={VALUE!r}", PEAK])
        experiment = graph.apply(graph.resolve(EXPERIMENT), [f"{PEAK}={VALUE!r}"])
        optimizer = graph.build(experiment.optimizer)
        optimizer.learning_rate(3)
    return trace.report("a learning rate, from the command line to the optimizer")


def batch() -> str:
    """Follow a batch through one training step, by the arrays that the loss takes."""
    import luthier
    from luthier import graph

    def holds(value: Any) -> bool:
        inside = getattr(value, "arrays", value)  # luthier's Batch carries the mapping
        return isinstance(inside, Mapping) and {"inputs", "targets"} <= set(map(str, inside))

    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
        words = [*TINY, f"records.directory={folder}", "records.wandb=None"]
        experiment = graph.apply(graph.resolve(EXPERIMENT), words)
        with Trace(holds).running() as trace:
            luthier.train(experiment)
    names = sorted(set().union(*trace.names.values()))
    return trace.report(f"a batch, from the source to the loss (as {', '.join(names)})")


# Workers end by `os._exit`, which runs no exit handlers: each module is noted when it is entered.
_CHILD = """
import os, sys, threading
seen = set()
notes = open(os.path.join(os.environ["TRACED_FOLDER"], f"{os.getpid()}.txt"), "w", buffering=1)
def on_event(frame, event, argument):
    file = frame.f_code.co_filename
    if event == "call" and file not in seen:
        seen.add(file)
        if "/luthier/study/" in file:  # workers import the study's copy of the source
            print(file.partition("/luthier/")[2], file=notes)
threading.setprofile(on_event)
sys.setprofile(on_event)
"""


def trial() -> str:
    """Run a study of one trial, and list the modules of `study` that its processes enter."""
    trace = Trace()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        (folder / "sitecustomize.py").write_text(textwrap.dedent(_CHILD), encoding="utf-8")
        path = os.pathsep.join([name, str(ROOT), str(ROOT / "framework")])
        traced = {"PYTHONPATH": path, "TRACED_FOLDER": name}
        command = [sys.executable, "-m", "luthier", "sweep", EXPERIMENT, "--trials", "1"]
        command += ["--space", f"{PEAK}=log(1e-4,1e-2)", "--devices", "cpu:1", *TINY]
        command += ["--objective", "held_out/loss"]
        command += ["records.wandb=None", f"records.directory={name}/runs"]
        environment = {**os.environ, **traced}
        done = subprocess.run(command, cwd=name, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stdout + done.stderr)
        for file in sorted(folder.glob("*.txt")):
            for place in file.read_text(encoding="utf-8").splitlines():
                if not place.endswith("__init__.py"):
                    trace.calls[place] += 1
    return trace.report("a trial, from the sampler to its result (calls: processes)")


WAYS = {way.__name__: way for way in (override, learning_rate, batch, trial)}


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("way", nargs="*", choices=[[], *WAYS], help="all of them by default")
    chosen = parser.parse_args().way
    sys.path.insert(0, str(ROOT))
    for name in chosen or WAYS:
        print(WAYS[name](), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
