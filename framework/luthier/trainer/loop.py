"""The training loop: the only place that knows time, cadence and hooks."""

from __future__ import annotations

import collections
import dataclasses
import math
import resource
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import jax
import numpy as np

from luthier.checkpoint.policy import LOSS
from luthier.durations import Progress
from luthier.errors import StoreUnavailable, TrainingStopped
from luthier.metrics import Metric
from luthier.planner import Plan
from luthier.program import Program
from luthier.program.program import Leaves, Values
from luthier.records import Goodput, events
from luthier.storage import require_format
from luthier.trainer.cadence import is_due, is_over
from luthier.trainer.divergence import Rise
from luthier.trainer.evaluate import Evaluator, Patience
from luthier.trainer.feed import Batch, Feed
from luthier.trainer.interrupt import PREEMPTED, Watcher
from luthier.trainer.media import Shows
from luthier.trainer.profile import Profiler
from luthier.trainer.results import FINISHED

# JAX dispatches steps asynchronously: reading the scalars of a step right after it was dispatched
# would leave the devices idle while the host prepares the next one. Without any bound the host
# would queue steps, and their batches, without end. Two keep the devices busy, and a divergence is
# noticed two steps late at most.
NUM_PENDING = 2
"""Steps whose scalars may still be on the device: the host never runs further ahead."""

# `memory_stats` is a call per device.
_FRESH_SECONDS = 0.1
"""How long a reading of memory stands: to ask all devices takes as long as all else of a step."""

POSITION_FORMAT = 1
"""The format of a position in a checkpoint; one without a format is of format 1."""


@dataclasses.dataclass
class Position:
    """The position of a run: everything of the loop, beside the state, that decides its future.

    Args:
      progress: Steps, tokens, epochs and seconds so far.
      patience: The state of early stopping.
      rise: The state of the look-out for divergence.
      ended: Reason why the run is over before its last step, or None.
      finished: Whether the last evaluations are done.
    """

    progress: Progress = dataclasses.field(default_factory=Progress)
    patience: Patience = dataclasses.field(default_factory=Patience)
    rise: Rise = dataclasses.field(default_factory=Rise)
    ended: str | None = None
    finished: bool = False

    def to_dict(self) -> dict[str, Any]:
        """Return the position as JSON values.

        Returns:
          JSON values by name.
        """
        return {
            "format": POSITION_FORMAT,
            "progress": dataclasses.asdict(self.progress),
            "patience": self.patience.to_dict(),
            "rise": self.rise.to_dict(),
            "ended": self.ended,
            "finished": self.finished,
        }

    @classmethod
    def from_dict(cls, fields: Mapping[str, Any]) -> Position:
        """Return the object whose `to_dict` gave these fields.

        Args:
          fields: What `to_dict` returned.

        Returns:
          The object.

        Raises:
          VersionError: A later luthier wrote it in a format of its own.
        """
        require_format("the position in a checkpoint", fields, POSITION_FORMAT)
        known = {field.name for field in dataclasses.fields(Progress)}
        return cls(
            # What a later version adds is not known here, and harmless.
            Progress(**{k: v for k, v in fields["progress"].items() if k in known}),
            Patience.from_dict(fields["patience"]),
            Rise.from_dict(fields.get("rise", {})),
            fields["ended"],
            fields["finished"],
        )


@dataclasses.dataclass(frozen=True)
class Rates:
    """Constants that turn a step's time into rates.

    Args:
      model_flops_per_step: FLOPs that a step owes to the model.
      peak_flops: Peak of all devices together, FLOPs per second; None where unknown.
      rows_per_epoch: Rows of the training data.
    """

    model_flops_per_step: int
    peak_flops: float | None
    rows_per_epoch: int


State = Any
"""The state of a run as its step keeps it: the flat leaves, or nothing where a pack holds them."""


