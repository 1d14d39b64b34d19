"""Start a run on other machines, print what would be submitted, or see how jobs stand.

WORDS are a command line of luthier: `luthier launch --on slurm:nodes=2 -- train
configs.lm.quickstart`, or the same as `luthier train configs.lm.quickstart --on slurm:nodes=2`.
With --print nothing is submitted and nothing is written. Without WORDS the jobs of the runs and the
studies here are listed. `luthier help launch` tells the engines and their settings.
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
from typing import Any

from luthier.cli import project
from luthier.cli.arguments import Problems
from luthier.cli.printing import table
from luthier.errors import EXIT_DONE, LuthierError, Problem
from luthier.graph import Graph
from luthier.terminal import cell

ROOTS = ("runs/*/*", "studies/*")
"""Where launches are looked for: runs and studies."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("words", nargs="*", metavar="WORDS", help="train REF OVERRIDE...")
    add_engine(parser)
    parser.add_argument("--print", action="store_true", help="print the scripts, submit nothing")
    parser.add_argument("--list", action="store_true", help="list the jobs of runs and studies")
    parser.add_argument("--all", action="store_true", help="list those that are over too")
    parser.add_argument("--json", action="store_true", help="list in JSON")
    parser.add_argument("--cancel", metavar="JOB", help="take a job back; what runs is saved first")


