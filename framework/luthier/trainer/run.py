"""One call: validate, plan, open the run's directory, materialize, train, record."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
from flax import nnx

from luthier import graph as graphs
from luthier import planner, project, terminal
from luthier.checkpoint import (
    FastTier,
    Provenance,
    Restoration,
    Saves,
    commit,
    open_checkpoints,
    require_space,
)
from luthier.data import Synthetic, Verification, left_out, made_plans
from luthier.errors import BadInput, CheckpointError, DataError, LockLost, Problem
from luthier.facade import root_function
from luthier.faults import Fault, classify
from luthier.graph import Graph
from luthier.parallel import Share, distributed, format_bytes, hosts
from luthier.planner import Plan
from luthier.planner.checks import constant_metrics, unsplit, unused_activation_rules
from luthier.program import Data, Experiment, Program, WarmStart
from luthier.program.materialize import materialize
from luthier.program.program import Leaves
from luthier.records import Recorder, RunDirectory, crash, events
from luthier.trainer import failures
from luthier.trainer.checks import (
    DocumentLimit,
    check_spec,
    open_sets,
    require_documents,
    vocabulary,
)
from luthier.trainer.evaluate import KEPT_BYTES, trace_evaluations
from luthier.trainer.feed import Feed, KeptBatches
from luthier.trainer.interrupt import INTERRUPTED, PREEMPTED, Preempted, StopSignals, Watcher
from luthier.trainer.loop import CompiledStep, Loop, Position, Rates, TrainStep
from luthier.trainer.media import check_shows
from luthier.trainer.opening import Opened, Request, open_run, run_id
from luthier.trainer.processes import HOSTS_FILE, Agreeing, Times, check_devices, check_same
from luthier.trainer.profile import ProfiledSteps, Profiler
from luthier.trainer.results import FINISHED, Result, next_steps
from luthier.trainer.trained import final_sample, load_run, slow_sampling
from luthier.trainer.watchdog import Watch


@root_function("train")
def run(
    graph: Graph,
    *,
    devices: Sequence[jax.Device] | None = None,
    run: str | None = None,
    new: bool = False,
    extend: bool = False,
    profile: str | None = None,
    operative_gin: bool = False,
    from_scratch: bool = False,
    accept_changes: bool = False,
    packages: Sequence[str] | None = None,
    command: str = "",
) -> Result:
    """Train an experiment to its end, from its first step or from where it was left.

    Args:
      graph: The experiment graph.
      devices: Devices to train on; None means all devices of the default backend, of all processes.
      run: The run to resume; None resumes the run of the same config, if there is one.
      new: Start a new run, even if there is one of the same config.
      extend: Resume even if a changed number of steps changes the schedules.
      profile: Steps to trace, as `steps=10:15`.
      operative_gin: Also save the config as gin, in `operative_config.gin` of the run.
      from_scratch: Restart from step 0, even if the run has checkpoints.
      accept_changes: Resume even if code or data has changed since the checkpoint was saved.
      packages: The user's modules that a recorded graph may name; None means those of the project
        (`[tool.luthier] packages` of the nearest pyproject.toml).
      command: The command that resumes the run, for messages; empty in a notebook.

    Returns:
      The result of the run. An interrupt (Ctrl-C) saves a checkpoint and returns, too.

    Raises:
      BadInput: The graph cannot be run; nothing was written.
      TrainingStopped: Training cannot continue; the run can be resumed from its last checkpoint.
    """
    packages = project.packages_of(packages)
    gin = graphs.to_gin(graph) if operative_gin else ""
    request = Request(
        run,
        new,
        extend,
        packages,
        gin=gin,
        from_scratch=from_scratch,
        accept_changes=accept_changes,
    )
    steps = None if profile is None else ProfiledSteps.parse(profile)
    # Handlers first: planning, opening and compiling take minutes, and a machine that is taken away
    # in the middle must end with the exit code of a preemption, which a queue requeues, not with
    # that of a signal.
    with contextlib.ExitStack() as stack:
        stack.callback(terminal.clear_stage)
        signals = stack.enter_context(StopSignals(command))
        terminal.show_stage("planning")
        with distributed.together():
            graphs.validate(graph, packages)
        # Before any backend is started. Processes with another version or another graph would
        # compile another program, and hang in their first collective instead of failing.
        check_same(graph, packages)
        check_devices()
        try:
            with distributed.together():
                plan = planner.make(graph, hosts.devices() if devices is None else devices)
                planner.require_fit(plan)
        except Exception as error:
            # There is no directory yet, but a run that fails here is a run that somebody will look
            # for.
            failures.record_early(error, graph, request, phase="planning")
            raise
        with open_session(
            graph,
            plan,
            CompiledStep(plan.program),
            request,
            signals,
            profile=steps,
            extend=extend,
            command=command,
        ) as session:
            session.run()
        result = session.outcome
        if result.was_over and not command and plan.program.experiment.records.console is not None:
            print(
                result.message
            )  # a cell that returns at once without a word seems to have trained
        load = functools.partial(_trained_model, result.directory, devices, packages)
        return dataclasses.replace(result, load_model=load)


def _trained_model(
    directory: Path, devices: Sequence[jax.Device] | None, packages: Sequence[str]
) -> nnx.Module:
    """Return the model of a run with the parameters of its last checkpoint."""
    return load_run(str(directory), devices=devices, packages=packages).model


class Session:
    """A run that is open: `open_session` makes one.

    Attributes:
      loop: The training loop; None where the run was over before.
      result: The result of the run, once `open_session` is left.
    """

    def __init__(self) -> None:
        self.loop: Loop | None = None
        self.result: Result | None = None

    def run(self) -> None:
        """Train to the end, or to the first reason to stop; nothing is left to do where it is over.

        Raises:
          TrainingStopped: The run has diverged.
        """
        self.train()
        if self.loop is not None:
            self.loop.save_last()

    def train(self) -> None:
        """Train as `run` does, and leave the last save to `loop.save_last`.

        Raises:
          TrainingStopped: The run has diverged.
        """
        if self.loop is not None:
            self.loop.run()

    @property
    def outcome(self) -> Result:
        """The result of the run."""
        assert self.result is not None, "the session is still open"
        return self.result


@contextlib.contextmanager
def open_session(
    graph: Graph,
    plan: Plan,
    step: TrainStep,
    request: Request,
    watcher: Watcher,
    *,
    profile: ProfiledSteps | None = None,
    extend: bool = False,
    command: str = "",
) -> Iterator[Session]:
    """Open all that training needs; record how it ends, when the `with` block is left.

    A block that calls `session.run()` trains the experiment. Trials of a study leave the last save
    to another thread (`session.train`), and packed ones call the methods of `session.loop`, by
    turns with those of their neighbours. What is raised in the block is
    recorded by the run, and raised again.

    Args:
      graph: The experiment graph, which is valid.
      plan: Its plan.
      step: Takes its steps.
      request: Where the run is recorded.
      watcher: Looks on, and may end the run.
      profile: Steps to trace.
      extend: Whether to resume even if a changed number of steps changes the schedules.
      command: The command that resumes the run, for messages.

    Yields:
      The session; its `result` is there when the block was left.

    Raises:
      BadInput: The graph cannot be run; nothing was written.
      TrainingStopped: Training cannot continue; the run can be resumed from its last checkpoint.
    """
    session = Session()
    directory: RunDirectory | None = None
    watch = Watch(plan.program.experiment.records.watchdog, command)
    with watch:
        try:
            # All that can refuse the run comes before `open_run`, and inside `together`, where an
            # error of one process is raised by all: bad input leaves nothing behind, and no process
            # waits for one that has left.
            #
            # The phases are what the watchdog and crash reports name. They have a time limit of
            # their own (`start_seconds`), because a mount that hangs at a restart is the usual
            # hang.
            watch.enter(failures.OPENING_DATA)
            terminal.show_stage(failures.OPENING_DATA)
            with distributed.together():
                check_shows(plan.program)
                _look_at_data(plan)
                _look_at_evaluations(plan)
                _look_at_disk(plan, request.directory)
            watch.enter(failures.OPENING_RUN)
            terminal.show_stage(failures.OPENING_RUN)
            # `open_run` calls `warm.open` before it makes a new run: weights that do not fit leave
            # nothing behind. A run that is continued needs them only without a checkpoint.
            with (
                WarmStart(plan.program) as warm,
                open_run(graph, plan, request, warm.open) as opened,
            ):
                if opened.is_over:
                    session.result = _over(opened, command)
                    yield session
                    return
                directory = opened.directory
                again = _again(command, directory, graph)
                # From here on stacks, crash reports and the command that resumes the run have a
                # place.
                watch.opened(directory.path, again, distributed.process_index())
                distributed.notify_parent(run=str(directory.path.absolute()), again=again)
                try:
                    with _open_loop(
                        session,
                        plan,
                        step,
                        opened,
                        watcher,
                        watch,
                        request=request,
                        profile=profile,
                        extend=extend,
                        command=command,
                        warm=warm,
                    ):
                        yield session
                except Exception as error:  # while the run's lock is held
                    if not failures.is_refusal(error, watch.phase):
                        failures.record(directory, error, graph, phase=watch.phase)
                    raise
        except Exception as error:
            # With a directory it was the handler above that records, while it holds the run's lock.
            if directory is None:
                failures.record_early(error, graph, request, phase=watch.phase)
            raise


@contextlib.contextmanager
def _open_loop(
    session: Session,
    plan: Plan,
    step: TrainStep,
    opened: Opened,
    watcher: Watcher,
    watch: Watch,
    *,
    request: Request,
    profile: ProfiledSteps | None,
    extend: bool,
    command: str,
    warm: WarmStart,
) -> Iterator[None]:
    # The order is the contract of a resume: nothing that could still be read is changed before
    # everything that can refuse the start has been asked, and before the state is in memory.
    #
    # 1. Find the newest whole checkpoint, and refuse to start at step 0 a run that was saved
    # (`_look_for_saves`).
    #
    # 2. Read its position and check the data; a later version and changed data refuse here.
    #
    # 3. Record this start (`opened.record`), for nothing refuses it any more.
    #
    # 4. Compile in the background while the state is restored.
    #
    # 5. Only now move later checkpoints, and what was recorded after the restored step, into the
    # trash.
    #
    # 6. Open the record, which counts the lines that are left, and train.
    experiment, directory = plan.program.experiment, opened.directory
    with contextlib.ExitStack() as stack:
        watch.enter(failures.CHECKING)
        terminal.show_stage(failures.CHECKING)
        store = stack.enter_context(_open_store(plan, directory))
        last, damage = (None, []) if store is None else _newest_whole(store, directory)
        missing = _look_for_saves(opened, store, last, damage, request)
        # What a later luthier wrote is refused here, before anything is cut back.
        position = _position(store, last, experiment, extend)
        verification = Verification(experiment.data if hosts.is_primary() else (), directory.path)
        missing += _verified(verification, request)
        # `decided` runs it in the primary and has all others wait: see step 3.
        distributed.decided(opened.record)
        distributed.notify_parent(start=last or 0)
        watch.enter(failures.RESTORING)
        terminal.show_stage("compiling the initialization" if last is None else "restoring")
        agreeing = None
        if distributed.is_several():
            times = stack.enter_context(
                contextlib.closing(Times(directory.path / HOSTS_FILE, directory.fence))
            )
            agreeing = Agreeing(lambda: watcher.requested, times)
        feed = stack.enter_context(
            contextlib.closing(_feed(plan, agreeing, step.takes_host_batches, step.keeps_batches))
        )
        # Compiling and restoring take minutes each and need different resources.
        step.begin()
        values = plan.program.values()
        source = store if last is not None else None
        first = warm.open() if source is None else None
        leaves = materialize(
            plan.program, values, store=source, step=last, data=feed, restoration=first
        )
        state = step.load(values, leaves)
        restored = _record_restored(directory, first)
        # The source is read; its files need not stay open for days.
        warm.close()
        # A new run has nothing later than its start.
        if store is not None and not opened.is_new:
            store.cut_back(last)
        if hosts.is_primary():
            missing += _cut_back(directory, last)
            recorder = stack.enter_context(experiment.records.open(directory))
        else:
            # Without sinks: only the primary records, and the code below needs no branches.
            recorder = stack.enter_context(Recorder())
        # Counted from the call, not from here: planning, opening and restoring are time that a
        # restart costs.
        recorder.goodput.add("init", time.perf_counter() - request.requested_at)
        if agreeing is not None:
            # The clock of the run continues from that of the checkpoint: intervals in seconds count
            # time trained, not time since the start.
            agreeing.seconds = position.progress.seconds
            agreeing.times.begin(position.progress.steps, recorder.report)
        terminal.clear_stage()
        recorder.emit(_header(plan, opened, position, restored))
        changed = store.notices(last) if store is not None and last is not None else []
        fallback = [f"{problem}; resuming from step {last}" for problem in damage]
        data_notices = [*left_out(experiment.data), *made_plans(experiment.data)]
        for notice in [*opened.notices, *fallback, *missing, *changed, *data_notices]:
            recorder.notice(notice)
        if agreeing is not None:
            watch.count(lambda: agreeing.batches)
        profiler = Profiler(profile, directory.path / "profile")
        stack.enter_context(contextlib.closing(profiler))
        # Listens to the events on their way to the recorder, and compares them with the plan at the
        # end.
        measured = planner.Measurement()
        loop = Loop(
            plan,
            values,
            step,
            state,
            position,
            feed,
            watcher,
            emit=measured.watching(recorder.emit),
            save=_saver(plan, store, feed, recorder, directory, verification),
            rates=_rates(plan),
            profiler=profiler,
            goodput=recorder.goodput,
            beat=watch.beat,
            saved_step=_saved_step(store),
        )
        del leaves, state  # a step donates them
        if request.directory is None:  # the trials of a study would all read the same corpus
            stack.enter_context(verification)
        watch.enter(failures.COMPILING)
        with watcher:  # whoever asks to stop while the last state is saved is heard, too
            settle = functools.partial(_settle, store, recorder, directory)
            with _recording_failures(loop, recorder, directory, settle):
                session.loop = loop
                yield
            assert loop.status is not None, "the loop was left before its end"
            status = loop.status
            settle()
            # After `settle`: until the last durable save is committed, the fast tier may hold the
            # newest state.
            if store is not None and status == FINISHED:
                store.discard_fast()
        # The watchdog knows the step even where none was left to take. From here on it allows the
        # time of a step; crash reports name the phase, in which the comparison and the final sample
        # may compile.
        watch.beat(loop.position.progress.steps)
        watch.enter(failures.AFTER)
        _record_measured(loop, directory, measured)
        result = _end(loop, opened, recorder, status, command, watcher.samples)
        session.result = dataclasses.replace(result, restored=restored.table)


def _newest_whole(store: Saves, directory: RunDirectory) -> tuple[int | None, list[str]]:
    """Return the step to resume from, and the damage of later ones, as the primary sees it.

    Every process reads a part of the files.
    """
    # The primary decides which checkpoints are looked at, and the other processes answer its
    # requests until it has found one (`commit.helped`). An error of the primary is kept until that
    # loop is over; raised at once, it would leave the others in it.
    found: tuple[int | None, list[str]] = (None, [])
    refused: BadInput | None = None
    if distributed.process_index() == 0:
        try:
            # Only a refusal is kept: anything else is a fault of this process, which ends it, and
            # `helped` releases the others on the way out.
            with commit.helped():
                recorded = directory.recorded_save
                directory.await_listing(lambda: (store.latest() or 0) >= recorded())
                last, damage = store.newest_whole()
                reached = last or 0
                directory.await_listing(lambda: directory.recorded_step() >= reached)
            found = (last, [str(problem) for problem in damage])
        except BadInput as error:
            refused = error
    else:
        commit.help_primary()

    def decide() -> tuple[int | None, list[str]]:
        if refused is not None:
            raise refused
        return found

    last, lines = distributed.decided(decide)
    if last is not None:
        store.trust(last)  # all processes together have read it all: that is enough
    return last, lines


def _look_for_saves(
    opened: Opened, store: Saves | None, last: int | None, damage: Sequence[str], request: Request
) -> list[str]:
    """Refuse to start again from step 0 what was saved before; report what is not found.

    Raises:
      CheckpointError: Nothing that was saved can be restored.
    """

    def look() -> list[str]:
        # A run that had checkpoints and now keeps none was refused when it was opened.
        if store is None or opened.is_new:
            return []
        directory = opened.directory
        # Checkpoints can vanish without a trace: a volume is not mounted, a link is dead, or a
        # purge by access time has taken commit.json, which nothing reads during training. A run
        # that then began at step 1 would cut its own record to nothing. So the record of the saves
        # is evidence: where it knows of one that cannot be found, the start is refused, or reported
        # if an earlier one is there.
        place, recorded = directory.checkpoints_path, directory.recorded_save()
        if request.from_scratch:
            if last is not None:
                remedy = f"--new starts a separate run, and leaves {directory.id} as it is"
                what = f"{place} has a whole checkpoint of step {last}; --from-scratch needs none"
                raise CheckpointError(Problem(what, remedy=remedy))
            # Checkpoints that are damaged are given up with it: the user asked for that.
            directory.forget_saves()
            return []
        if damage and last is None:
            problems = [Problem(line) for line in damage]
            raise CheckpointError(problems)
        # Damage is reported by itself, and a record that lags behind the checkpoints is fine:
        # status.json is written by a thread.
        if not recorded or recorded <= (last or 0) or damage:
            return []
        unsealed = [step for step in store.unsealed() if step > (last or 0)]
        found = f"none in {place}" if last is None else f"only step {last} in {place}"
        what = f"{directory.name}/{directory.id} was saved at step {recorded}, found {found}"
        if unsealed:
            what += f" (without commit.json: {', '.join(map(str, unsealed))})"
        if last is not None:
            return [f"{what}; resuming from step {last}"]
        remedy = "is the disk mounted? To start again from step 0, add --from-scratch"
        raise CheckpointError(Problem(what, remedy=remedy))

    return distributed.decided(look)


def _verified(verification: Verification, request: Request) -> list[str]:
    """Refuse prepared tokens that are not what they were when the run read them before.

    Raises:
      DataError: They are not, and nobody agreed to that.
    """

    def look() -> list[str]:
        # The position of the iterator counts rows of these tokens: with others, a resumed run would
        # read other data without noticing.
        problems = verification.start()
        if problems and not request.accept_changes:
            remedy = f"{problems[0].remedy}; to resume with other tokens: --accept-changes"
            raise DataError(dataclasses.replace(problem, remedy=remedy) for problem in problems)
        if problems:
            verification.accept()
        return [problem.what for problem in problems]

    return distributed.decided(look)


def _cut_back(directory: RunDirectory, last: int | None) -> list[str]:
    """Drop what was recorded after the restored step, and return a line about it."""
    cut = directory.cut_back(last)
    if not cut.dropped:
        return []
    since = "from the start" if last is None else f"after step {last}"
    return [
        f"{cut.dropped:,} lines of metrics.jsonl {since} are trained again; they stay in "
        f"{directory.path / '.trash'} until a later step is saved"
    ]


@dataclasses.dataclass(frozen=True)
class _Restored:
    """The result of a warm start.

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
        directory.write_restored(restoration.render(), restoration.settings)
        restoration.copy_tokenizer(directory.tokenizer_path)
    return _Restored(restoration.table, restoration.summary)


