"""A toy experiment, and engines that run it: at once in this process, or slowly in real ones."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import pathlib
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.study import (
    Faulted,
    Lost,
    Paused,
    Reported,
    SliceInfo,
    TrialEnded,
    TrialTrained,
    TrialWork,
    Work,
    protocol,
)
from luthier.study.protocol import Event

HERE = pathlib.Path(__file__).parent
PACKAGES = ("simulated_engine",)


@dataclasses.dataclass(frozen=True)
class Momentum:
    """One kind of optimizer."""

    rate: float = 0.1
    momentum: float = 0.9


@dataclasses.dataclass(frozen=True)
class Adaptive:
    """Another kind of optimizer."""

    rate: float = 0.01
    decay: float = 0.8


class ToyTask:
    """Says what evaluations tell."""

    @property
    def metrics(self) -> Sequence[Any]:
        """One metric, which is better lower."""
        from luthier.metrics import Metric

        return (Metric("loss"), Metric("accuracy", "higher"))


@dataclasses.dataclass(frozen=True)
class ToyCheckpoints:
    """Not None, so that paused trials may resume."""

    keep_best: Any = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Toy:
    """An experiment that is no more than a formula."""

    name: str = "toy_experiment"
    rate: float = 1e-2
    width: int = 8
    heads: int = 2
    steps: int = 4
    seed: int = 0
    note: str = ""
    extra: Any = None
    optimizer: Momentum | Adaptive = Momentum()
    task: ToyTask = dataclasses.field(default_factory=ToyTask)
    evaluations: Mapping[str, Any] = dataclasses.field(default_factory=lambda: {"held_out": None})
    checkpoints: Any = ToyCheckpoints()

    RELATIONS = ("width % heads == 0",)


def make_study(sampler: str = "random", **settings: Any) -> Any:
    """Return the graph of a study of the toy, over its rate and its width."""
    import fiddle as fdl

    from luthier import study as studies
    from luthier.metrics import Selector

    given = {
        "name": "toy",
        "base": fdl.Config(Toy),
        "space": fdl.Config(
            studies.Space, {"rate": studies.Log(1e-4, 1e-1), "width": studies.Pow2(8, 256)}
        ),
        "objectives": [fdl.Config(studies.Measured, fdl.Config(Selector, "held_out", "loss"))],
        "sampler": studies.sampler(sampler),
        "budget": fdl.Config(studies.Budget, trials=12),
        "storage": None,
        **settings,
    }
    return fdl.Config(studies.Study, **given)


def study() -> Any:
    """A study for the command line; what runs it ends at once."""
    import fiddle as fdl

    return make_study(engine=fdl.Config(InstantEngine))


def failing_study() -> Any:
    """A study for the command line, whose baseline fails."""
    import fiddle as fdl

    return make_study(engine=fdl.Config(InstantEngine, ends={0: ["broken"]}))


def experiment() -> Any:
    """An experiment for the command line."""
    import fiddle as fdl

    return fdl.Config(Toy)


def loss(values: Mapping[str, Any], step: int) -> float:
    """Return the loss after a step: deterministic, and lowest at rate 1e-3 and width 64."""
    rate = values.get("rate", 1e-2)
    rate = rate if math.isfinite(rate) else 1.0
    width = math.log2(values.get("width", 8))
    seed = values.get("seed", 0)
    ideal = (math.log10(rate) + 3) ** 2 + 0.1 * (width - 6) ** 2 + 1e-3 * math.sin(seed)
    return ideal + math.exp(-step)


def read_values(directory: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the arguments in a trial's config.json, without importing what it names."""
    return json.loads(protocol.read_text(directory, "config.json"))["graph"]["arguments"]


def make_ended(slice: int, work: TrialWork, outcome: Any, series: list[Any]) -> TrialEnded:
    """Return how a trial ended."""
    facts = {"step_seconds": 0.5, "device_seconds": 2.0, "peak_bytes": 8, "parameters": 64}
    steps = series[-1][0] if series else 0
    result = {"metrics": series[-1][1] if series else {}, "series": series, "steps": steps}
    return TrialEnded(slice, work.trial, work.fence, outcome, result={**result, "facts": facts})


