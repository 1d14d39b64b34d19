"""Train an experiment, or resume its run.

If the run was stopped, the same command resumes it. OVERRIDEs change values by
path. --run ID without REF resumes the experiment that the run recorded. If REF
is run:ID, the command trains the recorded config again in a new run, and prints
the changes that OVERRIDEs make to it.

examples:
  luthier train configs.lm.quickstart
  luthier train configs.lm.quickstart optimizer.learning_rate.peak=3e-4
  luthier train configs.lm.quickstart fiddler:bf16 --devices gpu:4
"""

from __future__ import annotations

import argparse
import contextlib
import shlex
import signal
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from luthier.cli import experiments, hosts, launcher, reruns
from luthier.cli.arguments import Problems
from luthier.cli.commands import launch
from luthier.errors import EXIT_DONE, EXIT_REQUEUE, Problem
from luthier.terminal import clear_stage, show_stage

if TYPE_CHECKING:
    from luthier.checkpoint import Restoration
    from luthier.graph import Graph
    from luthier.trainer import Request

WANDB_MODES = ("off", "offline", "online")


USAGE = (
    "luthier train REF [OVERRIDE ...] [OPTIONS]\nluthier train --run ID [OVERRIDE ...] [OPTIONS]"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "reference",
        nargs="?",
        metavar="REF",
        help="the experiment: configs.lm.quickstart, hf:DIR or run:ID",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="a change of the config, such as optimizer.b2=0.95",
    )
    where = parser.add_argument_group("where to run")
    add_devices(where)
    launch.add_engine(where)
    resume = parser.add_argument_group("resuming a run")
    resume.add_argument("--run", metavar="ID|DIR", help="resume this run")
    resume.add_argument(
        "--new", action="store_true", help="start a new run, even if there is one to resume"
    )
    resume.add_argument(
        *("-y", "--yes", "--extend"),
        dest="extend",
        action="store_true",
        help="allow resuming with a different training.steps",
    )
    resume.add_argument(
        "--accept-changes",
        action="store_true",
        help="resume even if code or data has changed",
    )
    resume.add_argument(
        "--from-scratch",
        action="store_true",
        help="restart a run from step 0 if its recorded checkpoints are gone",
    )
    checks = parser.add_argument_group("checks, instead of training")
    checks.add_argument(
        "--dry-run",
        action="store_true",
        help="plan, read the first batches, and check the run and the weights; write nothing",
    )
    checks.add_argument(
        "--check-determinism",
        action="store_true",
        help="run steps twice and compare the results bit for bit",
    )
    records = parser.add_argument_group("records")
    records.add_argument("--wandb", choices=WANDB_MODES, help="set the mode of W&B")
    records.add_argument(
        "--profile", metavar="steps=A:B", help="write a profiler trace of steps A to B - 1"
    )
    records.add_argument(
        "--operative-gin", action="store_true", help="save the complete config as Gin in the run"
    )
    hosts.add_arguments(parser)