@contextlib.contextmanager
def _recording_failures(
    loop: Loop,
    recorder: Recorder,
    directory: RunDirectory,
    settle: Callable[[], None],
) -> Iterator[None]:
    """Record an error of the loop before it propagates; count the time inside as steps."""
    try:
        # What other spans (evaluate, save, data_wait) do not claim is the time of steps.
        with recorder.goodput.span("step"):
            yield
    # Preempted is a SystemExit, and the second Ctrl-C a KeyboardInterrupt: neither is an
    # `Exception`, and neither is a failure.
    except Preempted:
        recorder.emit(events.Ended(PREEMPTED, loop.position.progress.steps))
        raise
    except KeyboardInterrupt:
        step = loop.position.progress.steps
        recorder.emit(events.Ended(INTERRUPTED, step, message="interrupted twice, not saved"))
        raise
    except LockLost:  # the record is another process's now: nothing is written about this end
        raise
    except Exception as raised:
        # Where another process has ended, what is raised here is a failed collective, which names
        # nobody. `explain` replaces it by the error about that process.
        error = distributed.explain(raised)
        step, graph = loop.position.progress.steps, loop.plan.program.graph
        if error is not raised:
            error.__cause__ = raised
        # The report before the status, which names it; while the run's lock is still held.
        path = failures.write(directory.path, error, graph, phase="step", step=step)
        status = events.DIVERGED if classify(error) is Fault.NUMERIC else events.FAILED
        try:
            if status == events.DIVERGED:
                # A result of the experiment: what was saved of it is made durable, and named by the
                # record, before its end. Divergence is judged by scalars that all processes have,
                # so all are here and answer when the save is committed. After another error one of
                # them may be gone: then the end is recorded first, and closing the store waits for
                # the save.
                settle()
        finally:
            recorder.emit(events.Ended(status, step, message=crash.summary(error), crash=path))
        if error is raised:
            raise
        raise error from raised