# The seam between the loop and whatever takes its steps: packed trials of a sweep share one vmapped
# step, and each of them runs this same loop, so that their records, evaluations and checkpoints are
# those of a run of its own.
class TrainStep(Protocol):
    """Takes the steps of a run: with its own program, or packed with other trials in one.

    Attributes:
      takes_host_batches: Whether it takes batches as NumPy arrays, and places them itself.
      keeps_batches: Whether batches are kept for other runs of its program, see `KeptBatches`.
    """

    takes_host_batches: bool
    keeps_batches: bool

    def begin(self) -> None:
        """Begin to compile, while the state is made or restored."""

    def load(self, values: Values, leaves: Leaves) -> State:
        """Return the state to begin with, and keep the hoisted scalars that steps take.

        Args:
          values: The hoisted scalars.
          leaves: The flat state: arrays in the order of `names`.

        Returns:
          The state to begin with.
        """

    def prepare(self) -> None:
        """Compile, so that the first step takes no longer than the others."""

    def __call__(self, state: State, batch: Mapping[str, jax.Array]) -> tuple[State, jax.Array]:
        """Take a step.

        The arrays of the state are donated: it must not be used any more. The vector may be
        anything that NumPy can make an array of; nothing waits for it here.

        Args:
          state: The state.
          batch: The entries of a global batch.

        Returns:
          The next state, and a float vector [scalars].
        """

    def leaves(self, state: State) -> Leaves:
        """Return the flat leaves of a state; the next step may donate them.

        Args:
          state: The state.

        Returns:
          Arrays in the order of `names`.
        """


class CompiledStep:
    """The step of a run that has its devices to itself.

    Args:
      program: The program of the state.
      keeps_batches: Whether batches are kept for other runs of the program.
    """

    takes_host_batches = False

    def __init__(self, program: Program, keeps_batches: bool = False):
        self.keeps_batches = keeps_batches
        self._program = program
        self._values: Values = ()
        self._step: Callable[..., Any]

    def begin(self) -> None:
        """Begin to compile, in a thread."""
        self._program.begin_step()

    def load(self, values: Values, leaves: Leaves) -> State:
        """Return the leaves, which are the state; keep the hoisted scalars.

        Args:
          values: The hoisted scalars.
          leaves: The flat state: arrays in the order of `names`.

        Returns:
          The state to begin with.
        """
        self._values = values
        return leaves

    def prepare(self) -> None:
        """Wait for the compiled step."""
        self._step = self._program.compile_step()

    def __call__(self, state: State, batch: Mapping[str, jax.Array]) -> tuple[State, jax.Array]:
        """Take a step.

        Args:
          state: The state.
          batch: The entries of a global batch.

        Returns:
          The next state, and a float vector [scalars].
        """
        return self._step(self._values, state, batch)

    def leaves(self, state: State) -> Leaves:
        """Return the leaves.

        Args:
          state: The state.

        Returns:
          Arrays in the order of `names`.
        """
        return state


