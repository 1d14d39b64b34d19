"""List runs, show, plot or compare them, move one, or sync one to Weights & Biases.

ID is the id of a run or the beginning of the id, NAME/ID, a folder, or `last`.
METRIC is `loss` for a metric of the training steps, or `held_out/loss` for a
metric of an evaluation.

examples:
  luthier runs --sort held_out/loss --best 5
  luthier runs last
  luthier runs 3f2a 77c1 --plot held_out/loss
  luthier runs last --goodput
  luthier runs 3f2a 77c1 --diff
  luthier runs 3f2a --move gs://lab/runs
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier import project
from luthier.cli import arguments as arguments_lib
from luthier.cli.arguments import Problems
from luthier.cli.printing import notice, print_json, report_damage, table
from luthier.errors import (
    EXIT_DONE,
    BadInput,
    LuthierError,
    Problem,
    RunError,
    UnknownReference,
)
from luthier.storage import run_error
from luthier.storage.bucket import is_url
from luthier.terminal import can_print, cell, has_colors, printable, sparkline

if TYPE_CHECKING:
    from luthier.launch import Job, Standing
    from luthier.records import Run, RunDirectory, Status

DIRECTORY = "runs"
STATUSES = (
    *("created", "running", "finished", "interrupted", "preempted", "pruned", "paused"),
    *("diverged", "failed", "unknown"),
)
# Options that select among the runs, and options that show one or more; the latter exclude another.
_SELECTING = ("name", "status", "sort", "best", "last")
_SHOWING = ("goodput", "log", "plot", "sync", "diff", "move")
QUEUE_SECONDS = 3.0
"""Time limit for the answers of queues: a list of runs should not wait for a cluster."""


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of runs."""
    parser.add_argument(
        "--directory",
        default=DIRECTORY,
        metavar="DIR",
        help="the folder of the runs, or its URL (default: runs)",
    )


