"""Launch a run on a cluster, or list and cancel jobs.

COMMAND is a command line of `luthier train`. `luthier train ... --on ENGINE`
does the same. Without COMMAND, the command lists the jobs of the runs and
studies in this folder. `luthier help launch` describes the engines and their
settings.

examples:
  luthier launch --on slurm:nodes=2 -- train configs.lm.quickstart
  luthier launch --on slurm:nodes=2 --print -- train configs.lm.quickstart
  luthier launch --list
  luthier launch --cancel 4711
"""

from __future__ import annotations

import argparse
import json
import shlex
import shutil
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier import project
from luthier.cli.arguments import Problems
from luthier.cli.printing import table
from luthier.errors import EXIT_DONE, LuthierError, Problem
from luthier.terminal import cell

if TYPE_CHECKING:
    from luthier.graph import Graph

_OF_A_PROCESS = (
    "processes", "coordinator", "num_processes", "process_id", "distributed", "dry_run",
)  # fmt: skip
ROOTS = ("runs/*/*", "studies/*")
"""Patterns of the folders that can have launches: runs and studies."""


USAGE = (
    "luthier launch --on ENGINE [OPTIONS] -- train REF [OVERRIDE ...]\n"
    "luthier launch [--list] [--all] [--json]\n"
    "luthier launch --cancel JOB"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("words", nargs="*", metavar="COMMAND", help="train REF OVERRIDE ...")
    add_engine(parser)
    parser.add_argument("--print", action="store_true", help="print the scripts and submit nothing")
    parser.add_argument("--list", action="store_true", help="list the jobs of runs and studies")
    parser.add_argument("--all", action="store_true", help="also list finished jobs")
    parser.add_argument("--json", action="store_true", help="list jobs as JSON")
    parser.add_argument(
        "--cancel", metavar="JOB", help="cancel a job (a running job saves a checkpoint first)"
    )


def add_engine(parser: Any) -> None:
    """Add the option that chooses where to run.

    Args:
      parser: A parser, or a group of its options.
    """
    parser.add_argument(
        "--on",
        metavar="ENGINE[:NAME=VALUE,...]",
        help="run on a cluster: slurm:nodes=2, ray, kubernetes, or a site of launch.toml",
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier launch`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    from luthier.cli.command_line import parser_of

    # argparse drops the `--` and would take the options of the other command for its own.
    if "--" in arguments.argv:
        place = arguments.argv.index("--")
        words = arguments.argv[place + 1 :]
        arguments, unknown = parser_of("launch").parse(arguments.argv[:place])
        arguments.words += words
    problems = Problems(unknown)
    launches = bool(arguments.words)
    if launches and (arguments.list or arguments.all or arguments.cancel):
        problems.add(
            "--list, --all and --cancel cannot be combined with a command to launch",
            remedy="leave out one",
        )
    if launches and not arguments.on:
        problems.add("--on is missing", remedy="write --on slurm:nodes=2")
    if launches and arguments.words[0] != "train":
        remedy = "only `train` can be launched; for a sweep write luthier sweep REF --on ENGINE"
        problems.add(f"cannot launch `luthier {arguments.words[0]}`", remedy=remedy)
    if not launches and (arguments.on or arguments.print):
        remedy = "write luthier launch --on slurm:nodes=2 -- train configs.lm.quickstart"
        problems.add("no command to launch is given", remedy=remedy)
    problems.raise_any()
    if arguments.cancel:
        return _cancel(arguments.cancel)
    if not launches:
        return _list(arguments)
    words = arguments.words[1:]
    # Flags of other frameworks (--fdl.PATH=VALUE) are translated for the command that was typed,
    # which is `launch`; in COMMAND they are unknown options. `luthier train ... --on` takes them.
    given, more = parser_of("train").parse(words)
    given.argv = words
    return launch_training(given, arguments.on, Problems(more), only_print=arguments.print)


def launch_training(
    arguments: argparse.Namespace, on: str, problems: Problems, only_print: bool = False
) -> int:
    """Hand a run to an engine; return the exit code.

    Args:
      arguments: The arguments of `luthier train`.
      on: The engine, with its settings.
      problems: Problems of the command line found so far.
      only_print: Whether to print the scripts, and to submit and write nothing.
    """
    # The experiment is loaded and validated here, although the job will load it again: a mistake
    # should be found now, and not after hours in a queue.
    from luthier.cli import experiments
    from luthier.launch import settings

    own, chosen, engine = project.Project(Path.cwd()), None, None
    with problems.collected():
        own = project.find()
    with problems.collected():
        chosen = settings.choose(on, own.root)
        engine = chosen.make()
    for name in _OF_A_PROCESS:
        value = getattr(arguments, name)
        if value is not None and value is not False:  # 0 is a process, too, and equal to False
            option = f"--{name.replace('_', '-')}"
            remedy = "leave out one; `luthier launch --print` shows the scripts without submitting"
            problems.add(f"{option} cannot be combined with --on", remedy=remedy)
    graph, packages = experiments.load(
        arguments.reference, arguments.overrides, problems, command="train"
    )
    # `load` has raised all problems by now, also those of the engine.
    assert chosen is not None
    # The job runs the same command line on every host. How its processes find each other is known
    # to the engine only, so the options for that are added here.
    words = _words(arguments.argv)
    if engine.layout.devices is not None and arguments.devices is None:
        words += ["--devices", engine.layout.devices]
    if engine.layout.num_processes > 1:
        words += ["--distributed"]
        # One that was typed is among the words, and the later of two would count.
        words += ["--join-seconds", str(JOIN_SECONDS)] if arguments.join_seconds is None else []
    elif chosen.name == "tpu-vm":
        # One job per slice, but a process on each of its hosts, which JAX detects on Cloud TPU.
        words += ["--distributed"]
    if only_print:
        return _print(engine, _group(words, graph, Path("RUN", "launch", "1")), chosen)
    return _submit(engine, chosen, arguments, (graph, packages), words)


def with_engine(study: Graph, on: str | None) -> Graph:
    """Return a study whose trials run on the engine of --on, with the settings of the site.

    Args:
      study: The study's graph.
      on: The engine, with its settings; None keeps that of the study.

    Raises:
      BadInput: A name or a value is wrong; it has all problems.
    """
    # With --on, the engine is built afresh from it and from the site's launch.toml. Nothing of the
    # study's own engine is kept: on resuming, that holds what the last start took from its --on and
    # its site. Without --on the site's settings are set only where the study has none of its own.
    from luthier import graph as graphs
    from luthier.launch import Slices, settings
    from luthier.launch.settings import COMMAND_LINE

    root = project.find().root
    if on is not None:
        chosen = settings.choose(on, root, of_sweep=True)
        # For its refusal only, so that settings that do not go together are a mistake of the
        # command line like others. Below, the files' settings alone need not make an engine.
        chosen.make()
        words = f"engine:=luthier.launch.slices.Slices(on={chosen.path}())"
        study = graphs.apply(study, [words], COMMAND_LINE)
        placed = {"engine": chosen}
    else:
        node = graphs.get(study, "engine")
        # Also those that a `Combined` combines.
        inner = graphs.walk(node, defaults=False) if graphs.is_node(node) else ()
        places = {"engine": node, **{f"engine.{place.path}": place.value for place in inner}}
        placed = {
            path: settings.of_site(graphs.get(study, f"{path}.on").__fn_or_cls__.name, root)
            for path, one in places.items()
            if getattr(one, "__fn_or_cls__", None) is Slices
        }
        if not placed:
            return study
        # A copy, since `set_value` below changes the graph; `apply` above has made one.
        study = graphs.copy_graph(study)
    for place, chosen in placed.items():
        for path, own in ((f"{place}.on", chosen.settings), (place, chosen.slices)):
            for name, setting in own.items():
                if name not in graphs.get(study, path).__arguments__:
                    graphs.set_value(study, f"{path}.{name}", setting.value, setting.origin)
    return study


JOIN_SECONDS = 300
"""How far apart the processes of a job may start by default: queues start hosts one by one."""


def _group(words: Sequence[str], graph: Graph, place: Path) -> Any:
    from luthier import graph as graphs
    from luthier.launch import ProcessGroup

    name = str(graphs.get(graph, "name"))
    command = ("-m", "luthier", "train", *words)
    return ProcessGroup(name, command, str(place), str(Path.cwd()), _environment())


def _environment() -> dict[str, str]:
    import os

    # Only what imports depend on; the rest of a shell's environment may hold secrets, and the
    # scripts are written to a shared disk.
    return {name: os.environ[name] for name in ("PYTHONPATH",) if name in os.environ}


def _print(engine: Any, group: Any, chosen: Any) -> int:
    for name, text in engine.files([group], group.directory).items():
        print(f"# {name}")
        for line in chosen.lines():
            print(f"# {cell(line)}")
        print(text.rstrip("\n"))
    if words := engine.command(group.directory):
        print(f"# submitted by: {shlex.join(words)}")
    return EXIT_DONE


def _submit(
    engine: Any,
    chosen: Any,
    arguments: argparse.Namespace,
    experiment: tuple[Any, Sequence[str]],
    words: list[str],
) -> int:
    from luthier import graph as graphs
    from luthier.launch import jobs as launches
    from luthier.trainer import opening

    # The run is reserved before the job is submitted, so that the job can be given its id (--run)
    # and the run is listed as queued. If the engine refuses the job, the new folder is removed
    # again, but never one that existed before or that another process writes.
    graph, packages = experiment
    request = opening.Request(arguments.run, arguments.new, arguments.extend, packages)
    root = project.records_folder(graphs.get(graph, "records.directory"))
    name = graphs.get(graph, "name")
    # Render the scripts once before any folder is made, since this may raise for bad settings.
    engine.files([_group(words, graph, Path(root, name).absolute())], str(Path(root).absolute()))
    known = set(Path(root, name).glob("*"))
    directory = opening.reserve(graph, root, name, request)
    place = launches.new_folder(directory.path.absolute())
    if "--run" not in words:
        words = [*words, "--run", directory.id]
    group = _group(words, graph, place)
    try:
        jobs = engine.submit([group], str(place))
    except LuthierError:
        # After any other exception, such as Ctrl-C, the folder stays: the engine may have taken the
        # job, which will need it.
        is_new = directory.path not in known and directory.writer() is None
        shutil.rmtree(directory.path if is_new else place)
        raise
    command = shlex.join(["luthier", "train", *arguments.argv])
    launches.make_launch(place, engine, command, chosen.lines(), jobs)
    id = f"{directory.name}/{directory.id}"
    print(f"run {id} is job {jobs[0].id} of {chosen.name}; `luthier launch` shows its state")
    print(f"script and logs: {place}")
    return EXIT_DONE


def _words(argv: Sequence[str]) -> list[str]:
    """Return the arguments of `luthier train` without --on and --new."""
    # The job must not launch itself again; and the run is reserved, so the job resumes it.
    kept, words = [], iter(argv)
    for word in words:
        if word == "--on":
            next(words, None)
        elif not word.startswith("--on=") and word != "--new":
            kept.append(word)
    return kept


def _launches() -> Iterator[Any]:
    from luthier.launch import jobs as launches

    for pattern in ROOTS:
        for directory in sorted(Path.cwd().glob(pattern)):
            yield from launches.launches(directory)


def _jobs() -> list[tuple[Any, Any, Any]]:
    """Return (launch, job, state) of every job of this folder."""
    from luthier.launch import status

    return status.standings(_launches())


def _list(arguments: argparse.Namespace) -> int:
    """Print the jobs of this folder, without the finished ones unless --all is given."""
    # States come from the queues themselves, which are asked once for all jobs of an engine; a
    # queue that does not answer gives "unknown", so that one broken cluster does not hide the
    # others. Jobs in that state are listed with --all only: SLURM forgets a job minutes after its
    # end, and then every old job is unknown.
    from luthier.launch.engine import LIVE

    shown = [row for row in _jobs() if arguments.all or row[2].state in LIVE]
    if arguments.json:
        rows = [
            {
                "of": str(launch.of),
                "engine": job.engine,
                "job": job.id,
                "group": job.group,
                "state": standing.state,
                "detail": standing.detail,
                "hosts": list(standing.hosts),
                "restarts": standing.restarts,
                "folder": str(launch.path),
            }
            for launch, job, standing in shown
        ]
        print(json.dumps(rows, indent=1))
        return EXIT_DONE
    if not shown:
        print("no job is queued or running; --all lists finished jobs, too")
        return EXIT_DONE
    lines = [
        (
            job.id,
            job.engine,
            standing.state,
            standing.detail,
            ",".join(standing.hosts) or "-",
            str(standing.restarts),
            job.group,
            time.strftime("%Y-%m-%d %H:%M", time.localtime(launch.at)),
            str(launch.path.relative_to(Path.cwd())),
        )
        for launch, job, standing in shown
    ]
    heads = ["job", "engine", "state", "detail", "hosts", "restarts", "group", "launched", "folder"]
    print("\n".join(table(heads, lines)))
    return EXIT_DONE


def _cancel(id: str) -> int:
    """Cancel a job, or all jobs of a SLURM array by the array's id."""
    # `4711_3` is one job of the array 4711. A state "unknown" (the queue did not answer) is tried,
    # too.
    from luthier.errors import BadInput
    from luthier.launch import settings
    from luthier.launch.engine import LIVE

    rows = _jobs()
    jobs = [row for row in rows if id in (row[1].id, row[1].id.split("_")[0])]
    if not jobs:
        remedy = "`luthier launch --list --all` lists the jobs of this folder"
        raise BadInput(Problem(f"there is no job {id!r} here", remedy=remedy))
    live = [job for _, job, standing in jobs if standing.state in (*LIVE, "unknown")]
    if not live:
        print(f"job {id} has ended already", file=sys.stderr)
        return EXIT_DONE
    settings.engine_of(jobs[0][0]).cancel(live)
    print(f"job {id} is cancelled")
    return EXIT_DONE