# Everything that happens at a step boundary is decided by `Progress`, which is saved with each
# checkpoint and which all processes agree on, never by what one process alone has seen. So a
# resumed run does the same at the same steps as one that was never stopped, and no process waits in
# a collective that the others do not enter.
#
# At each boundary the order is: record, evaluate, show, save. A diverged state is neither evaluated
# nor saved; a checkpoint holds the metrics of its own step, by which `keep_best` judges it, and the
# patience after them.
class Loop:
    """Trains from a position to the end of the experiment, or to the first reason to stop.

    Args:
      plan: The plan of the run.
      values: The hoisted scalars.
      step: Takes the steps.
      state: The state to begin with, as `step` keeps it.
      position: Where the run is.
      feed: The training batches, at the position.
      watcher: Asked at every step boundary, and given the results of every evaluation.
      emit: Takes the events of the run.
      save: Saves (step, leaves, position, metrics of this step by `evaluation/metric`), in the
        fast tier with `durable=False`.
      rates: Constants that turn a step's time into rates.
      profiler: Traces the steps that were asked for.
      goodput: Counts the time spent beside steps.
      beat: Called with the steps done, as a sign of life.
      saved_step: The step of the newest durable checkpoint.
    """

    def __init__(
        self,
        plan: Plan,
        values: Values,
        step: TrainStep,
        state: State,
        position: Position,
        feed: Feed,
        watcher: Watcher,
        *,
        emit: Callable[[Any], None],
        save: Callable[..., None],
        rates: Rates,
        profiler: Profiler,
        goodput: Goodput,
        beat: Callable[[int], None] = lambda steps: None,
        saved_step: int = 0,
    ):
        self.plan = plan
        self.values = values
        self.step = step
        self.state = state
        self.position = position
        self.status: str | None = None
        self.metrics: dict[str, dict[Metric, float]] = {}
        self._feed = feed
        self._watcher = watcher
        self._emit = emit
        self._save = save
        self._rates = rates
        self._profiler = profiler
        self._goodput = goodput
        self._beat = beat
        self._experiment = plan.program.experiment
        self._global_batch_size = self._experiment.training.global_batch_size
        # Steps whose scalars were not read yet, with the progress after them, the batch that they
        # took, and the seconds that the host took for them.
        self._pending: collections.deque[tuple[Progress, jax.Array, Batch, float]] = (
            collections.deque()
        )
        # They compile at their first use: a run that never evaluates pays nothing for them.
        self._evaluators = {
            name: Evaluator(plan.program, evaluation, f"evaluations.{name}", self._alive)
            for name, evaluation in self._experiment.evaluations.items()
        }
        self._memory = _Memory(jax.local_devices())
        self._scalar_names: tuple[str, ...] = ()
        self._shows = Shows(plan.program, emit)
        self._saved_step = saved_step
        self._unsaved: Leaves | None = None  # the state at the end, for `save_last`
        self._evaluated_step: dict[str, int] = {}
        self._nan_noted: set[tuple[str, str]] = set()
        # The watcher's answer to the last evaluation: it is asked once for each, and followed at
        # the next boundary.
        self._verdict: str | None = None
        # The progress at which intervals were judged last. Not `position.progress`: with one
        # process that takes in the seconds of every step that is read, so that an interval in
        # seconds could be reached between two boundaries and be seen by neither.
        self._judged = position.progress
        self._seconds = position.progress.seconds
        # With several processes a stop is taken from the batch, which brings it to all of them at
        # the same step; `watcher.requested` is this process's own wish only.
        self._agreed_stop: str | None = None
        # None before the first step; NaN after a step that was not finite, which marks the
        # checkpoint as no way back (`Checkpoints.kept`).
        self._loss: float | None = None
        # Why the run has diverged. It is set where scalars are read, in the middle of a step
        # boundary, and raised by `advance` and `_finish`, which first bring the record up to date.
        # The first reason stays: the later ones are its consequences.
        self._divergence: str | None = None
        # When the scalars of the last step were read, and when it was handed to the devices.
        self._clock = self._handed = time.perf_counter()

    def run(self) -> None:
        """Train to the end, or to the first reason to stop; `status` then holds it.

        The state at the end is left to `save_last`.

        Raises:
          TrainingStopped: The run has diverged.
        """
        self.begin()
        while (batch := self.next_batch()) is not None:
            self.advance(batch)

    def begin(self) -> None:
        """Compile what the first step needs."""
        with self._goodput.span("compile"):
            self.step.prepare()
            self._scalar_names = self.plan.program.scalar_names
        self._restart_clock()
        self._alive()
        self._watcher.ready()

    def next_batch(self) -> Batch | None:
        """Return the batch of the next step, waiting for it if need be.

        Returns:
          None where there is no next step. All is evaluated then as the end demands, `status` is
          `finished`, or the watcher's reason to leave, and `save_last` saves what is not saved.

        Raises:
          TrainingStopped: The run has diverged.
        """
        if self._is_complete():
            self._finish()
            return None
        # Completion first: a run that is asked to stop at its last step has nothing left to be
        # resumed for, and ends as finished.
        reason = self._verdict or self._requested()
        if reason is not None:
            self._end(reason)
            return None
        self._profiler.before(self.position.progress.steps)
        try:
            batch = self._feed.next()
        except StoreUnavailable as error:
            # As if the machine were taken away: nothing is wrong with the run, which is saved at
            # this step (the same in all processes) and may be started again.
            self._emit(events.Notice(f"{error}"))
            self._end(PREEMPTED)
            return None
        self._goodput.add("data_wait", batch.wait_seconds)
        return batch

    def advance(self, batch: Batch) -> None:
        """Take a step, then do what is due after it.

        The host runs ahead of the devices: the scalars of this step are read when `NUM_PENDING`
        more have been taken, and nothing else here waits for it unless an evaluation, a save or a
        picture is due.

        Args:
          batch: The result of `next_batch`.

        Raises:
          TrainingStopped: The run has diverged.
        """
        self.state, scalars = self.step(self.state, batch.arrays)
        before_it, self._handed = self._handed, time.perf_counter()
        if self._profiler.after(self.position.progress.steps, scalars):
            self._emit(events.Notice("the trace of the profiled steps is written"))
        if self._feed.agreeing is not None:
            self._feed.agreeing.times.stepped(scalars)
        # Everything below uses the step's own progress, not a clock: see the comment of the class.
        before, now = self._judged, self._next_progress(batch)
        self.position.progress = self._judged = now
        self._agreed_stop = None if batch.agreed is None else batch.agreed.stop
        self._pending.append((now, scalars, batch, self._handed - before_it))
        # Reads the step two before this one, while this one runs. From here on nothing may wait for
        # the devices unless it is due.
        self._drain(NUM_PENDING)
        if self._divergence is not None:
            self._stop_diverged()
        # Evaluations come before the save, because the checkpoint keeps their metrics and the
        # patience after them.
        self._evaluate_due(before, now)
        self._show_due(before, now, batch)
        self._save_due(before, now)
        self._alive()
        if self._divergence is not None:
            self._stop_diverged()

    @property
    def leaves(self) -> Leaves:
        """The flat state as it is now; the next step may donate it."""
        return self.step.leaves(self.state)

    def save_last(self) -> None:
        """Save the state of a loop that has ended, unless it is saved.

        Nothing else uses the loop by then, so that this may be done in another thread, while the
        devices train the next trial of a study.
        """
        leaves, self._unsaved = self._unsaved, None
        if leaves is not None:
            self._write(leaves)

    def release(self) -> None:
        """Give up the state of a loop that has ended, but for what `save_last` saves."""
        self.state = None

    def _end(self, status: str) -> None:
        if self.position.progress.steps > self._saved_step:
            self._drain(0)
            self._unsaved = self.leaves
        self.status = status

    def _requested(self) -> str | None:
        """Return why to leave at this step: the same in all processes, where there are several."""
        return self._watcher.requested if self._feed.agreeing is None else self._agreed_stop

    def _alive(self) -> None:
        self._beat(self.position.progress.steps)

    def _next_progress(self, batch: Batch) -> Progress:
        before = self.position.progress
        steps = before.steps + 1
        return Progress(
            steps=steps,
            tokens=before.tokens + batch.tokens,
            epochs=steps * self._global_batch_size / self._rates.rows_per_epoch,
            seconds=before.seconds if batch.agreed is None else batch.agreed.seconds,
        )

    def _is_complete(self) -> bool:
        training = self._experiment.training
        progress = self.position.progress
        over = progress.steps >= training.steps or is_over(training.stop, progress)
        return over or self.position.ended is not None

    def _drain(self, num_pending: int) -> None:
        """Record the oldest steps, until at most `num_pending` are on the device."""
        while len(self._pending) > num_pending:
            progress, vector, batch, host_seconds = self._pending.popleft()
            # All scalars of a step are one vector, so that a step costs one transfer, not one for
            # each. This waits until the step is done. Where the devices are the bottleneck, the
            # time between two such reads is that of a step.
            scalars = np.asarray(vector).tolist()
            now = time.perf_counter()
            elapsed, self._clock = now - self._clock, now
            seconds = self._count_seconds(elapsed)
            values = dict(zip(self._scalar_names, scalars, strict=True))
            values |= {"tokens": progress.tokens, "epochs": progress.epochs, "seconds": seconds}
            # Where the host is, steps that are read together, before an evaluation or a save, were
            # done long ago: reading them takes no time, and a step takes what the host took for it.
            self._add_timings(values, max(elapsed, host_seconds), batch)
            self._emit(events.Step(progress.steps, values))
            self._check_guard(progress.steps, values)
            self._check_divergence(progress.steps, values)

    def _restart_clock(self) -> None:
        """Leave what was done since the last step out of the time of the next one."""
        self._clock = self._handed = time.perf_counter()

    def _count_seconds(self, elapsed: float) -> float:
        """Return the seconds trained by the clock of this process, a step longer."""
        self._seconds += elapsed
        if self._feed.agreeing is not None:
            # The progress, which decides, takes the primary's clock from the next batch.
            self._feed.agreeing.seconds = self._seconds
        else:
            now = self.position.progress
            self.position.progress = Progress(now.steps, now.tokens, now.epochs, self._seconds)
        return self._seconds

    def _add_timings(self, values: dict[str, float], elapsed: float, batch: Batch) -> None:
        rates = self._rates
        values["step_seconds"] = elapsed
        values["steps_per_second"] = 1 / elapsed
        values["tokens_per_second"] = batch.tokens / elapsed
        values["data_wait_seconds"] = batch.wait_seconds
        values["memory_bytes"] = self._memory.peak_bytes(self._clock)
        if rates.peak_flops:
            values["mfu"] = rates.model_flops_per_step / elapsed / rates.peak_flops

    # The guard itself is part of the compiled step: a step with a bad gradient has left the
    # parameters as they were by the time that it is reported here. Only the decision to end the run
    # is the loop's.
    def _check_guard(self, step: int, values: Mapping[str, float]) -> None:
        guard = self._experiment.training.guard
        if guard is None:
            return
        if values["skipped"]:
            norm = values["gradient_norm"]
            self._emit(events.Notice(f"step {step} is skipped: gradient norm {norm:.4g}"))
        limit = guard.max_consecutive_skips
        if values["consecutive_skipped"] >= limit:
            self._divergence = self._divergence or (
                f"step {step}: {limit} steps in a row had a non-finite or spiking gradient and "
                "were skipped; parameters are those before the first of them. Lower "
                "optimizer.learning_rate, or look at the data of these steps"
            )

    # The rule sees every step in order, and its state is saved with the position: a run that is
    # resumed in the middle of a rise diverges at the same step as one that was not stopped.
    def _check_divergence(self, step: int, values: Mapping[str, float]) -> None:
        loss, guard = values["loss"], self._experiment.training.guard
        is_finite = math.isfinite(loss) and math.isfinite(values.get("gradient_norm", 0.0))
        # A guarded state may be whole after a step that was left out. Nobody knows, and so such a
        # checkpoint does not drive out the last one that is known to be.
        self._loss = loss if is_finite else math.nan
        rule, rise = self._experiment.training.divergence, self.position.rise
        if rule is not None and rise.observe(rule, step, loss, not is_finite and guard is None):
            self._divergence = self._divergence or rise.describe(rule, step)

    def _check_last_step(self) -> None:
        """A run that ends with a loss that is not finite has diverged, however late that was."""
        rule, rise = self._experiment.training.divergence, self.position.rise
        if rule is not None and rise.nonfinite and not self.position.finished:
            step = self.position.progress.steps
            self._divergence = self._divergence or rise.describe(rule, step)

    def _stop_diverged(self) -> None:
        """End the run, and save what the guard has kept whole.

        Any other state is not worth saving: it would drive out checkpoints from before the rise.

        Raises:
          TrainingStopped: Always.
        """
        self._drain(0)
        # Without a guard the parameters have already taken the bad updates. With one they are good
        # unless the finite loss itself has risen, in which case the guard has nothing to say.
        is_whole = self._experiment.training.guard is not None and self.position.rise.above == 0
        if is_whole and self.position.progress.steps > self._saved_step:
            self._write()
        raise TrainingStopped(self._divergence)

    def _evaluate_due(self, before: Progress, now: Progress) -> None:
        if self._is_complete():
            return
        due = {
            name: evaluation.num_batches
            for name, evaluation in self._experiment.evaluations.items()
            if is_due(evaluation.every, before, now)
        }
        if due:
            # The evaluation at the very end is `_finish`'s, hence the return above: the last step
            # would be evaluated twice.
            self._verdict = self._evaluate(due)
            self._check_patience(due)

    def _evaluate(self, due: Mapping[str, int | None], last: bool = False) -> str | None:
        self._drain(0)
        step, leaves = self.position.progress.steps, self.leaves
        for name, num_batches in due.items():
            with self._goodput.span("evaluate"):
                metrics = self._evaluators[name](self.values, leaves, num_batches)
            self.metrics[name], self._evaluated_step[name] = metrics, step
            values = {metric.name: value for metric, value in metrics.items()}
            better = {metric.name: metric.better for metric in metrics}
            self._emit(events.Evaluation(step, name, values, better))
            self._note_nan(name, values)
        # The watcher of a sweep may prune here. It sees the metrics of this step only: those of
        # other sets are older.
        verdict = self._watcher.evaluated(step, self._measured_now(), last, self._fraction())
        self._restart_clock()
        return verdict

    def _note_nan(self, name: str, values: Mapping[str, float]) -> None:
        """Report metrics that are NaN, once for each, unless the training loss is NaN as well."""
        found = [metric for metric, value in values.items() if math.isnan(value)]
        new = [metric for metric in found if (name, metric) not in self._nan_noted]
        if not new or self._loss is None or not math.isfinite(self._loss):
            return
        self._nan_noted.update((name, metric) for metric in new)
        which = ", ".join(f"{name}/{metric}" for metric in new)
        # Padding is the usual reason: NaN, of a row of zeros, times weight 0 is NaN.
        self._emit(
            events.Notice(
                f"{which}: NaN, and the training loss is finite; if the model returns NaN for rows "
                "of padding, compute sums with luthier.tasks.weighted_sum"
            )
        )

    def _fraction(self) -> float:
        """Return the part of the run's full length that is trained, whatever its unit."""
        training, progress = self._experiment.training, self.position.progress
        parts = [progress.steps / training.steps]
        if training.stop is not None:
            parts.append(training.stop.measure(progress) / training.stop.count)
        return min(max(parts), 1.0)

    def _measured_now(self) -> dict[str, float]:
        """Return the metrics measured at this step, by `evaluation/metric`."""
        return {
            f"{name}/{metric.name}": value
            for name, values in self.metrics.items()
            for metric, value in values.items()
            if self._evaluated_step[name] == self.position.progress.steps
        }

    def _saved_metrics(self) -> dict[str, float]:
        """Return the metrics by which the policy keeps a checkpoint of this step."""
        return self._measured_now() | ({} if self._loss is None else {LOSS: self._loss})

    def _check_patience(self, due: Mapping[str, int | None]) -> None:
        rule = self._experiment.training.early_stopping
        if rule is None or rule.metric.evaluation not in due:
            return
        # A value that is None was not among the metrics of the set; that is not an evaluation
        # without improvement.
        value = rule.metric.select(self.metrics)
        patience = self.position.patience
        if value is not None and patience.observe(rule, value, self.position.progress.steps):
            ended = f"{rule.metric.name} has not improved since step {patience.best_step}"
            self.position.ended = ended
            self._emit(events.Notice(f"stopped early: {ended}"))

    def _show_due(self, before: Progress, now: Progress, batch: Batch) -> None:
        kinds = self._shows.due(before, now)
        if kinds:
            self._drain(0)
            with self._goodput.span("show"):
                self._shows.show(kinds, now.steps, self.leaves, batch.arrays)
            self._restart_clock()

    def _save_due(self, before: Progress, now: Progress) -> None:
        checkpoints = self._experiment.checkpoints
        if checkpoints is None or self._is_complete():
            return
        # The last step is saved by `_finish`, once, with `finished` in its position: a checkpoint
        # without that flag would make the next start evaluate the whole run again.
        if is_due(checkpoints.every, before, now):
            self._write()
        elif checkpoints.fast is not None and is_due(checkpoints.fast.every, before, now):
            self._write_fast()

    def _write(self, leaves: Leaves | None = None) -> None:
        self._drain(0)
        step = self.position.progress.steps
        leaves = self.leaves if leaves is None else leaves
        self._save(step, leaves, self.position, self._saved_metrics())
        self._saved_step = step
        self._restart_clock()

    def _write_fast(self) -> None:
        """Save into the fast tier, which does not count when the run is left."""
        self._drain(0)
        step, metrics = self.position.progress.steps, self._saved_metrics()
        # `_saved_step` stays: the fast tier is lost with the machine, so a run that is left still
        # saves durably.
        self._save(step, self.leaves, self.position, metrics, durable=False)
        self._restart_clock()

    # A run that was killed during its last evaluations is complete when it is resumed, and ends
    # here at once; `finished` records whether they are done.
    def _finish(self) -> None:
        self._drain(0)
        self._check_last_step()
        if self._divergence is not None:
            self._stop_diverged()
        if not self.position.finished:
            bound = self._watcher.bounds_last
            sets = self._experiment.evaluations.items()
            last = {name: one.num_batches if bound else None for name, one in sets}
            self._evaluate(last, last=True)
            self.position.finished = True
            return self._end(FINISHED)
        self.status = FINISHED


class _Memory:
    """Reads the peak of the memory that is in use, now and then.

    Args:
      devices: The devices of this process.
    """

    def __init__(self, devices: Sequence[Any]):
        self._devices = devices
        self._until = -math.inf
        self._peak_bytes = 0.0

    def peak_bytes(self, now: float) -> float:
        """Return the peak bytes of the fullest device, or of this process if devices report none.

        Args:
          now: Seconds by any clock; what was read within the last tenth of a second still counts.
        """
        if now >= self._until:
            self._until = now + _FRESH_SECONDS
            self._peak_bytes = self._read()
        return self._peak_bytes

    def _read(self) -> float:
        peaks = [(device.memory_stats() or {}) for device in self._devices]
        known = [stats["peak_bytes_in_use"] for stats in peaks if "peak_bytes_in_use" in stats]
        if known:
            return max(known)
        # getrusage(2): kilobytes on Linux, bytes on macOS. CPU devices have no memory statistics,
        # and their arrays lie in this process.
        unit = 1 if sys.platform == "darwin" else 1024
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
