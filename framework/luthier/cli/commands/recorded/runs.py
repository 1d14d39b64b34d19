"""List runs, show or compare them, or sync one to Weights & Biases.

ID is a run's id or the beginning of it, NAME/ID, a folder, or `last`.

examples:
  luthier runs
  luthier runs last
  luthier runs last --goodput
  luthier runs 3f2a 77c1 --diff
"""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier.cli import project
from luthier.cli.arguments import Problems
from luthier.cli.printing import notice, print_json, report_damage, table
from luthier.errors import EXIT_DONE, BadInput, LuthierError, Problem
from luthier.terminal import cell, printable

if TYPE_CHECKING:
    from luthier.launch import Job, Standing
    from luthier.records import RunDirectory, RunSummary, Status

DIRECTORY = "runs"
QUEUE_SECONDS = 3.0
"""Time limit for the answers of queues: a list of runs should not wait for a cluster."""


def add_directory(parser: argparse.ArgumentParser) -> None:
    """Add the option for the folder of runs."""
    parser.add_argument(
        "--directory",
        default=DIRECTORY,
        metavar="DIR",
        help="the folder of the runs (default: runs)",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("runs", nargs="*", metavar="ID", help="the run to show")
    parser.add_argument("--diff", action="store_true", help="compare two or more runs")
    parser.add_argument("--sync", choices=["wandb"], help="rebuild the run in W&B from its record")
    parser.add_argument(
        "--goodput",
        action="store_true",
        help="show where the time of the run went, over all restarts",
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

    # The default folder may be missing: a new project has no runs yet.
    if arguments.directory != DIRECTORY and not Path(arguments.directory).is_dir():
        raise BadInput(Problem(f"there is no folder {arguments.directory!r}", "--directory"))
    if not arguments.runs:
        return _list(records.list_runs(arguments.directory), arguments)
    if arguments.diff:
        return _diff(arguments)
    directory = records.find(arguments.directory, arguments.runs[0])
    if arguments.sync:
        mirrored = records.rebuild(directory)
        print(mirrored.url or f"wrote offline files; upload with: wandb sync {mirrored.path}")
        return EXIT_DONE
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


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    """Add the problems of options that do not go together."""
    if arguments.sync and not arguments.runs:
        problems.add("--sync needs a run", remedy="write `luthier runs ID --sync wandb`")
    if arguments.sync and arguments.diff:
        problems.add("--sync and --diff cannot be combined", remedy="leave out one")
    if arguments.goodput and not arguments.runs:
        problems.add("--goodput needs a run", remedy="write `luthier runs ID --goodput`")
    if arguments.goodput and (arguments.sync or arguments.diff):
        other = "--sync" if arguments.sync else "--diff"
        problems.add(f"--goodput and {other} cannot be combined", remedy="leave out one")
    if arguments.diff and len(arguments.runs) < 2:
        problems.add("--diff needs two runs", remedy="write `luthier runs ID ID --diff`")
    if len(arguments.runs) > 1 and not arguments.diff:
        remedy = "give one, or add --diff to compare them"
        problems.add(f"{len(arguments.runs)} runs are given", remedy=remedy)


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


def _queued(summaries: Sequence[RunSummary]) -> dict[Any, tuple[Any, Any]]:
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
            newest[summary.directory.path] = (found[-1], summary.status.status == "finished")
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


def _report_damaged_ends(summaries: Sequence[RunSummary]) -> None:
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


def _list(summaries: list[RunSummary], arguments: argparse.Namespace) -> int:
    """Print the table of all runs."""
    # The column `queue` is there only if some run was launched on a cluster.
    _report_damaged_ends(summaries)
    queued = _queued(summaries)
    if arguments.json:
        print_json([_as_json(each, queued.get(each.directory.path)) for each in summaries])
        return EXIT_DONE
    if not summaries:
        print(f"no runs in {arguments.directory}/")
        return EXIT_DONE
    rows = [
        [
            summary.directory.id,
            summary.directory.name,
            summary.status.status,
            _steps(summary.status),
            _number(summary.status.metrics.get("loss")),
            _duration(summary.status.seconds),
            _moment(summary.status.updated),
            _size(summary.directory.size()),
            _evaluations(summary.status.evaluations),
        ]
        for summary in summaries
    ]
    heads = ["id", "name", "status", "step", "loss", "time", "last written", "size", "evaluations"]
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


def _describe(summary: RunSummary, queued: tuple[Any, Any] | None) -> list[str]:
    """Return the lines about one run, with control characters escaped."""
    # The rows without a name continue the one above: a message may have several lines.
    status, directory = summary.status, summary.directory
    rows = [
        ("run", f"{directory.name}/{directory.id}"),
        ("folder", str(directory.path)),
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
    rows += [
        (f"{evaluation}/{name}", _number(value))
        for evaluation, values in status.evaluations.items()
        for name, value in values.items()
    ]
    if summary.problem:
        rows.append(("problem", summary.problem))
    rows = [(cell(name), cell(text)) for name, text in rows]
    width = max(len(name) for name, _ in rows)
    return [f"{name:<{width}}  {text}".rstrip() for name, text in rows]


def _as_json(summary: RunSummary, queued: tuple[Any, Any] | None) -> dict[str, Any]:
    queue = None
    if queued is not None:
        job, standing = queued
        queue = {"engine": job.engine, "job": job.id, **dataclasses.asdict(standing)}
    return {
        "id": summary.directory.id,
        "name": summary.directory.name,
        "path": str(summary.directory.path),
        "problem": summary.problem,
        "size_bytes": summary.directory.size(),
        "queue": queue,
        **dataclasses.asdict(summary.status),
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
