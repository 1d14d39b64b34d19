"""Tell what an experiment would cost on a slice that need not be here.

--level shapes tells in seconds what shapes alone tell; --level compile compiles the training step
for the slice, in a process of its own: no accelerator is needed, and none is touched. Where the
step does not fit, changes that would fit are told as OVERRIDEs.
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
from typing import Any

from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.errors import EXIT_BAD_INPUT, EXIT_DONE, BadInput, Problem
from luthier.graph import Graph

_LEVELS = ("shapes", "compile")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "reference", nargs="?", metavar="REF", help="configs.lm.quickstart, or run:ID"
    )
    parser.add_argument("overrides", nargs="*", metavar="OVERRIDE", help="as optimizer.b2=0.95")
    parser.add_argument(
        "--slice", metavar="SLICE", help="v5e-16, v4:2x2x1, 2xv5e-16, h100:8, h200:8x4, cpu:8"
    )
    parser.add_argument(
        "--level", choices=_LEVELS, help="default: compile, where the slice's compiler is installed"
    )
    parser.add_argument(
        "--search", action="store_true", help="search for a mesh, remat and accumulation that fit"
    )
    parser.add_argument("--sharding", action="store_true", help="list where parameters live")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument("--html", metavar="FILE", help="write a page")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Plan; return the exit code: 2 where the experiment does not fit.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if not arguments.slice:
        problems.add("no slice is named", remedy="write --slice v5e-16, h100:8 or cpu:8")
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

    missing = targets.missing_compiler(target)
    if arguments.level == "shapes" or missing:
        with contextlib.suppress(BadInput):  # where JAX runs already, it may have enough of them
            hosts.configure(f"cpu:{target.num_devices}")
        level = arguments.level or "compile"
        return plan_here(
            graph,
            target,
            level=level,
            packages=packages,
            search=arguments.search,
            on_progress=progress.tell,
        )
    return plan_apart(
        graph,
        arguments.slice,
        level="compile",
        packages=packages,
        search=arguments.search,
        on_progress=progress.tell,
    )


def _show(report: Any, arguments: argparse.Namespace) -> None:
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
        print(f"{arguments.html}: the plan as a page")


class _Progress:
    """What is done, on one line of the terminal, with the time that is left; nothing elsewhere."""

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

    def tell(self, message: Mapping[str, Any]) -> None:
        """Take a message: `phase`, and `seconds_left` or None."""
        self._end = time.monotonic() + (message["seconds_left"] or 0.0)
        self._phase = message["phase"]

    def _draw(self) -> None:
        while not self._is_over.wait(0.5):
            print(f"\r\x1b[K{self.line()}", end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return the line: `compile, about 40 s left`."""
        left = self._end - time.monotonic()
        return f"{self._phase}, about {left:.0f} s left" if left >= 1 else self._phase
