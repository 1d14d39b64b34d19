"""One call: validate, plan, open the run's directory, materialize, train, record."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from luthier import graph as graphs
from luthier import plan as plans
from luthier.checkpoint import Provenance, Restoration, Saves, open_checkpoints, require_space
from luthier.data import left_out, made_plans
from luthier.errors import CheckpointError, LuthierError, Problem
from luthier.parallel import Share, distributed, format_bytes, hosts
from luthier.program import WarmStart, materialize
from luthier.program.program import Leaves
from luthier.records import Recorder, RunDirectory, events
from luthier.train.feed import Fed, Feed
from luthier.train.guarding import Watch
from luthier.train.interrupt import INTERRUPTED, StopSignals, Watcher
from luthier.train.loop import Loop, OwnSlot, Position, Rates, Slot
from luthier.train.opening import Opened, Request, open_run, run_id
from luthier.train.processes import HOSTS_FILE, Agreeing, Times, check_devices, check_same
from luthier.train.profile import ProfiledSteps, Profiler
from luthier.train.results import FINISHED, Result, next_steps
from luthier.train.showing import check_shows
from luthier.train.trained import final_sample


def run(
    graph: Any,
    *,
    devices: Sequence[jax.Device] | None = None,
    run: str | None = None,
    new: bool = False,
    extend: bool = False,
    profile: str | None = None,
    operative_gin: bool = False,
    packages: Sequence[str] = (),
    command: str = "",
) -> Result:
    """Train an experiment to its end, from its first step or from where it was left.

    Args:
      graph: The experiment graph.
      devices: What to train on; None means all devices of the default backend, of all processes.
      run: The run to continue; None goes by the graph: the same graph continues the same run.
      new: Start a run of its own, although the graph has one already.
      extend: Go on with schedules that a changed number of steps reshapes.
      profile: Steps to trace, as `steps=10:15`.
      operative_gin: Keep the graph, which is all that is used, as gin with the run.
      packages: The user's modules that a recorded graph may name.
      command: The command that resumes the run, for messages; empty in a notebook.

    Returns:
      Where the run stands. An interrupt (Ctrl-C) saves, and returns as well.

    Raises:
      BadInput: The graph cannot be run; nothing was written.
      TrainingStopped: Training cannot go on; the run can be resumed from its last checkpoint.
    """
    request = Request(run, new, extend, packages, gin=graphs.to_gin(graph) if operative_gin else "")
    steps = None if profile is None else ProfiledSteps.parse(profile)
    with distributed.together():
        graphs.validate(graph, packages)
    check_same(graph, packages)
    check_devices()
    with distributed.together():
        plan = plans.make(graph, hosts.devices() if devices is None else devices)
        plans.require_fit(plan)
    slot = OwnSlot(plan.program)
    training = session(
        graph, plan, slot, request, StopSignals(), profile=steps, extend=extend, command=command
    )
    return drive(training, slot.step)


def session(
    graph: Any,
    plan: plans.Plan,
    slot: Slot,
    request: Request,
    watcher: Watcher,
    *,
    profile: ProfiledSteps | None = None,
    extend: bool = False,
    command: str = "",
) -> Generator[Fed, jax.Array, Result]:
    """Train an experiment by steps that somebody else takes: all of `run` but the steps.

    Args:
      graph: The experiment graph, which is valid.
      plan: Its plan.
      slot: Where its state is kept, and its steps are taken.
      request: Where the run is recorded.
      watcher: Looks on, and may end the run.
      profile: Steps to trace.
      extend: Whether the run goes on with schedules that a changed number of steps reshapes.
      command: The command that resumes the run, for messages.

    Yields:
      A batch that is ready; what is sent back is the vector of scalars of the step that took it.

    Returns:
      Where the run stands.

    Raises:
      BadInput: The graph cannot be run; nothing was written.
      TrainingStopped: Training cannot go on; the run can be resumed from its last checkpoint.
    """
    with distributed.together():
        check_shows(plan.program)
        _look_at_data(plan)
        _look_at_disk(plan, request.directory)
    with WarmStart(plan.program) as warm, open_run(graph, plan, request, warm.open) as opened:
        if opened.is_over:
            return _over(opened)
        again = _again(command, opened.directory, graph)
        distributed.tell_parent(run=str(opened.directory.path.absolute()), again=again)
        return (
            yield from _train(
                plan,
                slot,
                opened,
                watcher,
                asked=request.asked,
                profile=profile,
                extend=extend,
                command=command,
                warm=warm,
            )
        )


def drive(
    training: Generator[Fed, jax.Array, Result],
    step: Callable[[Mapping[str, jax.Array]], jax.Array],
) -> Result:
    """Take the steps of a `session` until it ends; what a step raises is recorded by the run.

    Args:
      training: What `session` returned.
      step: From a batch to the vector of scalars.
    """
    try:
        fed = next(training)
        while True:
            try:
                vector = step(fed.arrays)
            except BaseException as error:
                fed = training.throw(error)
            else:
                fed = training.send(vector)
    except StopIteration as end:
        return end.value


def _train(
    plan: plans.Plan,
    slot: Slot,
    opened: Opened,
    watcher: Watcher,
    *,
    asked: float,
    profile: ProfiledSteps | None,
    extend: bool,
    command: str,
    warm: WarmStart,
) -> Generator[Fed, jax.Array, Result]:
    experiment, directory = plan.program.experiment, opened.directory
    with contextlib.ExitStack() as stack:
        store = stack.enter_context(_open_store(plan, directory))
        last, damage = (None, []) if store is None else _newest_whole(store)
        if damage and last is None:
            raise CheckpointError(map(Problem, damage))
        agreeing = None
        if distributed.is_several():
            times = stack.enter_context(contextlib.closing(Times(directory.path / HOSTS_FILE)))
            agreeing = Agreeing(lambda: watcher.requested, times)
        feed = stack.enter_context(contextlib.closing(_feed(plan, agreeing)))
        slot.begin()
        values = plan.program.values()
        source = store if last is not None else None
        first = warm.open() if source is None else None
        leaves = materialize(
            plan.program, values, store=source, step=last, data=feed, restoration=first
        )
        slot.load(values, leaves)
        del leaves  # a step donates them
        restored = _record_restored(directory, first)
        warm.close()
        if source is not None and last is not None:
            source.cut_back(last)
        if hosts.is_primary():
            directory.cut_back(last)
            recorder = stack.enter_context(experiment.records.open(directory))
        else:
            recorder = stack.enter_context(Recorder())
        recorder.goodput.add("init", time.perf_counter() - asked)
        position = _position(store, last, experiment, extend)
        if agreeing is not None:
            agreeing.seconds = position.progress.seconds
            agreeing.times.begin(position.progress.steps, recorder.report)
        recorder.emit(_header(plan, opened, position, restored))
        changed = store.notices(last) if store is not None and last is not None else []
        fallback = [f"{problem}; going on from step {last}" for problem in damage]
        told = [*left_out(experiment.data), *made_plans(experiment.data)]
        for notice in [*opened.notices, *fallback, *changed, *told]:
            recorder.notice(notice)
        again = _again(command, directory, plan.program.graph)
        batches = (lambda: 0) if agreeing is None else (lambda: agreeing.batches)
        profiler = Profiler(profile, directory.path / "profile")
        stack.enter_context(contextlib.closing(profiler))
        watch = Watch(experiment.records.watchdog, directory.path, again, batches)
        measured = plans.Measured()
        loop = Loop(
            plan,
            values,
            slot,
            position,
            feed,
            emit=measured.watching(recorder.emit),
            save=_saver(plan, store, feed, recorder),
            rates=_rates(plan),
            profiler=profiler,
            goodput=recorder.goodput,
            beat=watch.beat,
            saved_step=_saved_step(store),
        )
        with watch, watcher:  # whoever asks to stop while the last state is saved is heard, too
            status = yield from _run_loop(loop, recorder, watcher)
            if store is not None:
                with recorder.goodput.span("save"):
                    store.wait()
                    if status == FINISHED:
                        store.discard_fast()
                _tell_committed(store, recorder)
        _compare(loop, directory, recorder, measured)
        result = _end(loop, opened, recorder, status, command, watcher.samples)
        return dataclasses.replace(result, restored=restored.table)


def _newest_whole(store: Saves) -> tuple[int | None, list[str]]:
    """Return the step to go on from, and what is wrong with later ones, as the primary sees it."""

    def look() -> tuple[int | None, list[str]]:
        last, damage = store.newest_whole()
        return last, [str(problem) for problem in damage]

    last, damage = distributed.decided(look)
    if last is not None:
        store.trust(last)  # one process has read it all: that is enough
    return last, damage


@dataclasses.dataclass(frozen=True)
class _Restored:
    """What a warm start came to.

    Args:
      table: Where each parameter came from; empty where all were initialized.
      summary: The same in one line.
    """

    table: Sequence[Provenance] = ()
    summary: str = ""


def _record_restored(directory: RunDirectory, restoration: Restoration | None) -> _Restored:
    """Write where parameters came from into the run's directory, with the tokenizer's files."""
    if restoration is None:
        return _Restored()
    if hosts.is_primary():
        directory.write_restored(restoration.render())
        restoration.copy_tokenizer(directory.tokenizer_path)
    return _Restored(restoration.table, restoration.summary)


def _run_loop(loop: Loop, recorder: Recorder, watcher: Watcher) -> Generator[Fed, jax.Array, str]:
    """Run the loop while it is watched; record a failure before it goes on."""
    try:
        with recorder.goodput.span("step"):
            return (yield from loop.steps(watcher))
    except KeyboardInterrupt:
        step = loop.position.progress.steps
        recorder.emit(events.Ended(INTERRUPTED, step, message="interrupted twice, not saved"))
        raise
    except Exception as raised:
        error = distributed.explain(raised)
        message = " ".join(str(error).split()) if isinstance(error, LuthierError) else repr(error)
        recorder.emit(events.Ended("failed", loop.position.progress.steps, message=message[:500]))
        if error is raised:
            raise
        raise error from raised


def _compare(
    loop: Loop, directory: RunDirectory, recorder: Recorder, measured: plans.Measured
) -> None:
    """Tell and record what was predicted beside what was measured, where steps were taken."""
    program = loop.plan.program
    compiled = program.compile_step() if isinstance(loop.slot, OwnSlot) else None
    found = measured.to_dict(compiled)
    if not found:
        return
    prediction = plans.predict(loop.plan)
    num_sharing = plans.sharing(list(program.mesh.devices.flat))
    recorder.notice(f"plan: {plans.comparison(prediction, found, num_sharing)}")
    if hosts.is_primary():
        directory.write_plan({**(directory.read_plan() or {}), "measured": found})


def _end(
    loop: Loop, opened: Opened, recorder: Recorder, status: str, command: str, samples: bool
) -> Result:
    program, step = loop.plan.program, loop.position.progress.steps
    sample = ""
    if status == FINISHED and samples and not distributed.is_several():
        with recorder.goodput.span("sample"):
            sample = final_sample(program, loop.slot.leaves)
        if sample:
            recorder.emit(events.Sample(step, sample))
    summary = {
        f"{name}/{metric.name}": value
        for name, metrics in loop.metrics.items()
        for metric, value in metrics.items()
    }
    directory = opened.directory
    command = _again(command, directory, program.graph)
    message = next_steps(
        directory, status, command, program.experiment.training.steps, can_sample=bool(sample)
    )
    recorder.emit(events.Ended(status, step, summary, message))
    return Result(directory.path, status, step, loop.metrics, sample, message)


def _again(command: str, directory: RunDirectory, graph: Any) -> str:
    """Return the command that continues this very run."""
    if command and directory.id != run_id(graph) and "--run" not in command:
        command += f" --run {directory.id}"
    return command


def _over(opened: Opened) -> Result:
    directory = opened.directory
    status = directory.read_status()
    message = (
        f"run {directory.name}/{directory.id} is finished (step {status.step}); nothing to do. "
        f"To extend it: training.steps=N --run {directory.id} --extend; to train anew: --new"
    )
    return Result(directory.path, FINISHED, status.step, message=message, was_over=True)


def _look_at_data(plan: Any) -> None:
    """Read what is needed of the data now, so that bad data leaves nothing behind."""
    experiment = plan.program.experiment
    _feed(plan).close()
    for evaluation in experiment.evaluations.values():
        evaluation.data.num_rows  # noqa: B018


def _look_at_disk(plan: Any, directory: Path | None) -> None:
    experiment = plan.program.experiment
    if experiment.checkpoints is not None:
        copies = experiment.checkpoints.most_kept(experiment.training.steps)
        place = experiment.records.directory if directory is None else str(directory)
        require_space(place, plan.state_bytes * copies)


def _feed(plan: Any, agreeing: Agreeing | None = None) -> Feed:
    experiment = plan.program.experiment

    def iterator(share: Share) -> Any:
        return experiment.data.iterator(
            global_batch_size=experiment.training.global_batch_size,
            seed=experiment.seed,
            process_index=share.index,
            process_count=share.count,
        )

    task, batch = experiment.task, plan.program.batch
    return Feed(iterator, batch, task.count_tokens, agreeing=agreeing)


@contextlib.contextmanager
def _open_store(plan: Any, directory: Any) -> Iterator[Saves | None]:
    checkpoints = plan.program.experiment.checkpoints
    if checkpoints is None:
        yield None
        return
    with open_checkpoints(directory.checkpoints_path, checkpoints) as store:
        yield store


def _position(store: Saves | None, last: int | None, experiment: Any, extend: bool) -> Position:
    if store is None or last is None:
        return Position()
    position = Position.from_dict(store.read_extra(last)["position"])
    if extend and position.progress.steps < experiment.training.steps:
        position.finished, position.ended = False, None
    return position


def _saved_step(store: Saves | None) -> int:
    """Return the step of the newest durable checkpoint, as the primary sees it; 0 for none."""
    return 0 if store is None else distributed.decided(lambda: store.latest() or 0)


def _saver(plan: Any, store: Saves | None, feed: Feed, recorder: Recorder) -> Any:
    def save(
        step: int, leaves: Leaves, position: Position, metrics: Mapping[str, float], **tier: bool
    ) -> None:
        if store is None:
            return
        with recorder.goodput.span("save"):
            recorder.flush()
            extra = {"position": position.to_dict()}
            store.save(step, plan.program.named(leaves), feed, extra, metrics, **tier)
        _tell_committed(store, recorder)

    return save


def _tell_committed(store: Saves, recorder: Recorder) -> None:
    for step in store.committed():
        recorder.emit(events.Saved(step))


def _rates(plan: Any) -> Rates:
    experiment = plan.program.experiment
    devices = list(plan.program.mesh.devices.flat)
    peak = plans.device_facts(devices[0], len(devices)).peak_flops
    return Rates(
        model_flops_per_step=plan.model_flops.full,
        peak_flops=None if peak is None else peak * len(devices),
        rows_per_epoch=experiment.data.num_rows,
    )


def _header(plan: Any, opened: Opened, position: Position, restored: _Restored) -> events.Header:
    experiment = plan.program.experiment
    devices = list(plan.program.mesh.devices.flat)
    bytes_per_device = sum(plan.bytes_per_device.values())
    return events.Header(
        experiment=experiment.name,
        run_directory=str(opened.directory.path),
        step=position.progress.steps,
        total_steps=experiment.training.steps,
        parameters=plan.parameters,
        mesh=dict(plan.program.sizes),
        devices=f"{len(devices)} x {devices[0].device_kind}",
        memory_bytes_per_device=bytes_per_device,
        flops_per_step=plan.model_flops.full,
        data=_describe(experiment.data),
        evaluations={
            name: _describe(evaluation.data) for name, evaluation in experiment.evaluations.items()
        },
        notes={
            "trained": _trained(plan),
            "state": format_bytes(plan.state_bytes),
            "plan": str(plans.predict(plan)),
            "restored": restored.summary,
        },
    )


def _trained(plan: Any) -> str:
    """Return how many parameters are trained, where that is not all of them."""
    if plan.trained_parameters == plan.parameters:
        return ""
    return f"{plan.trained_parameters:,} of {plan.parameters:,} parameters"


def _describe(data: Any) -> Mapping[str, Any]:
    describe = getattr(data, "describe", None)
    return {} if describe is None else describe()
