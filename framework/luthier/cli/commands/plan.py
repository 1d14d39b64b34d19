"""Estimate memory, FLOPs and step time on hardware you do not have.

--level shapes uses only shapes and takes a few seconds. --level compile compiles
the training step for the target in a separate process, and does not need an
accelerator. If the step does not fit in memory, the command prints OVERRIDEs
that would make it fit, and the exit code is 2.

examples:
  luthier plan configs.lm.quickstart --slice v5e-8
  luthier plan configs.lm.quickstart --slice h100:8 --level shapes --search
"""

from __future__ import annotations

import argparse
import contextlib
import json
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph

_LEVELS = ("shapes", "compile")


USAGE = "luthier plan REF [OVERRIDE ...] [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "reference",
        nargs="?",
        metavar="REF",
        help="the experiment: configs.lm.quickstart, or run:ID",
    )
    parser.add_argument(
        "overrides",
        nargs="*",
        metavar="OVERRIDE",
        help="a change of the config, such as optimizer.b2=0.95",
    )
    parser.add_argument(
        "--slice",
        metavar="SLICE",
        help="the target: v5e-16, v4:2x2x1, 2xv5e-16, h100:8, h200:8x4 or cpu:8",
    )
    parser.add_argument(
        "--level",
        choices=_LEVELS,
        help="how to estimate (default: compile, if the compiler of the target is installed)",
    )
    parser.add_argument(
        "--search",
        action="store_true",
        help="search for a mesh, a rematerialization and a gradient accumulation that fit",
    )
    parser.add_argument(
        "--sharding", action="store_true", help="list the sharding of the parameters"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write the plan as a page")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier plan`; return the exit code: 2 if the experiment does not fit.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if not arguments.slice:
        problems.add("no target is given", remedy="write --slice v5e-16, h100:8 or cpu:8")
    # The target is read before the experiment, so that both are reported if both are wrong.
    target = None
    with problems.collected():
        if arguments.slice:
            from luthier.planner import targets

            target = targets.read(arguments.slice)
    graph, packages = experiments.load(
        arguments.reference, arguments.overrides, problems, command="plan"
    )
    with _Progress() as progress:
        report = _report(graph, target, arguments, packages, progress)
    _show(report, arguments)
    return EXIT_BAD_INPUT if report.fits is False else EXIT_DONE


def _report(
    graph: Graph, target: Any, arguments: argparse.Namespace, packages: Any, progress: _Progress
) -> Any:
    from luthier.parallel import hosts
    from luthier.planner import plan_apart, plan_here, targets

    # A plan by shapes needs as many (virtual) devices as the target has, and is made in this
    # process. Compiling needs the compiler's plugin and its environment variables, which must be
    # set before JAX starts; so it is done in another process. Without the compiler, shapes are all
    # there is.
    missing = targets.missing_compiler(target)
    if arguments.level == "shapes" or missing:
        with contextlib.suppress(BadInput):  # JAX runs already, and may have enough devices
            hosts.configure(f"cpu:{target.num_devices}")
        level = arguments.level or "compile"
        return plan_here(
            graph,
            target,
            level=level,
            packages=packages,
            search=arguments.search,
            on_progress=progress.update,
        )
    return plan_apart(
        graph,
        arguments.slice,
        level="compile",
        packages=packages,
        search=arguments.search,
        on_progress=progress.update,
    )


def _show(report: Any, arguments: argparse.Namespace) -> None:
    # The page first: if it cannot be written, nothing has been printed that looks like success.
    if arguments.html:
        from luthier.view.plan import render

        try:
            Path(arguments.html).write_text(render(report), encoding="utf-8")
        except OSError as error:
            what = f"cannot write {arguments.html}: {error.strerror}"
            raise BadInput(Problem(what, "--html")) from None
    if arguments.json:
        print(json.dumps(report.to_dict(), indent=1))
        return
    from luthier.view.plan import lines_of

    for line in lines_of(report, arguments.sharding):
        print(line)
    if arguments.html:
        print(f"{arguments.html}: wrote the plan as a page")


class _Progress:
    """A line on the terminal with the current phase and the time left; silent elsewhere."""

    # A thread draws it, because planning blocks in XLA for many seconds, and the countdown should
    # not stand still meanwhile.

    def __init__(self) -> None:
        self._is_shown = sys.stderr.isatty()
        self._phase, self._end = "", 0.0
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._draw, daemon=True)

    def __enter__(self) -> _Progress:
        if self._is_shown:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        if self._is_shown:
            self._thread.join()
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def update(self, message: Mapping[str, Any]) -> None:
        """Take a message of the planner: `phase`, and `seconds_left` or None."""
        self._end = time.monotonic() + (message["seconds_left"] or 0.0)
        self._phase = message["phase"]

    def _draw(self) -> None:
        while not self._is_over.wait(0.5):
            print(f"\r\x1b[K{self.line()}", end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return the line, as `compile, about 40 s left`."""
        left = self._end - time.monotonic()
        return f"{self._phase}, about {left:.0f} s left" if left >= 1 else self._phase
