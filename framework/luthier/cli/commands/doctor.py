"""Measure the hosts of a run: devices, all-reduce over all of them, disk, clocks.

With one process, the command measures this machine. To measure several hosts,
run the same command with the options of several processes on every host, as for
`luthier train`. Alternatively, --on starts it on the machines of an engine and
waits for the result. The table has one row per host. The lines below the table
list slow hosts and wrong clocks.

examples:
  luthier doctor
  luthier doctor --on slurm:nodes=2
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import json
import os
import shutil
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from luthier import project
from luthier.cli import hosts, launcher
from luthier.cli.arguments import Problems
from luthier.cli.commands import launch
from luthier.cli.commands.train import add_devices
from luthier.cli.printing import table
from luthier.errors import EXIT_DONE, LuthierError, Problem, RunError
from luthier.storage import run_error

LOOK_SECONDS = 2.0

_COLUMNS = (
    "process", "host", "devices", "matmul TFLOP/s", "memory GB/s", "all-reduce GB/s",
    "disk write MB/s", "disk read MB/s", "clock ms",
)  # fmt: skip


USAGE = "luthier doctor [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    add_devices(parser)
    parser.add_argument(
        "--directory",
        default="runs",
        metavar="DIR",
        help="a folder on the disk that is measured (default: runs)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    launch.add_engine(parser)
    hosts.add_arguments(parser)


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier doctor`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
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
    """Measure this host together with all others, and print the table from process 0."""
    from luthier.launch import doctor
    from luthier.parallel import distributed, hosts
    from luthier.records import read_source

    arguments.directory = str(project.records_folder(arguments.directory, on_disk=True))
    # Collective: every process measures at the same time, and process 0 gets the results of all of
    # them.
    hosts.configure(arguments.devices)
    fiddler = _fiddler(hosts.devices()[0])  # a platform without devices here is bad input
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
            "fiddler": fiddler,
        }
        print(json.dumps(report, indent=1))
        return EXIT_DONE
    print(", ".join(f"{name} {version}" for name, version in versions.items()))
    print("\n".join(table(_COLUMNS, [_row(each) for each in found])))
    print("\n".join(lines or ["no problems found"]))
    if fiddler:
        how = f"luthier show EXPERIMENT {fiddler} --changes"
        print(f"{fiddler} has settings for these devices: {how}")
    return EXIT_DONE


def _fiddler(device: Any) -> str:
    """Return the fiddler with settings for a kind of device; an empty string if there is none."""
    if device.platform == "tpu":
        return "fiddler:tpu"
    return "fiddler:gpu" if "NVIDIA" in device.device_kind else ""


def _launch(arguments: argparse.Namespace, problems: Problems) -> int:
    """Start this command on the machines of an engine, and print its output."""
    # The measurement is one more job of the engine. Its output is read from the log of process 0
    # when the job has ended; in between, every change of the job's state is printed to the standard
    # error.
    from luthier.launch import ProcessGroup, settings
    from luthier.launch.engine import LIVE

    chosen, engine = None, None
    with problems.collected():
        chosen = settings.choose(arguments.on, project.find().root)
        engine = chosen.make()
    if hosts.read(arguments, problems):
        problems.add(
            "--on starts the processes itself", remedy="leave out the options of several processes"
        )
    if chosen is not None and chosen.name == "tpu-vm":
        # Its engine only writes commands that a person runs, so there is no job to wait for.
        problems.add(
            "luthier does not log in to the machines of a TPU, so --on cannot measure them",
            remedy="run `luthier doctor --distributed` on each of them",
        )
    problems.raise_any()
    assert chosen is not None
    assert engine is not None
    words = ["--directory", arguments.directory, *(["--json"] if arguments.json else [])]
    devices = arguments.devices or engine.layout.devices
    words += ["--devices", devices] if devices else []
    if engine.layout.num_processes > 1:
        patience = arguments.join_seconds or launch.JOIN_SECONDS
        words += ["--distributed", "--join-seconds", str(patience)]
    place = _new_folder(Path(arguments.directory).absolute() / "doctor")
    # No other variable, for the reason in `launch._environment`: scripts are on a shared disk.
    environment = {n: os.environ[n] for n in ("PYTHONPATH",) if n in os.environ}
    command = ("-m", "luthier", "doctor", *words)
    group = ProcessGroup("doctor", command, str(place), str(Path.cwd()), environment)
    try:
        jobs = engine.submit([group], str(place))
    except LuthierError:
        # After any other exception the folder stays: the engine may have taken the job.
        shutil.rmtree(place)
        raise
    last_line = ""
    # A queue that does not answer ("unknown") is asked again: the job may still run. There is no
    # time limit, since a job may wait for hours; Ctrl-C ends the wait, and not the job.
    while (standing := engine.standings(jobs)[0]).state in (*LIVE, "unknown"):
        line = f"job {jobs[0].id} of {chosen.name}: {standing.state} {standing.detail}".rstrip()
        if line != last_line:
            print(line, file=sys.stderr)
            last_line = line
        time.sleep(LOOK_SECONDS)
    log = group.log_path(0)
    printed = log.read_text("utf-8", "replace") if log.exists() else ""
    if standing.state != "finished":
        # The last line of the log is nearly always the error.
        last = next((line for line in reversed(printed.splitlines()) if line.strip()), "")
        what = f"job {jobs[0].id} of {chosen.name} {standing.state} ({standing.detail}): {last}"
        raise RunError(Problem(what, remedy=f"see {place}"))
    print(printed, end="")
    return EXIT_DONE


def _new_folder(root: Path) -> Path:
    """Make the folder of a measurement, named by the time, and return it."""
    # `mkdir` both chooses and reserves: measurements that start in the same second, perhaps on
    # several machines, have logs of their own.
    name = time.strftime("%Y%m%d-%H%M%S")
    place = root / name
    for number in itertools.count(2):
        try:
            place.mkdir(parents=True)
            break
        except FileExistsError:
            place = root / f"{name}-{number}"
        except OSError as error:
            raise run_error("make", place, error) from error
    return place


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