def add_engine(parser: argparse.ArgumentParser) -> None:
    """Add the option that says where to run."""
    parser.add_argument(
        "--on",
        metavar="ENGINE[:NAME=VALUE,...]",
        help="run on slurm:nodes=2, ray, kubernetes, or a site of launch.toml",
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Launch, print or list; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    from luthier.cli.command_line import parser_of

    if "--" in arguments.argv:  # argparse loses where the words of the other command begin
        place = arguments.argv.index("--")
        words = arguments.argv[place + 1 :]
        arguments, unknown = parser_of("launch").parse(arguments.argv[:place])
        arguments.words += words
    problems = Problems(unknown)
    wants = bool(arguments.words)
    if wants and (arguments.list or arguments.all or arguments.cancel):
        problems.add("--list, --all and --cancel are for jobs that were launched")
    if wants and not arguments.on:
        problems.add("--on is missing", remedy="write --on slurm:nodes=2")
    if wants and arguments.words[0] != "train":
        remedy = "only `train` can be launched; a sweep takes --on itself: luthier sweep REF --on"
        problems.add(f"cannot launch `luthier {arguments.words[0]}`", remedy=remedy)
    if not wants and (arguments.on or arguments.print):
        remedy = "write luthier launch --on slurm:nodes=2 -- train configs.lm.quickstart"
        problems.add("nothing is named that would be launched", remedy=remedy)
    problems.raise_any()
    if arguments.cancel:
        return _cancel(arguments.cancel)
    if not wants:
        return _list(arguments)
    words = arguments.words[1:]
    given, more = parser_of("train").parse(words)
    given.argv = words
    return launch_training(given, arguments.on, Problems(more), only_print=arguments.print)


def launch_training(
    arguments: argparse.Namespace, on: str, problems: Problems, only_print: bool = False
) -> int:
    """Hand a run to an engine; return the exit code.

    Args:
      arguments: Those of `luthier train`.
      on: The engine, with its settings.
      problems: What is wrong with the command line so far.
      only_print: Whether nothing is submitted or written.
    """
    from luthier.cli import experiments
    from luthier.launch import settings

    found, chosen, engine = project.Project(Path.cwd()), None, None
    with problems.collected():
        found = project.find()
    with problems.collected():
        chosen = settings.choose(on, found.root)
        engine = chosen.make()
    for name in ("processes", "coordinator", "distributed", "dry_run"):
        if getattr(arguments, name):
            problems.add(f"--{name.replace('_', '-')} and --on are two ways to run", remedy="")
    graph, packages = experiments.load(
        arguments.reference, arguments.overrides, problems, command="train"
    )
    assert chosen is not None
    words = _words(arguments.argv)
    if engine.layout.devices is not None and arguments.devices is None:
        words += ["--devices", engine.layout.devices]
    if engine.layout.num_processes > 1:
        words += ["--distributed", "--join-seconds", str(JOIN_SECONDS)]
    elif chosen.name == "tpu-vm":
        words += ["--distributed"]
    if only_print:
        return _print(engine, _group(words, graph, Path("RUN", "launch", "1")), chosen)
    return _submit(engine, chosen, arguments, (graph, packages), words)


def with_engine(study: Any, on: str | None) -> Any:
    """Return a study whose slices run where the command line says, with the settings of the site.

    Args:
      study: The study's graph.
      on: The engine, with its settings; None leaves it to the study.

    Raises:
      BadInput: A name or a value is wrong; all problems are in it.
    """
    from luthier import graph as graphs
    from luthier.launch import Slices, settings
    from luthier.launch.settings import COMMAND_LINE

    root = project.find().root
    if on is not None:
        chosen = settings.choose(on, root, of_sweep=True)
        chosen.make()
        words = f"engine:=luthier.launch.slices.Slices(on={chosen.path}())"
        study = graphs.apply(study, [words], COMMAND_LINE)
    else:
        node = graphs.get(study, "engine")
        if getattr(node, "__fn_or_cls__", None) is not Slices:
            return study
        name = graphs.get(study, "engine.on").__fn_or_cls__.name
        study, chosen = graphs.copy_graph(study), settings.of_site(name, root)
    for path, found in (("engine.on", chosen.settings), ("engine", chosen.slices)):
        for name, setting in found.items():
            if name not in graphs.get(study, path).__arguments__:
                graphs.set_value(study, f"{path}.{name}", setting.value, setting.origin)
    return study


JOIN_SECONDS = 300
"""How far apart the processes of a job may start."""


def _group(words: Sequence[str], graph: Graph, place: Path) -> Any:
    from luthier import graph as graphs
    from luthier.launch import ProcessGroup

    name = str(graphs.get(graph, "name"))
    command = ("-m", "luthier", "train", *words)
    return ProcessGroup(name, command, str(place), str(Path.cwd()), _environment())


def _environment() -> dict[str, str]:
    import os

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

    graph, packages = experiment
    request = opening.Request(arguments.run, arguments.new, arguments.extend, packages)
    root, name = graphs.get(graph, "records.directory"), graphs.get(graph, "name")
    # Before a folder is made: its name is in the scripts.
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
        is_new = directory.path not in known and directory.writer() is None
        shutil.rmtree(directory.path if is_new else place)
        raise
    command = shlex.join(["luthier", "train", *arguments.argv])
    launches.make_launch(place, engine, command, chosen.lines(), jobs)
    id = f"{directory.name}/{directory.id}"
    print(f"run {id} is job {jobs[0].id} of {chosen.name}; `luthier launch` tells how it stands")
    print(f"script and logs: {place}")
    return EXIT_DONE


def _words(argv: Sequence[str]) -> list[str]:
    """Return the words of `luthier train` without those that say where, or begin a run."""
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


def _stand() -> list[tuple[Any, Any, Any]]:
    """Return every launch here with its jobs and how they stand."""
    from luthier.launch import status

    return status.standings(_launches())


def _list(arguments: argparse.Namespace) -> int:
    from luthier.launch.engine import LIVE

    shown = [row for row in _stand() if arguments.all or row[2].state in LIVE]
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
        print("no job is in a queue or runs; --all lists those that are over")
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
    from luthier.errors import BadInput
    from luthier.launch import settings
    from luthier.launch.engine import LIVE

    rows = _stand()
    jobs = [row for row in rows if id in (row[1].id, row[1].id.split("_")[0])]
    if not jobs:
        remedy = "`luthier launch --list --all` lists the jobs of this folder"
        raise BadInput(Problem(f"there is no job {id!r} here", remedy=remedy))
    live = [job for _, job, standing in jobs if standing.state in (*LIVE, "unknown")]
    if not live:
        print(f"job {id} is over", file=sys.stderr)
        return EXIT_DONE
    settings.engine_of(jobs[0][0]).cancel(live)
    print(f"job {id} is taken back")
    return EXIT_DONE