def _record_measured(loop: Loop, directory: RunDirectory, measured: planner.Measurement) -> None:
    """Record measurements beside the predictions, if steps were taken."""
    program = loop.plan.program
    # Packed trials take the steps of a vmapped program: that of a single trial was never compiled.
    memory = planner.step_memory(program) if isinstance(loop.step, CompiledStep) else None
    found = measured.to_dict(memory)
    if not found:
        return
    if hosts.is_primary():
        # What can be measured differs: a device reports its own peak; of CPUs there is only the
        # process, which has the arrays of all its devices, and Python.
        found["num_sharing"] = planner.sharing(list(program.mesh.devices.flat))
        directory.write_plan({**(directory.read_plan() or {}), "measured": found})


def _end(
    loop: Loop, opened: Opened, recorder: Recorder, status: str, command: str, samples: bool
) -> Result:
    program, step = loop.plan.program, loop.position.progress.steps
    sample = ""
    # Sampling brings arrays to the host, which works only where one process addresses all of them.
    if status == FINISHED and samples and not distributed.is_several():
        with recorder.goodput.span("sample"):
            sample = _sample(program, loop.leaves, opened.directory, recorder, step)
        if sample:
            recorder.emit(events.Sample(step, sample))
    metrics = {
        name: {metric.name: value for metric, value in values.items()}
        for name, values in loop.metrics.items()
    }
    summary = {
        f"{name}/{metric}": value
        for name, values in metrics.items()
        for metric, value in values.items()
    }
    directory = opened.directory
    command = _again(command, directory, program.graph)
    # Whatever ends the loop without an error saves its last step, if the run saves at all.
    is_saved = program.experiment.checkpoints is not None
    message = next_steps(
        directory,
        status,
        command,
        program.experiment.training.steps,
        prompt=_prompt(program) if sample else None,
        is_saved=is_saved,
    )
    recorder.emit(events.Ended(status, step, summary, message))
    return Result(directory.path, status, step, metrics, sample, message, is_saved=is_saved)