def add_devices(parser: Any) -> None:
    """Add the option that chooses devices.

    Args:
      parser: A parser, or a group of its options.
    """
    parser.add_argument(
        "--devices", metavar="KIND[:N]", help="cpu, gpu, gpu:4 or tpu; cpu:8 simulates 8 devices"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier train`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if arguments.run and arguments.new:
        problems.add("--run resumes a run and --new starts one", remedy="leave out one of them")
    # Three roles of one command line: with --on it submits itself to an engine; as the launcher of
    # several processes it starts itself as their children; otherwise (or as such a child, which
    # finds its `Process` in the environment) it trains.
    child = hosts.of_child()
    if arguments.on:
        return launch.launch_training(arguments, arguments.on, problems)
    if child is None and (processes := hosts.read(arguments, problems)):
        problems.raise_any()
        return launcher.supervise(processes, ["train", *arguments.argv])
    with _requeued():
        if child is not None:
            arguments.devices = child.devices
            with hosts.joined(child):
                return _train(arguments, problems)
        return _train(arguments, problems)


@contextlib.contextmanager
def _requeued() -> Iterator[None]:
    """Exit with code 75 if the machine is taken away before training handles signals itself.

    Imports and loading the experiment take seconds; there is nothing to save yet.
    """
    # Without it, SIGTERM would end the process with a code that queues take for a failure, and the
    # job would not be started again. Handlers that somebody else has installed stay, and `nohup`
    # too, which ignores SIGHUP. Signals can be handled in the main thread only.

    def leave(number: int, frame: FrameType | None) -> None:
        raise SystemExit(EXIT_REQUEUE)

    before = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) == signal.SIG_DFL:
                before[number] = signal.signal(number, leave)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _train(arguments: argparse.Namespace, problems: Problems) -> int:
    """Load the experiment and train it in this process."""
    # Imports take seconds before there is anything to print; each of these lines replaces the last.
    show_stage(f"luthier train {arguments.reference or ''}: starting JAX")
    # Devices first: whatever touches JAX after this has to see the devices of --devices.
    reference = _reference(arguments, problems)
    with problems.collected():
        from luthier.parallel import hosts

        hosts.configure(arguments.devices)
    if arguments.profile:
        with problems.collected():
            from luthier.trainer.profile import ProfiledSteps

            # For its errors only, so that they are listed with the others; `trainer.run` gets the
            # text.
            ProfiledSteps.parse(arguments.profile)
    from luthier.parallel import distributed

    # An error on one host (a file that only it cannot read) has to end all of them: the others
    # would wait for it in the first collective.
    show_stage("reading the config")
    with distributed.together():
        graph, packages = experiments.load(
            reference, arguments.overrides, problems, command="train"
        )
    clear_stage()
    if arguments.wandb:
        graph = _with_wandb(graph, arguments.wandb)
    run, new = _run_of_reference(arguments, graph, packages)
    if arguments.dry_run:
        from luthier.trainer import Request

        show_stage("planning")
        request = Request(
            run,
            new,
            extend=arguments.extend,
            packages=packages,
            accept_changes=arguments.accept_changes,
        )
        return _dry_run(graph, hosts.devices(), request, problems)
    if arguments.check_determinism:
        return _check_determinism(graph, hosts.devices())
    show_stage("starting the trainer")
    from luthier import trainer

    result = trainer.run(
        graph,
        run=run,
        new=new,
        extend=arguments.extend,
        profile=arguments.profile,
        operative_gin=arguments.operative_gin,
        from_scratch=arguments.from_scratch,
        accept_changes=arguments.accept_changes,
        packages=packages,
        command=_resume_command(arguments.argv),
    )
    return _end(graph, result)


def _reference(arguments: argparse.Namespace, problems: Problems) -> str | None:
    """Return the experiment to train: with --run alone, the recorded one of that run."""
    # `train --run ID seed=1`: argparse took the first override for the reference.
    words = [arguments.reference, *arguments.overrides] if arguments.reference else []
    if not arguments.run or (words and not experiments.is_override(words[0])):
        return arguments.reference
    arguments.overrides = words
    with problems.collected():
        from luthier import records

        return str(records.find("runs", arguments.run).path)
    return ""  # `load` adds no second problem about the reference


def _run_of_reference(
    arguments: argparse.Namespace, graph: Graph, packages: Sequence[str]
) -> tuple[str | None, bool]:
    """Return the run to resume, and whether to start a new one; print changes of a recorded graph.

    Args:
      arguments: The arguments of `add_arguments`.
      graph: The graph that will be trained.
      packages: The user's packages that a recorded graph may name.
    """
    named = arguments.reference or ""
    recorded = None if experiments.is_override(named) else experiments.find_run(named)
    if recorded is None:
        if arguments.run:
            reruns.print_difference(arguments.run, graph)
        return arguments.run, arguments.new
    reruns.print_changes(recorded, experiments.load_reference(named, packages), graph)
    if arguments.run or arguments.new:
        return arguments.run, arguments.new
    return reruns.choose_run(recorded, graph)


def _with_wandb(graph: Graph, mode: str) -> Graph:
    """Return the graph with W&B in a mode; a W&B node is added if there is none."""
    from luthier import graph as graphs

    if graphs.get(graph, "records.wandb") is not None:
        override = f"records.wandb.mode={mode}"
    else:
        override = f'records.wandb=luthier.records.Wandb(mode="{mode}")'
    return graphs.apply(graph, [override], origin="--wandb")


def _resume_command(words: list[str]) -> str:
    """Return the command that resumes the run of a command line."""
    # Without the options that hold for one start only. --new would start a run again, and the
    # others permit a change once; whoever resumes should be asked again.
    once = ("--new", "--extend", "-y", "--yes", "--from-scratch", "--accept-changes")
    return shlex.join(["luthier", "train", *(word for word in words if word not in once)])


def _dry_run(graph: Graph, devices: list[Any], request: Request, problems: Problems) -> int:
    """Check everything that training checks before its first step, and print the plan."""
    # Also what only a real start would find: data that is missing or does not fit, a run that does
    # not exist or cannot be resumed, a directory that cannot be written, and initial weights that
    # do not fit the model. They are opened, not restored.
    from luthier import planner
    from luthier.layers.declared import abstract_forms
    from luthier.parallel import format_bytes
    from luthier.program import WarmStart
    from luthier.trainer import check_data, check_place, trace_evaluations

    plan = planner.make(graph, devices)
    planner.require_fit(plan)
    start, sets = "", dict[str, tuple[int, int]]()
    restored: Restoration | None = None
    with problems.collected():
        start = check_place(graph, plan, request)
    with problems.collected():
        sets = check_data(plan)
    with problems.collected(), abstract_forms():  # kernels of accelerators: not traced on a CPU
        trace_evaluations(plan.program)
    with problems.collected(), WarmStart(plan.program) as warm:
        restored = warm.open()
    problems.raise_any()
    sizes = plan.program.sizes.items()
    mesh = ", ".join(f"{axis} {size}" for axis, size in sizes if size != 1)
    counts = {"trained": plan.trained_parameters, "active for each token": plan.active_parameters}
    parts = [f"{n:,} of them {what}" for what, n in counts.items() if n != plan.parameters]
    lines = [
        f"{plan.parameters:,} parameters{''.join(f', {part}' for part in parts)}"
        f"{',' if parts else ''} on {len(devices)} x {devices[0].device_kind}"
        f"{f' ({mesh})' if mesh else ''}",
        f"{plan.tokens_per_step:,} tokens and {plan.model_flops.full:.3g} model FLOPs a step",
        "bytes on each device: "
        + ", ".join(f"{kind} {format_bytes(size)}" for kind, size in plan.bytes_per_device.items()),
        str(planner.predict(plan)),
        *map(str, plan.pipelines),
        *(f"attention by {core}: {reason}" for core, reason in plan.attention_cores.items()),
        *(
            f"{path}: {rows:,} rows; read the first batch of {size:,}"
            for path, (rows, size) in sets.items()
        ),
        *([] if restored is None else restored.render().splitlines()),
        start,
        "nothing was trained or written (--dry-run)",
    ]
    clear_stage()
    print("\n".join(lines))
    return EXIT_DONE


def _check_determinism(graph: Graph, devices: list[Any]) -> int:
    from luthier import planner
    from luthier.trainer.checks import check_repeatable

    print(check_repeatable(planner.make(graph, devices)))
    return EXIT_DONE


def _end(graph: Graph, result: Any) -> int:
    from luthier import graph as graphs

    has_console = graphs.get(graph, "records.console") is not None
    if result.message and (result.was_over or not has_console):
        print(result.message)
    return result.exit_code
