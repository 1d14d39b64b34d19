"""Show an experiment without running it.

With nothing else: its values, those that are set first. A PATH shows what is below it.
--params lists the parameters; --sharding says where every one of them lives, and why.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
from typing import Any

from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.cli.showing import why
from luthier.cli.tables import table
from luthier.errors import EXIT_DONE, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "reference", nargs="?", metavar="REF", help="configs.lm.quickstart, or a run"
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="OVERRIDE|PATH",
        help="a change, as optimizer.b2=0.95; or what to show, as optimizer",
    )
    parser.add_argument(
        "--defaults", action="store_true", help="show defaults below the values too"
    )
    parser.add_argument("--params", action="store_true", help="list the parameters")
    parser.add_argument(
        "--sharding", action="store_true", help="list where parameters live, and why"
    )
    parser.add_argument("--why", metavar="PATH", help="show what set a value, first to last")
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--devices", metavar="KIND[:N]", help="for --sharding: cpu:8 makes 8 of them"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Print what is asked for; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    overrides = [word for word in arguments.words if experiments.is_override(word)]
    paths = [word for word in arguments.words if not experiments.is_override(word)]
    planned = arguments.params or arguments.sharding
    if arguments.devices and not planned:
        problems.add("--devices is for --sharding and --params", remedy="add --sharding")
    graph, _ = experiments.load(
        arguments.reference, overrides, problems, command="show", checked=planned
    )
    if planned:
        return _show_plan(graph, arguments)
    from luthier import graph as graphs

    if arguments.why:
        why.print_why(graph, arguments.why, arguments.json)
        return EXIT_DONE
    nodes = []
    for path in paths:
        with problems.collected():
            nodes.append(graphs.get(graph, path))
    problems.raise_any()
    for node in nodes or [graph]:
        print(
            graphs.to_json(node)
            if arguments.json
            else graphs.render(node, defaults=arguments.defaults)
        )
    return EXIT_DONE


def _show_plan(graph: Any, arguments: argparse.Namespace) -> int:
    from luthier.parallel import hosts, sharding_table

    hosts.configure(arguments.devices)
    from luthier import plan as plans

    plan = plans.make(graph, hosts.devices())
    if arguments.json:
        print(json.dumps(plan.to_dict(), indent=1))
        return EXIT_DONE
    if arguments.sharding:
        named = [dataclasses.replace(p, name=name) for name, p in plan.placements().items()]
        print(sharding_table(named, plan.program.sizes))
    else:
        print("\n".join(_parameters(plan)))
    return EXIT_DONE


def _parameters(plan: Any) -> list[str]:
    import numpy

    from luthier.parallel import array_bytes, format_bytes

    rows = [
        (
            name,
            "x".join(map(str, placement.shape)) or "scalar",
            numpy.dtype(placement.dtype).name,
            f"{math.prod(placement.shape):,}",
            format_bytes(array_bytes(placement.shape, placement.dtype)),
        )
        for name, placement in plan.placements().items()
    ]
    lines = table(["parameter", "shape", "dtype", "scalars", "size"], rows)
    parts = [f"{name} {count:,}" for name, count in plan.parameters_by_subtree.items()]
    return [*lines, f"{plan.parameters:,} scalars: {', '.join(parts)}"]