def _prompt(program: Program) -> str:
    samples = program.experiment.records.samples
    return samples.prompts[0] if samples is not None and samples.prompts else ""


def _sample(
    program: Program, leaves: Leaves, directory: RunDirectory, recorder: Recorder, step: int
) -> str:
    """Return the sample of a run that is trained; a sample is never a reason to fail it."""
    try:
        # All steps are done and saved. A block without a cache, or one whose code fails when it
        # generates, must not turn a trained run into a failed one.
        text = final_sample(program, leaves)
        if text and (notice := slow_sampling(program)):
            recorder.notice(notice)
        return text
    except Exception as error:
        path = failures.write(directory.path, error, program.graph, phase="sampling", step=step)
        where = f"; traceback: {directory.path / path}" if path else ""
        at = f"{found}: " if (found := crash.graph_path_of(error)) else ""
        recorder.notice(f"no sample: {at}{crash.summary(error)}{where}")
        return ""


def _again(command: str, directory: RunDirectory, graph: Graph) -> str:
    """Return the command that continues this very run."""
    if command and directory.id != run_id(graph) and "--run" not in command:
        command += f" --run {directory.id}"
    return command


def _over(opened: Opened, command: str) -> Result:
    directory = opened.directory
    status = directory.read_status()
    if command:
        extending, again = f"training.steps=N --run {directory.id} --extend", "--new"
    else:  # a notebook, which has arguments in place of options
        extending, again = "more training.steps, with extend=True", "new=True"
    message = (
        f"run {directory.name}/{directory.id} is finished (step {status.step}); nothing to do. "
        f"To extend it: {extending}; to train again from scratch: {again}"
    )
    # A number that JSON does not have is a text there: "NaN".
    metrics = {
        name: {metric: float(value) for metric, value in values.items()}
        for name, values in status.evaluations.items()
    }
    return Result(directory.path, FINISHED, status.step, metrics, message=message, was_over=True)