class Lanes:
    """A packing: three trials of one width share a slice."""

    def __call__(self, base: Any, graph: Any, slice: SliceInfo) -> Any:
        """Return how a trial runs."""
        from luthier.study import Packed

        return Packed(key=str(graph.width), hoist=("rate",), lanes="vmap", num_lanes=3)


class ByNumber:
    """A pruner that ends all trials: those of even numbers at step 3, the others at step 1."""

    def prune(self, study: Any, trial: Any) -> bool:
        """Return whether a trial ends now."""
        return bool(trial.last_step >= (1 if trial.user_attrs["trial"] % 2 else 3))


class RefusingGate:
    """A gate that refuses all."""

    def __call__(self, graph: Any, slice: SliceInfo) -> str:
        """Return why a trial cannot run."""
        return "too wide"


class KnowingGate:
    """A gate that must know the packages of the experiment.

    Args:
      packages: The user's modules that a graph may name.
    """

    def __init__(self, packages: Sequence[str] = ()):
        self._packages = packages

    def __call__(self, graph: Any, slice: SliceInfo) -> str:
        """Return why a trial cannot run."""
        return "" if "simulated_engine" in self._packages else "simulated_engine may not be named"


class InstantEngine:
    """Runs every trial at once, in this process.

    Args:
      slices: How many there are.
      ends: What becomes of a trial, by its number; the others are complete. `lost` is a death of
        the worker and `faulted` a fault of the machine, once for each time that it is named;
        `broken` is an error in the code of the trial.
    """

    def __init__(self, slices: int = 1, ends: Mapping[int, Sequence[str]] | None = None):
        self.slices = slices
        self.started: list[tuple[int, Work]] = []
        self._ends = {trial: list(found) for trial, found in (ends or {}).items()}
        self._events: list[Event] = []
        self._asking: dict[int, tuple[int, TrialWork, list[Any], bool]] = {}
        self._paused: dict[int, list[Any]] = {}
        self.is_open = False

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Start nothing."""
        self.is_open = True
        return [SliceInfo(index, f"toy:{index}", 1) for index in range(self.slices)]

    def start(self, slice: int, work: Work) -> None:
        """Run the trials of some work."""
        self.started.append((slice, work))
        for trial in work.trials:
            self._run(slice, trial, work.asks)

    def refill(self, slice: int, trial: TrialWork) -> None:
        """Run one more trial of the work that a slice got last."""
        work = next(work for index, work in reversed(self.started) if index == slice)
        self._run(slice, trial, work.asks)

    def _run(self, slice: int, work: TrialWork, asks: bool) -> None:
        ends = self._ends.get(work.trial, [])
        end = ends.pop(0) if ends else "complete"
        if end == "lost":
            self._events.append(Lost(slice, "signal 9"))
            return
        if end == "faulted":
            reason = "cannot write there: No space left on device"
            self._events.append(Faulted(slice, work.trial, work.fence, reason))
            return
        self._asking[work.trial] = (slice, work, self._paused.pop(work.trial, []), asks)
        if end != "complete":
            self._end(work.trial, end)
        elif asks:
            self._step(work.trial)
        else:
            for _ in range(read_values(work.directory).get("steps", 4)):
                self._step(work.trial)
            self._end(work.trial, "complete")

    def _advance(self, trial: int) -> None:
        _, work, series, _ = self._asking[trial]
        values, step = read_values(work.directory), len(series) + 1
        found = {"held_out/loss": loss(values, step), "held_out/accuracy": 1 / (1 + step)}
        series.append((step, found))

    def _step(self, trial: int) -> None:
        self._advance(trial)
        slice, work, series, _ = self._asking[trial]
        fraction = len(series) / read_values(work.directory).get("steps", 4)
        self._events.append(Reported(slice, trial, work.fence, *series[-1], fraction))

    def _end(self, trial: int, outcome: Any) -> None:
        slice, work, series, _ = self._asking.pop(trial)
        ended = make_ended(slice, work, "failed" if outcome == "broken" else outcome, series)
        if outcome == "broken":
            result = {**ended.result, "fault": "code"}
            ended = dataclasses.replace(ended, reason="ValueError: boom", result=result)
        protocol.write_result(work.directory, ended)
        self._events.append(ended)

    def answer(self, slice: int, trial: int, fence: int, verdict: protocol.Verdict) -> None:
        """Go on with a trial, end it, or keep it for a later lease."""
        _, work, series, _ = self._asking[trial]
        if verdict == "prune":
            self._end(trial, "pruned")
        elif verdict == "pause" and len(series) < read_values(work.directory).get("steps", 4):
            self._paused[trial] = self._asking.pop(trial)[2]
            protocol.write_result(work.directory, make_ended(slice, work, "pruned", series))
            self._events.append(Paused(slice, trial, fence, len(series)))
        elif len(series) >= read_values(work.directory).get("steps", 4):
            self._end(trial, "complete")
        else:
            self._step(trial)

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """Forget a trial."""
        self._asking.pop(trial, None)

    def events(self, timeout: float) -> Sequence[Event]:
        """Return what happened."""
        found, self._events = self._events, []
        return found

    def close(self) -> None:
        """Do nothing more."""
        self.is_open = False


class ClosingEngine(InstantEngine):
    """Reports that a trial has trained, and its end two looks at events later.

    Args:
      closing_seconds: How long a trial is being closed.
    """

    def __init__(self, slices: int = 1, closing_seconds: float = 0.0):
        super().__init__(slices)
        self._closing_seconds = closing_seconds
        self._closed: list[list[Event]] = [[], []]

    def events(self, timeout: float) -> Sequence[Event]:
        """Return what happened."""
        found: list[Event] = []
        ends: list[Event] = []
        for event in super().events(timeout):
            if isinstance(event, TrialEnded):
                found.append(TrialTrained(event.slice, event.trial, event.fence))
                facts = {k: v for k, v in event.result["facts"].items() if k != "device_seconds"}
                ends.append(dataclasses.replace(event, result={**event.result, "facts": facts}))
            else:
                found.append(event)
        self._closed.append(ends)
        due = self._closed.pop(0)
        if due:
            time.sleep(self._closing_seconds)
        return [*found, *due]


class FailingEngine(InstantEngine):
    """Raises an error instead of its `count`th look at events; all before is as it should be."""

    def __init__(self, count: int, error: BaseException):
        super().__init__()
        self._count, self._error = count, error

    def events(self, timeout: float) -> Sequence[Event]:
        """Return what happened, or fail."""
        self._count -= 1
        if not self._count:
            raise self._error
        return super().events(timeout)


class SimulatedEngine:
    """Runs trials in worker processes that sleep between steps, and go on where they were killed.

    Args:
      slices: Worker processes.
      step_seconds: How long a step takes.
    """

    def __init__(self, slices: int = 2, step_seconds: float = 0.01):
        self._slices, self._step_seconds = slices, step_seconds
        self._workers: list[subprocess.Popen[str]] = []
        self._events: queue.Queue[Event] = queue.Queue()
        self._is_closing = False

    def open(self, directory: str) -> Sequence[SliceInfo]:
        """Start the workers."""
        self._directory = pathlib.Path(directory)
        self._workers = [self._begin(index) for index in range(self._slices)]
        return [SliceInfo(index, f"process:{index}", 1) for index in range(self._slices)]

    def _begin(self, index: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "simulated_engine", str(self._step_seconds)]
        worker = subprocess.Popen(
            command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        (self._directory / f"worker-{index}.pid").write_text(str(worker.pid))
        threading.Thread(target=self._follow, args=(index, worker), daemon=True).start()
        return worker

    def _follow(self, index: int, worker: subprocess.Popen[str]) -> None:
        kinds = {"reported": Reported, "paused": Paused, "ended": TrialEnded}
        for line in worker.stdout or ():
            with contextlib.suppress(ValueError):
                message = json.loads(line)
                self._events.put(kinds[message.pop("kind")](slice=index, **message))
        code = worker.wait()
        if not self._is_closing:
            self._workers[index] = self._begin(index)
            self._events.put(Lost(index, f"exit code {code}"))

    def _send(self, slice: int, message: Mapping[str, Any]) -> None:
        with contextlib.suppress(OSError, ValueError):  # it died: `Lost` follows
            pipe = self._workers[slice].stdin
            assert pipe is not None
            pipe.write(json.dumps(message) + "\n")
            pipe.flush()

    def start(self, slice: int, work: Work) -> None:
        """Send the one trial of some work to a worker."""
        (trial,) = work.trials
        self._send(slice, {**dataclasses.asdict(trial), "asks": work.asks})

    def refill(self, slice: int, trial: TrialWork) -> None:
        """There are no lanes here."""
        raise NotImplementedError

    def answer(self, slice: int, trial: int, fence: int, verdict: protocol.Verdict) -> None:
        """Pass an answer on."""
        self._send(slice, {"answer": verdict})

    def stop(self, slice: int, trial: int, fence: int) -> None:
        """Kill the worker, which is begun again."""
        self._workers[slice].kill()

    def events(self, timeout: float) -> Sequence[Event]:
        """Return what happened."""
        found: list[Event] = []
        with contextlib.suppress(queue.Empty):
            found.append(self._events.get(timeout=timeout))
            while True:
                found.append(self._events.get_nowait())
        return found

    def close(self) -> None:
        """End the workers."""
        self._is_closing = True
        for worker in self._workers:
            worker.kill()
            worker.wait()


def _work_forever(step_seconds: float) -> None:
    """A worker: reads trials from its input, and ends when nobody is at the other end."""
    waiting: queue.Queue[str] = queue.Queue()

    def read() -> None:
        for line in sys.stdin:
            waiting.put(line)
        os._exit(0)

    threading.Thread(target=read, daemon=True).start()
    while True:
        message = json.loads(waiting.get())
        asks = message.pop("asks")
        _run(TrialWork(**message), asks, step_seconds, waiting)


def _run(work: TrialWork, asks: bool, step_seconds: float, waiting: queue.Queue[str]) -> None:
    values, run = read_values(work.directory), pathlib.Path(work.directory, "run")
    run.mkdir(exist_ok=True)
    saved = run / "saved.json"
    series = json.loads(saved.read_text()) if saved.exists() else []
    steps = values.get("steps", 4)
    for step in range(len(series) + 1, steps + 1):
        time.sleep(step_seconds)
        metrics = {"held_out/loss": loss(values, step)}
        series.append((step, metrics))
        about = {"trial": work.trial, "fence": work.fence, "step": step}
        _say("reported", **about, metrics=metrics, fraction=step / steps)
        verdict = json.loads(waiting.get())["answer"] if asks else "continue"
        # After the answer, as training saves: what is reported is decided before it is on the disk.
        (run / "saving").write_text(json.dumps(series))
        (run / "saving").rename(saved)
        if verdict == "prune":
            return _end(work, "pruned", series)
        if verdict == "pause":
            protocol.write_result(work.directory, make_ended(0, work, "pruned", series))
            return _say("paused", **about)
    _end(work, "complete", series)


def _end(work: TrialWork, outcome: str, series: list[Any]) -> None:
    ended = make_ended(0, work, outcome, series)
    protocol.write_result(work.directory, ended)
    fields = dataclasses.asdict(ended)
    del fields["slice"]
    _say("ended", **fields)


def _say(kind: str, **fields: Any) -> None:
    print(json.dumps({"kind": kind, **fields}), flush=True)


def drive(
    directory: str, sampler: str, trials: int, slices: int, step_seconds: float, scheduler: str = ""
) -> None:
    """Begin a study in this process, or go on with it; with a scheduler, it has three rungs."""
    import fiddle as fdl

    from luthier import study as studies

    engine = SimulatedEngine(slices, step_seconds)
    if pathlib.Path(directory, "toy", "study.json").exists():
        studies.resume(f"{directory}/toy", packages=PACKAGES, engine=engine)
        return
    budget = fdl.Config(studies.Budget, trials=trials, retries=10**6)
    study = make_study(sampler, budget=budget, directory=directory)
    if scheduler:
        study.base.steps = 9
        study.scheduler = studies.scheduler(scheduler)
        study.scheduler.num_rungs = 3
    if sampler == "grid":
        study.sampler.resolution = 6
    studies.run(study, packages=PACKAGES, engine=engine)


if __name__ == "__main__":
    if sys.argv[1] == "drive":
        directory, sampler, trials, slices, step_seconds, *scheduler = sys.argv[2:]
        # As the module that a record names, and not as __main__.
        from simulated_engine import drive as drive_study

        drive_study(directory, sampler, int(trials), int(slices), float(step_seconds), *scheduler)
    else:
        _work_forever(float(sys.argv[1]))
