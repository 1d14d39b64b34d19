"""Measure what the hosts of a run can do: devices, sums over all of them, disk, clocks.

With one process it examines this machine. With the options of several processes, every host runs
the same command, as with `luthier train`; --on starts it on the machines of an engine, and waits.
The table names each host, and the lines below it tell which one is slow, or has a wrong clock.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luthier.cli import hosts, launcher, project
from luthier.cli.arguments import Problems
from luthier.cli.commands import launch
from luthier.cli.commands.train import add_devices
from luthier.cli.printing import table
from luthier.errors import EXIT_DONE, Problem, RunError

LOOK_SECONDS = 2.0

_COLUMNS = (
    "process", "host", "devices", "matmul TFLOP/s", "memory GB/s", "all-reduce GB/s",
    "disk write MB/s", "disk read MB/s", "clock ms",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    add_devices(parser)
    parser.add_argument(
        "--directory", default="runs", metavar="DIR", help="where the disk is tried (runs)"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    launch.add_engine(parser)
    hosts.add_arguments(parser)


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Examine; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if arguments.on:
        return _launch(arguments, problems)
    child = hosts.of_child()
    processes = [] if child is not None else hosts.read(arguments, problems)
    problems.raise_any()
    if child is not None:
        arguments.devices = child.devices
        with hosts.joined(child):
            return _examine(arguments)
    if processes:
        return launcher.supervise(processes, ["doctor", *arguments.argv])
    return _examine(arguments)


def _examine(arguments: argparse.Namespace) -> int:
    from luthier.launch import doctor
    from luthier.parallel import distributed, hosts
    from luthier.records import read_source

    hosts.configure(arguments.devices)
    hosts.devices()
    found = doctor.examine(arguments.directory)
    if distributed.process_index():
        return EXIT_DONE
    source, lines = read_source(), doctor.findings(found)
    versions = {"Python": source.python, **source.versions}
    if arguments.json:
        report = {
            "versions": versions,
            "hosts": [dataclasses.asdict(each) for each in found],
            "findings": lines,
        }
        print(json.dumps(report, indent=1))
        return EXIT_DONE
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print("\n".join(table(_COLUMNS, [_row(each) for each in found])))
    print("\n".join(lines or ["nothing is found to be wrong"]))
    return EXIT_DONE


def _launch(arguments: argparse.Namespace, problems: Problems) -> int:
    """Have an engine start this command on its machines, and print what it found."""
    from luthier.launch import ProcessGroup, settings
    from luthier.launch.engine import LIVE

    chosen, engine = None, None
    with problems.collected():
        chosen = settings.choose(arguments.on, project.find().root)
        engine = chosen.make()
    if hosts.read(arguments, problems):
        problems.add("--on starts the processes itself", remedy="leave out the options of hosts")
    problems.raise_any()
    assert chosen is not None
    assert engine is not None
    words = ["--directory", arguments.directory, *(["--json"] if arguments.json else [])]
    devices = arguments.devices or engine.layout.devices
    words += ["--devices", devices] if devices else []
    if engine.layout.num_processes > 1:
        words += ["--distributed", "--join-seconds", str(launch.JOIN_SECONDS)]
    place = Path(arguments.directory).absolute() / "doctor" / time.strftime("%Y%m%d-%H%M%S")
    place.mkdir(parents=True)
    environment = {n: os.environ[n] for n in ("PYTHONPATH",) if n in os.environ}
    command = ("-m", "luthier", "doctor", *words)
    group = ProcessGroup("doctor", command, str(place), str(Path.cwd()), environment)
    jobs = engine.submit([group], str(place))
    told = ""
    while (standing := engine.standings(jobs)[0]).state in (*LIVE, "unknown"):
        line = f"job {jobs[0].id} of {chosen.name}: {standing.state} {standing.detail}".rstrip()
        if line != told:
            print(line, file=sys.stderr)
            told = line
        time.sleep(LOOK_SECONDS)
    log = group.log_path(0)
    printed = log.read_text("utf-8", "replace") if log.exists() else ""
    if standing.state != "finished":
        last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")
        what = f"job {jobs[0].id} of {chosen.name} {standing.state} ({standing.detail}): {last}"
        raise RunError(Problem(what, remedy=f"see {place}"))
    print(printed, end="")
    return EXIT_DONE


def _row(found: Any) -> Sequence[str]:
    summed = found.all_reduce_bytes
    skew, doubt = found.clock_skew_seconds, found.clock_uncertainty_seconds
    return (
        str(found.process),
        found.host,
        found.devices,
        f"{found.matmul_flops / 1e12:.4g}",
        f"{found.memory_bytes / 1e9:.4g}",
        "-" if summed is None else f"{summed / 1e9:.4g}",
        f"{found.disk_write_bytes / 1e6:.4g}",
        f"{found.disk_read_bytes / 1e6:.4g}",
        "0" if not found.process else f"{1e3 * skew:+.1f} (up to {1e3 * doubt:.1f} off)",
    )