def _look_at_evaluations(plan: Plan) -> None:
    """Trace the evaluations now if they run code of the user, so that a mistake costs no steps."""
    # Only then: for code that is tested, the first step need not wait for the traces.
    parts = graphs.users_components(plan.program.graph)
    if any(path.startswith(("model", "task")) for path in parts):
        trace_evaluations(plan.program)


def _look_at_data(plan: Plan) -> None:
    """Read what is needed of the data now, so that bad data leaves nothing behind."""
    graph, experiment = plan.program.graph, plan.program.experiment
    # Making the iterator opens the data and checks the batch size; the thread that fetches starts
    # with the first `next`.
    sets: dict[str, Callable[[], Any]] = {"data": lambda: _feed(plan).close()}
    for name, evaluation in experiment.evaluations.items():
        sets[f"evaluations.{name}.data"] = functools.partial(getattr, evaluation.data, "num_rows")

    def look() -> bool:
        open_sets(graph, sets)
        require_documents(plan.program)
        return True

    # Once for all runs of a program, which share its data.
    plan.program.once("data looked at", look)


def _look_at_disk(plan: Plan, directory: Path | None) -> None:
    experiment = plan.program.experiment
    if experiment.checkpoints is not None:
        # With the one that is being written: it is complete before an older one is deleted.
        copies = experiment.checkpoints.most_kept(experiment.training.steps)
        place = directory or project.records_folder(experiment.records.directory)
        if url := project.bucket_url(place):
            if isinstance(experiment.checkpoints.fast, FastTier):
                what = f"a FastTier needs a run on a disk, and this one is in {url}"
                remedy = "use a HostTier, or set records.directory to a disk"
                raise CheckpointError(Problem(what, "checkpoints.fast", remedy=remedy))
            return  # an object store is never full
        require_space(str(place), plan.state_bytes * copies)