USAGE = "luthier runs [OPTIONS]\nluthier runs ID ... [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("runs", nargs="*", metavar="ID", help="the run to show")
    which = parser.add_argument_group("listing runs")
    which.add_argument(
        "--name", metavar="NAME", help="list runs of this name; `*` matches any text"
    )
    which.add_argument(
        "--status",
        choices=STATUSES,
        metavar="STATUS",
        help="list runs of this status, such as failed",
    )
    which.add_argument("--sort", metavar="METRIC", help="list the best run first")
    which.add_argument(
        "--best", type=arguments_lib.positive, metavar="N", help="list the N best runs, by --sort"
    )
    which.add_argument(
        "--last",
        type=arguments_lib.positive,
        metavar="N",
        help="list the N most recently updated runs",
    )
    shown = parser.add_argument_group("showing runs")
    shown.add_argument(
        "--plot",
        nargs="?",
        const="loss",
        metavar="METRIC",
        help="plot a metric of the selected runs in the terminal (default: loss)",
    )
    shown.add_argument("--log", action="store_true", help="print the console output of a run")
    shown.add_argument("--diff", action="store_true", help="compare two or more runs")
    shown.add_argument("--sync", choices=["wandb"], help="rebuild the run in W&B from its record")
    shown.add_argument(
        "--goodput",
        action="store_true",
        help="show how the run spent its time, over all restarts",
    )
    shown.add_argument(
        "--move",
        metavar="DIR",
        help="move a run to another folder of runs, or to the URL of one",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    add_directory(parser)


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier runs`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    # Everything here reads files that a running process may be writing, and that may be damaged:
    # damage is reported on the standard error, and what can be read is shown.
    problems = Problems(unknown)
    _check(arguments, problems)
    problems.raise_any()
    from luthier import records

    if len(arguments.runs) == 1 and is_url(arguments.runs[0]) and not _is_run(arguments.runs[0]):
        arguments.directory, arguments.runs = arguments.runs[0], []
    # The default folder may be missing: a new project has no runs yet.
    is_named = arguments.directory != DIRECTORY and not is_url(arguments.directory)
    if is_named and not Path(arguments.directory).is_dir():
        raise BadInput(Problem(f"there is no folder {arguments.directory!r}", "--directory"))
    arguments.directory = str(project.records_folder(arguments.directory))
    if arguments.plot:
        return _plot(arguments)
    if not arguments.runs:
        selected = {name: getattr(arguments, name) for name in _SELECTING}
        return _list(records.list_runs(arguments.directory, **selected), arguments)
    if arguments.diff:
        return _diff(arguments)
    if arguments.move:
        return _move(arguments)
    directory = records.find(arguments.directory, arguments.runs[0])
    if arguments.sync:
        mirrored = records.rebuild(directory)
        print(mirrored.url or f"wrote offline files; upload with: wandb sync {mirrored.path}")
        return EXIT_DONE
    if arguments.log:
        return _log(directory)
    if arguments.goodput:
        return _goodput(directory, arguments.json)
    report_damage([directory.metrics_path])
    summary = records.summarize(directory)
    queued = _queued([summary]).get(directory.path)
    if arguments.json:
        print_json(_as_json(summary, queued))
        return EXIT_DONE
    print("\n".join(_describe(summary, queued)))
    return EXIT_DONE


def _described(directory: str) -> str:
    return project.bucket_url(directory) or directory


def _is_run(url: str) -> bool:
    """Return whether a URL is that of a run, and not of a folder of runs."""
    from luthier import records

    try:
        records.find(DIRECTORY, url)
    except UnknownReference:
        return False
    return True


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    """Add the problems of options that do not go together."""
    showing = [name for name in _SHOWING if getattr(arguments, name)]
    if len(showing) > 1:
        problems.add(
            f"--{showing[0]} and --{showing[1]} cannot be combined", remedy="leave out one"
        )
    for name in showing:
        if name == "plot" and any(getattr(arguments, one) is not None for one in _SELECTING):
            continue  # of the runs that are selected
        if not arguments.runs and name not in ("diff", "move"):
            value = " wandb" if name == "sync" else ""
            remedy = f"write `luthier runs ID --{name}{value}`"
            problems.add(f"--{name} needs a run", remedy=remedy)
    if arguments.log and arguments.json:
        problems.add("--log prints text, not JSON", remedy="leave out --json")
    selecting = [name for name in _SELECTING if getattr(arguments, name) is not None]
    if selecting and arguments.runs:
        what = f"--{selecting[0]} selects from the list of all runs, and runs are given"
        problems.add(what, remedy="leave out the option, or the runs")
    if arguments.best and not arguments.sort:
        remedy = "add --sort METRIC, as --sort held_out/loss"
        problems.add("--best needs a metric", remedy=remedy)
    if arguments.move is not None and not (arguments.move and arguments.runs):
        problems.add("--move needs a run and a folder", remedy="write `luthier runs ID --move DIR`")
    if arguments.diff and len(arguments.runs) < 2:
        problems.add("--diff needs two runs", remedy="write `luthier runs ID ID --diff`")
    if len(arguments.runs) > 1 and not (arguments.diff or arguments.plot):
        remedy = "give one, or add --diff to compare them, or --plot to see their curves"
        problems.add(f"{len(arguments.runs)} runs are given", remedy=remedy)


def _plot(arguments: argparse.Namespace) -> int:
    """Print the curves of a metric of runs: as a plot, or as numbers for programs."""
    from luthier import records
    from luthier.view import plot

    metric, problems = arguments.plot, Problems()
    found = {}  # by folder: a run may be named in two ways
    for name in arguments.runs:
        with problems.collected():
            run = records.summarize(records.find(arguments.directory, name))
            found[run.directory.path.resolve()] = run
    problems.raise_any()
    if not arguments.runs:
        selected = {name: getattr(arguments, name) for name in _SELECTING}
        listed = records.list_runs(arguments.directory, **selected)
        found = {run.directory.path: run for run in listed}
    if not found:
        raise BadInput(Problem(f"no matching runs in {arguments.directory}/", "--plot"))
    runs = list(found.values())
    curves = plot.curves_of(runs, metric, notice)
    if arguments.json:
        points = [
            {"id": run.id, "name": run.name, "steps": steps.tolist(), "values": values.tolist()}
            for run, (steps, values) in zip(runs, curves.values(), strict=True)
        ]
        print_json({"metric": metric, "runs": points})
        return EXIT_DONE
    columns, rows = shutil.get_terminal_size((80, 24))
    notes = plot.notes_of(runs)
    num_lines = len(curves) + sum(map(bool, notes.values()))
    lines = plot.lines_of(
        curves,
        metric,
        width=columns,
        height=max(8, min(20, rows - num_lines - 5)),
        has_colors=has_colors(),
        has_braille=can_print("\u28ff"),
        notes=notes,
        better=records.direction_of(metric, runs),
    )
    print("\n".join(lines))
    return EXIT_DONE


def _log(directory: RunDirectory) -> int:
    """Print what a run printed on its console, over all of its starts."""
    try:
        with open(directory.console_path, encoding="utf-8", errors="replace") as file:
            for line in file:  # a long run has a long log
                print(printable(line), end="")
    except FileNotFoundError:
        what = f"{directory.name}/{directory.id} has no console.log"
        remedy = "it was never started, or started by an earlier luthier"
        raise BadInput(Problem(what, remedy=remedy)) from None
    except BrokenPipeError:  # of the reader, as `head`: it has seen enough
        raise
    except OSError as error:
        raise run_error("read", directory.console_path, error) from error
    return EXIT_DONE


def _goodput(directory: RunDirectory, as_json: bool) -> int:
    """Print where the time of a run went."""
    from luthier import records
    from luthier.cli.showing import goodput

    spans = records.read_spans(directory.goodput_path, notice)
    account = records.account_of(spans, alive=directory.writer() is not None)
    if as_json:
        print_json(goodput.as_json(account))
    else:
        print("\n".join(goodput.lines_of(account, cell(f"{directory.name}/{directory.id}"))))
    return EXIT_DONE


def _move(arguments: argparse.Namespace) -> int:
    """Move a run to another folder of runs."""
    from luthier import trainer
    from luthier.records import object_storage
    from luthier.terminal import clear_stage, show_stage

    try:
        moved = trainer.move_run(
            arguments.runs[0], arguments.move, root=arguments.directory, report=show_stage
        )
    finally:
        clear_stage()
    directory, steps = moved.directory, moved.steps
    if arguments.json:
        print_json(
            {
                "id": directory.id,
                "name": directory.name,
                "path": directory.address,
                "former_path": moved.source,
                "set_aside": moved.set_aside,
                "checkpoints": [*steps],
                "size_bytes": moved.num_bytes,
            }
        )
        return EXIT_DONE
    folder = directory.address.rsplit("/", 2)[0]
    kept = f"{len(steps)} {'checkpoint' if len(steps) == 1 else 'checkpoints'}"
    print(f"moved {cell(f'{directory.name}/{directory.id}')} to {cell(directory.address)}")
    if moved.num_files:
        what = f"{moved.num_files} files and {kept}, {_size(moved.num_bytes)}"
        print(f"copied and compared {what}")
    if moved.left:
        print(f"not copied, since they are files of this machine: {', '.join(moved.left)}")
    print(f"to resume it, use the same command with records.directory={cell(folder)}")
    print(f"the former files are in {cell(moved.set_aside)} until you delete them")
    mirror = None if is_url(moved.source) else object_storage.of_environment(Path(moved.source))
    if mirror is not None:
        notice(f"the mirror of the run at {mirror.url} was not moved or deleted")
    return EXIT_DONE


def _diff(arguments: argparse.Namespace) -> int:
    """Print the differences between runs, as `luthier diff` does."""
    from luthier.cli.operands import recorded
    from luthier.cli.showing import differences

    # By the folder of --directory, which `luthier diff run:ID` does not have; so operands are read
    # here.
    problems, operands = Problems(), []
    packages: tuple[str, ...] = ()
    with problems.collected():
        packages = project.find().packages
    for name in arguments.runs:
        with problems.collected():
            operands.append(recorded.read_run(name, arguments.directory, packages))
    problems.raise_any()
    report_damage(o.metrics_path for o in operands if o.metrics_path is not None)
    if len(operands) > 2:
        differences.print_matrix(differences.matrix_of(operands), arguments.json)
        return EXIT_DONE
    comparison = differences.comparison_of(operands[0], operands[1])
    # The difference of the code is text for people: it is neither in the JSON nor in a matrix.
    if arguments.json:
        print_json(comparison)
    else:
        differences.print_difference(comparison)
        one, other = arguments.runs
        print_code_difference(one, other, arguments.directory)
    return EXIT_DONE


def print_code_difference(one: str, other: str, root: str) -> None:
    """Print how the user's own code of two runs differs, as a unified diff of their copies.

    Args:
      one: A run.
      other: Another one.
      root: The folder of the runs.
    """
    # The graphs can be equal while the code that they name is not. Each run has a copy of the
    # user's own files, so the comparison is of what ran, not of what is in the working tree now.
    import difflib

    from luthier import records
    from luthier.records import source

    def lines_of(path: Path, files: source.Code, name: str) -> list[str]:
        # A file that one run does not have, or whose copy is gone, is compared as an empty one.
        copy = source.copy_of(path, files[name]) if name in files else None
        is_there = copy is not None and copy.is_file()
        return copy.read_text(errors="replace").splitlines() if copy and is_there else []

    a, b = (records.find(root, name).path for name in (one, other))
    before, after = source.recorded_code(a), source.recorded_code(b)
    # No record is not a record without files: all files of the other run would look new.
    if before is None or after is None:
        return
    changed = source.changed_files(before, after)
    if changed:
        print(f"code: {len(changed)} {'file differs' if len(changed) == 1 else 'files differ'}")
    for name in changed:
        texts = lines_of(a, before, name), lines_of(b, after, name)
        labels = cell(f"{a.name}/{name}"), cell(f"{b.name}/{name}")
        lines = difflib.unified_diff(texts[0], texts[1], labels[0], labels[1], n=1, lineterm="")
        # Files of a run may be foreign, as its records.
        print("\n".join(printable(line) for line in lines))


def _queued(summaries: Sequence[Run]) -> dict[Any, tuple[Any, Any]]:
    """Return the newest job of each launched run, with its state, by the folder of the run.

    Engines are not queried for a run whose own record has the status finished.
    """
    from luthier.launch import jobs as launches

    # A run that was submitted several times (it was preempted, or given up) has a job for each
    # start; only the newest can still be alive. All queues are asked at once and share one time
    # limit.
    newest = {}
    for summary in summaries:
        found = launches.launches(summary.directory.path)
        if found and found[-1].jobs:
            newest[summary.directory.path] = (found[-1], summary.status == "finished")
    if not newest:
        return {}
    from luthier.launch import Standing
    from luthier.launch import status as standings

    # A launch of a run is one group of processes, hence one job.
    queued = {
        path: (launch.jobs[0], Standing("finished"))
        for path, (launch, is_finished) in newest.items()
        if is_finished
    }
    pending = [launch for launch, is_finished in newest.values() if not is_finished]
    for launch, job, standing in standings.standings(pending, QUEUE_SECONDS):
        queued[launch.of] = (job, standing)
    return queued


def _report_damaged_ends(summaries: Sequence[Run]) -> None:
    """Report records that are damaged near their ends, where the list is read from."""
    # Reading every file of metrics in full would take minutes for a large folder; a single run is
    # checked in full when it is shown.
    from luthier.storage import looks_whole

    for summary in summaries:
        path = summary.directory.metrics_path
        if not looks_whole(path):
            try:
                report_damage([path])
            except LuthierError as error:  # concerns one run; the others are still listed
                notice(str(error))


def _list(summaries: list[Run], arguments: argparse.Namespace) -> int:
    """Print the table of all runs."""
    # The column `queue` is there only if some run was launched on a cluster.
    _report_damaged_ends(summaries)
    queued = _queued(summaries)
    if arguments.json:
        print_json([_as_json(each, queued.get(each.directory.path)) for each in summaries])
        return EXIT_DONE
    if not summaries:
        is_selected = arguments.name is not None or arguments.status is not None
        print(f"no {'matching ' if is_selected else ''}runs in {_described(arguments.directory)}/")
        return EXIT_DONE
    rows = [
        [
            summary.directory.id,
            summary.directory.name,
            summary.status,
            _steps(summary.record),
            _number(summary.record.metrics.get("loss")),
            _loss_curve(summary.directory),
            _duration(summary.record.seconds),
            _moment(summary.record.updated),
            _size(summary.directory.size()),
            _evaluations(summary.record.evaluations),
        ]
        for summary in summaries
    ]
    heads = ["id", "name", "status", "step", "loss", "curve", "time", "last written", "size"]
    heads.append("evaluations")
    if arguments.sort and arguments.sort != "loss":
        heads.insert(4, arguments.sort)
        for row, summary in zip(rows, summaries, strict=True):
            row.insert(4, _number(summary.value(arguments.sort)))
    if queued:
        heads.insert(3, "queue")
        for row, summary in zip(rows, summaries, strict=True):
            _, standing = queued.get(summary.directory.path, (None, None))
            row.insert(3, "" if standing is None else standing.state)
    print("\n".join(table(heads, rows)))
    return EXIT_DONE


def _queue_lines(job: Job, standing: Standing) -> list[tuple[str, str]]:
    """Return the rows about the job of a run."""
    hosts = f" on {', '.join(standing.hosts)}" if standing.hosts else ""
    lines = [("queue", f"{standing.state}{hosts}: job {job.id} of {job.engine}")]
    return [*lines, ("", standing.detail)] if standing.detail else lines


def _describe(summary: Run, queued: tuple[Any, Any] | None) -> list[str]:
    """Return the lines about one run, with control characters escaped."""
    # The rows without a name continue the one above: a message may have several lines.
    status, directory = summary.record, summary.directory
    rows = [
        ("run", f"{directory.name}/{directory.id}"),
        ("folder", directory.address),
        ("status", status.status),
        *(("", line) for line in status.message.splitlines()),
        *([("traceback", str(directory.path / status.crash))] if status.crash else ()),
        *(_queue_lines(*queued) if queued else ()),
        ("step", _steps(status)),
        ("saved", "never" if status.saved_step is None else f"step {status.saved_step}"),
        ("tokens", f"{status.tokens:,}"),
        ("time", f"{_duration(status.seconds)}, {status.restarts} restarts"),
        ("started", _moment(status.started)),
        ("last written", _moment(status.updated)),
        ("size", _size(directory.size())),
    ]
    rows += [(name, _number(value)) for name, value in status.metrics.items()]
    rows = [
        (name, f"{text}  {_loss_curve(directory)}" if name == "loss" else text)
        for name, text in rows
    ]
    rows += _evaluation_rows(summary)
    with contextlib.suppress(RunError):  # a record of another version, or a damaged one
        rows += _plan_rows(directory.read_plan() or {})
    if summary.problem:
        rows.append(("problem", summary.problem))
    rows = [(cell(name), cell(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}".rstrip() for name, text in rows]


def _plan_rows(plan: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the rows of what a run took, and of what its plan predicted."""
    measured, predicted = plan.get("measured") or {}, plan.get("predicted") or {}
    rows = []
    if measured:
        seconds = _milliseconds(measured["step_seconds"])
        rows.append(("step time", f"{seconds} (median of {measured['num_steps']:,})"))
    if predicted.get("step_seconds") is not None:
        least = f"at least {_milliseconds(predicted['step_seconds'])} ({predicted['binding']})"
        rows.append(("  predicted", least))
    elif measured and predicted.get("reason"):
        rows.append(("  predicted", str(predicted["reason"])))
    if not predicted:
        return rows
    # On CPUs only the memory of the whole process can be measured, which has the arrays of all its
    # devices, and Python.
    sharing = measured.get("num_sharing")
    compiled = measured.get("compiled_bytes_per_device")
    by_shapes = predicted["held_bytes"] + predicted["gradient_bytes"]
    size = (by_shapes if compiled is None else compiled) * (sharing or 1)
    by = "by shapes, without activations" if compiled is None else "by the compiler"
    if "num_sharing" in measured:
        of = "of a device" if sharing is None else "of the process, with Python and libraries"
        rows.append(("peak memory", f"{_size(measured['memory_bytes'])} {of}"))
        rows.append(("  predicted", f"{_size(size)} for arrays, {by}"))
    else:
        rows.append(("predicted memory", f"{_size(size)} for arrays of a device, {by}"))
    return rows


def _milliseconds(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1e3:.3g} ms"


def _evaluation_rows(run: Run) -> list[tuple[str, str]]:
    """Return the rows of the last metrics of every evaluation set, with their curves."""
    rows = []
    for evaluation, values in run.evaluations.items():
        curves: Mapping[str, Any] = {}
        with contextlib.suppress(RunError):  # damage is reported; the last values are known
            curves = run.metrics(evaluation, lambda text: None)
        for name, value in values.items():
            bars = _bars(curves.get(name, ()))
            rows.append((f"{evaluation}/{name}", f"{_number(value)}  {bars}"))
    return rows


def _loss_curve(directory: RunDirectory) -> str:
    """Return the training loss over the whole run as a line of small bars."""
    from luthier import records

    # Some of the steps, not all: a list of runs should not read gigabytes.
    steps = records.sample_steps(directory.metrics_path, 16)
    losses = [float(step.values.get("loss", math.nan)) for step in steps]
    return _bars(losses)


def _bars(values: Sequence[float]) -> str:
    """Return values as small bars; nothing for a single one, or where they cannot be printed."""
    return sparkline(values) if len(values) > 1 and can_print("▁") else ""


def _as_json(summary: Run, queued: tuple[Any, Any] | None) -> dict[str, Any]:
    queue = None
    if queued is not None:
        job, standing = queued
        queue = {"engine": job.engine, "job": job.id, **dataclasses.asdict(standing)}
    return {
        "id": summary.directory.id,
        "name": summary.directory.name,
        "path": summary.directory.address,
        "problem": summary.problem,
        "size_bytes": summary.directory.size(),
        "queue": queue,
        "overrides": summary.overrides,
        **dataclasses.asdict(summary.record),
    }


def _size(num_bytes: int) -> str:
    from luthier.terminal import format_bytes

    return format_bytes(num_bytes)


def _steps(status: Status) -> str:
    return f"{status.step}/{status.total_steps}" if status.total_steps else str(status.step)


def _evaluations(evaluations: Mapping[str, Mapping[str, Any]]) -> str:
    """Return one metric of each evaluation set, preferably nats per byte."""
    # Nats per byte compare models with different tokenizers, which a list of runs may well have.
    shown = []
    for evaluation, values in evaluations.items():
        name = next((n for n in ("nats_per_byte", "loss", *values) if n in values), None)
        if name is not None:
            shown.append(f"{evaluation}/{name} {_number(values[name])}")
    return ", ".join(shown)


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    return "" if value is None else str(value)


def _duration(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}"


def _moment(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(seconds)) if seconds else "never"