def _feed(
    plan: Plan,
    agreeing: Agreeing | None = None,
    on_host: bool = False,
    keeps_batches: bool = False,
) -> Feed:
    experiment = plan.program.experiment

    task, batch = experiment.task, plan.program.batch
    share = Share.of(batch, experiment.data.iterator)
    iterator = experiment.data.iterator(
        global_batch_size=experiment.training.global_batch_size,
        seed=experiment.seed,
        **share.arguments,
    )
    # Data that cannot tell beforehand how many documents its rows have is checked batch by batch,
    # in the thread of the feed, where it costs the step nothing.
    limit = DocumentLimit.of(plan.program)

    def check(host_batch: Mapping[str, Any]) -> None:
        check_spec(host_batch, batch, len(share.rows), experiment.data)
        if limit is not None:
            limit.check(host_batch, data="data")

    kept = None
    if keeps_batches and agreeing is None:
        # Here and not at the top, since it imports Grain.
        from luthier.data.loader import ShuffledIterator

        # Only of luthier's own iterators is it known that a position determines the batches.
        if isinstance(iterator, ShuffledIterator):
            kept = _kept_batches(plan, iterator.get_state(), on_host)
    return Feed(
        iterator,
        share,
        batch,
        task.count_tokens,
        agreeing=agreeing,
        check=check,
        vocab_size=vocabulary(experiment),
        on_host=on_host,
        kept=kept,
    )


def _kept_batches(plan: Plan, state: Any, on_host: bool) -> KeptBatches:
    """Return the batches that runs of a program keep which begin at a position.

    Those of one position only: each seed has batches of its own, and a study may draw many seeds.
    """
    program = plan.program
    # What counts as a token is for the task to say, whose settings may be hoisted.
    of_task = [path for path in program.hoist if path.startswith("task.")]
    settings = [repr(graphs.get(program.graph, path)) for path in of_task]
    key = json.dumps([state, settings])
    latest: dict[str, KeptBatches] = program.once(("training batches", on_host), dict)
    if key not in latest:
        latest.clear()  # a feed that still reads them has a reference of its own
        latest[key] = KeptBatches(state, KEPT_BYTES)
    return latest[key]


@contextlib.contextmanager
def _open_store(plan: Plan, directory: RunDirectory) -> Iterator[Saves | None]:
    checkpoints = plan.program.experiment.checkpoints
    if checkpoints is None:
        yield None
        return
    place, fence = directory.checkpoints_path, directory.fence
    # In an object store, too, the record reaches as far as each checkpoint: it is uploaded before.
    state = plan.program.abstract_state
    with open_checkpoints(place, checkpoints, fence, directory.upload, state) as store:
        yield store


def _position(
    store: Saves | None, last: int | None, experiment: Experiment, extend: bool
) -> Position:
    if store is None or last is None:
        return Position()
    position = Position.from_dict(store.read_extra(last)["position"])
    # The run was over by its own rules; with more steps it is not, whatever ended it.
    if extend and position.progress.steps < experiment.training.steps:
        position.finished, position.ended = False, None
    return position


def _saved_step(store: Saves | None) -> int:
    """Return the step of the newest durable checkpoint, as the primary sees it; 0 for none."""
    return 0 if store is None else distributed.decided(lambda: store.latest() or 0)


def _saver(
    plan: Plan,
    store: Saves | None,
    feed: Feed,
    recorder: Recorder,
    directory: RunDirectory,
    verification: Verification,
) -> Any:
    def save(
        step: int, leaves: Leaves, position: Position, metrics: Mapping[str, float], **tier: bool
    ) -> None:
        if store is None:
            return
        with recorder.goodput.span("save"):
            # The record first: a resume cuts it back to the step of the checkpoint, so it has to
            # reach at least as far on the disk. Where the disk refuses, this raises, and the
            # checkpoint is not made.
            recorder.flush()
            # A shard that turned out to be other than before ends the run here: what it has done
            # since must not become the state that the next start resumes from.
            verification.check()
            extra = {"position": position.to_dict()}
            store.save(step, plan.program.named(leaves), feed, extra, metrics, **tier)
        _emit_committed(store, recorder, directory)

    return save


def _settle(store: Saves | None, recorder: Recorder, directory: RunDirectory) -> None:
    """Wait until everything is committed."""
    if store is not None:
        with recorder.goodput.span("save"):
            store.wait()
        _emit_committed(store, recorder, directory)


def _emit_committed(store: Saves, recorder: Recorder, directory: RunDirectory) -> None:
    steps = store.committed()
    for step in steps:
        recorder.emit(events.Saved(step))
    # `committed` may return several steps at once. What lies in the trash is the only copy of work
    # until a later step is durable. The store is not asked for the newest one: an object store may
    # be away at this moment, and the loop would wait for it.
    if steps and hosts.is_primary():
        directory.empty_trash(steps[-1])


def _rates(plan: Plan) -> Rates:
    experiment = plan.program.experiment
    devices = list(plan.program.mesh.devices.flat)
    # MFU counts the FLOPs that the model owes, not those that recomputation adds.
    peak = planner.device_facts(devices[0], len(devices)).peak_flops
    return Rates(
        model_flops_per_step=plan.model_flops.full,
        peak_flops=None if peak is None else peak * len(devices),
        rows_per_epoch=experiment.data.num_rows,
    )


def _header(plan: Plan, opened: Opened, position: Position, restored: _Restored) -> events.Header:
    experiment = plan.program.experiment
    devices = list(plan.program.mesh.devices.flat)
    bytes_per_device = sum(plan.bytes_per_device.values())
    # What a user checks before leaving a run alone for days: that it trains what was meant, on the
    # devices that were meant, with room to spare, and that it is saved.
    return events.Header(
        experiment=experiment.name,
        run_directory=opened.directory.address,
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
            "project": project.described(opened.directory.path),
            "trained": _trained(plan),
            "state": format_bytes(plan.state_bytes),
            "parallelism": unsplit(plan.program),
            "rules": unused_activation_rules(plan.program),
            "plan": str(planner.predict(plan)),
            "restored": restored.summary,
            "note": _on_random_tokens(experiment),
            "metrics": constant_metrics(experiment) if experiment.evaluations else "",
            "checkpoints": _without_guards(experiment),
            "schedule": _ends_early(experiment),
        },
    )


def _without_guards(experiment: Experiment) -> str:
    """Return the safeguards that are turned off; empty if all are on."""
    off = []
    if experiment.checkpoints is None:
        off.append("keeps no checkpoints (checkpoints=None): it cannot be resumed")
    elif experiment.checkpoints.every is None:
        off.append("saved at its end only (checkpoints.every=None)")
    if experiment.training.guard is None and experiment.training.divergence is None:
        off.append("continues with a loss that is not finite (guard=None, divergence=None)")
    return "; ".join(off)


def _on_random_tokens(experiment: Experiment) -> str:
    """Return a note where restored weights are trained on tokens that mean nothing, or nothing."""
    # A folder of pretrained weights without a tokenizer has no text to offer: its experiment runs,
    # to be timed and sharded, and would otherwise wear the weights down without a word.
    if experiment.restore is None or not isinstance(experiment.data, Synthetic):
        return ""
    return "restored weights train on random tokens: replace `data` (luthier help pretrained)"


def _ends_early(experiment: Experiment) -> str:
    """Return a note where the learning rate has reached its end long before the run; or nothing."""
    # Not an error: a constant tail is wanted now and then. More often `training.steps` was raised,
    # and the schedule has a number of its own.
    steps = experiment.training.steps
    total = getattr(experiment.optimizer.learning_rate, "total_steps", None)
    if not isinstance(total, int) or total > 0.9 * steps:
        return ""
    path = "optimizer.learning_rate.total_steps"
    return f"the learning rate reaches its end at step {total:,} of {steps:,} ({path})"


def _trained(plan: Plan) -> str:
    """Return how many parameters are trained, where that is not all of them."""
    # Only where it is not obvious: a frozen backbone that should have been trained shows here.
    if plan.trained_parameters == plan.parameters:
        return ""
    return f"{plan.trained_parameters:,} of {plan.parameters:,} parameters"


def _describe(data: Data) -> Mapping[str, Any]:
    describe = getattr(data, "describe", None)
    return {} if describe is None else describe()
