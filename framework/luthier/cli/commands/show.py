"""Show an experiment's config without running it.

Without options, the command prints the config as a tree. A PATH selects a part
of the config. --to and --output write other formats. --params lists the
parameters, and --sharding their placement. --why shows where a value was set,
and --changes lists the effects of the OVERRIDEs.

examples:
  luthier show configs.lm.quickstart
  luthier show configs.lm.quickstart optimizer --defaults
  luthier show configs.lm.quickstart fiddler:fsdp --sharding --devices cpu:8
  luthier show luthier.recipes.decoders:llama_7b --params
  luthier show configs.lm.quickstart --why optimizer.learning_rate.peak
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.cli.showing import differences, forms, parameters
from luthier.errors import EXIT_DONE, BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph

_ANSWERS = ("params", "sharding", "changes", "why")


USAGE = "luthier show REF [PATH] [OVERRIDE ...] [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "reference",
        nargs="?",
        metavar="REF",
        help="the experiment: configs.lm.quickstart, hf:DIR, run:ID, a .json, .yaml or .gin file",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="OVERRIDE|PATH",
        help="a change, such as optimizer.b2=0.95, or a part to show, such as optimizer",
    )
    formats = parser.add_argument_group("output")
    formats.add_argument(
        "--to",
        choices=forms.FORMS,
        metavar="FORM",
        help=f"output format: {', '.join(forms.FORMS)} (default: tree)",
    )
    formats.add_argument(
        "--output",
        metavar="FILE",
        help="write to a file, in the format of its suffix: .py, .yaml, .json, .gin or .svg",
    )
    formats.add_argument("--json", action="store_true", help="print JSON")
    shown = parser.add_argument_group("what to show")
    shown.add_argument("--defaults", action="store_true", help="also show default values")
    shown.add_argument(
        "--why",
        nargs="?",
        const="",
        metavar="PATH",
        help="show where the value at PATH was set, or where every value was set",
    )
    shown.add_argument("--changes", action="store_true", help="show what the OVERRIDEs change")
    shown.add_argument(
        "--params", action="store_true", help="list the parameters of an experiment or recipe"
    )
    shown.add_argument(
        "--sharding",
        action="store_true",
        help="list the sharding of every array and the rule for it",
    )
    shown.add_argument(
        "--devices",
        metavar="KIND[:N]",
        help="for --sharding, and to shard --params: cpu:8 simulates 8 devices",
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier show`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    words = list(arguments.words)
    # `--why b2=1`: argparse took an override for the PATH of --why.
    if arguments.why and experiments.is_override(arguments.why):
        words.append(arguments.why)
        arguments.why = ""
    overrides = [word for word in words if experiments.is_override(word)]
    paths = [word for word in words if not experiments.is_override(word)]
    answer = _answer(arguments, paths, problems)
    planned = answer in ("params", "sharding")
    if arguments.devices and not planned:
        problems.add("--devices needs --sharding or --params", remedy="add --sharding")
    form = _form(arguments, problems) if not answer else ""
    # JSON is exempt: of several paths it is a sequence of documents, which tools such as jq read.
    # The limit of that is --output: luthier itself reads back a file with one document only.
    if form in forms.WHOLE and form != "json" and len(paths) > 1:
        problems.add(f"--to {form} takes one path, not {len(paths)}", remedy="leave out the others")
    graph, _ = experiments.load(
        arguments.reference, overrides, problems, command="show", checked=planned
    )
    if planned:
        return _show_plan(graph, arguments)
    if answer == "why":
        forms.print_why(graph, arguments.why, arguments.json)
    elif answer == "changes":
        before, _ = experiments.load(
            arguments.reference, [], problems, command="show", checked=False
        )
        differences.print_changes(before, graph)
    else:
        _show_graph(graph, paths, form, arguments, problems)
    return EXIT_DONE


def _answer(arguments: argparse.Namespace, paths: list[str], problems: Problems) -> str:
    """Return the option that replaces the graph by another answer; empty for none."""
    # `--why` without a PATH is "", which is an answer as well; hence the comparison with None and
    # False.
    given = [name for name in _ANSWERS if getattr(arguments, name) not in (None, False)]
    if len(given) > 1:
        named = " and ".join(f"--{name}" for name in given)
        problems.add(f"{named} cannot be combined", remedy="use one at a time")
    answer = given[0] if given else ""
    if answer:
        options = ("to", "output", "defaults")
        unused = [f"--{name}" for name in options if getattr(arguments, name) not in (None, False)]
        unused += ["--json"] if answer == "changes" and arguments.json else []
        if answer == "why" and len(paths) == 1 and not arguments.why:
            arguments.why = paths.pop()  # luthier show REF optimizer.b2 --why
        unused += paths
        for word in unused:
            problems.add(f"{word} has no effect with --{answer}", remedy="leave it out")
    return answer


def _form(arguments: argparse.Namespace, problems: Problems) -> str:
    """Return the output format: that of --to or --json, or that of the file's suffix."""
    suffix = Path(arguments.output).suffix if arguments.output else ""
    chosen = {
        "--to " + str(arguments.to): arguments.to,
        "--json": "json" if arguments.json else None,
        f"--output {arguments.output}": forms.SUFFIXES.get(suffix),
    }
    given = {option: form for option, form in chosen.items() if form}
    if len(set(given.values())) > 1:
        problems.add(f"{' and '.join(given)} name different formats", remedy="leave out one")
    form = next(iter(given.values()), "tree")
    if arguments.defaults and form not in forms.LISTED:
        listed = " or ".join(forms.LISTED)
        what = f"--defaults needs the format {listed}; {form} has only values that are set"
        problems.add(what, remedy="leave it out")
    return form


def _show_graph(
    graph: Graph,
    paths: list[str],
    form: str,
    arguments: argparse.Namespace,
    problems: Problems,
) -> None:
    from luthier import graph as graphs

    # Unknown paths are collected, too. The formats of a whole file, except JSON, take one path only
    # (`run` checks that), since two documents in a file could not be read back.
    nodes = []
    for index, path in enumerate(paths):
        try:
            nodes.append(graphs.get(graph, path))
        except BadInput as error:
            # `optimizer.b2 0.95`, as argparse takes values.
            near = [f"{paths[index - 1]}={path}"] if index and len(nodes) == index else []
            applied = [word for word in near if _applies(graph, word)]
            problems.extend(
                [dataclasses.replace(error.problems[0], nearest=tuple(applied))]
                if applied
                else error.problems
            )
    problems.raise_any()
    text = "".join(forms.written(node, form, arguments.defaults) for node in nodes or [graph])
    if arguments.output:
        forms.save(text, arguments.output)
        print(f"{arguments.output}: {text.count(chr(10)):,} lines")
    else:
        print(text, end="")


def _applies(graph: Graph, word: str) -> bool:
    from luthier import graph as graphs

    try:
        graphs.apply(graph, [word])
    except BadInput:
        return False
    return True


def _show_plan(graph: Graph, arguments: argparse.Namespace) -> int:
    """Print the parameters or the shardings of an experiment."""
    # Nothing is computed: both come from the shapes of an abstract initialization.
    from luthier.parallel import hosts, sharding_table

    if arguments.params:
        # Without --devices no mesh is made, and no backend of JAX is started: an experiment for 512
        # accelerators is counted on a laptop.
        devices = None
        if arguments.devices:
            hosts.configure(arguments.devices)
            devices = hosts.devices()
        parameters.print_parameters(graph, devices, arguments.json)
        return EXIT_DONE
    hosts.configure(arguments.devices)
    from luthier import planner
    from luthier.planner.checks import unsplit

    plan = planner.make(graph, hosts.devices())
    if arguments.json:
        print(json.dumps(plan.to_dict(), indent=1))
        return EXIT_DONE
    named = [dataclasses.replace(p, name=name) for name, p in plan.placements().items()]
    print(sharding_table(named, plan.program.sizes))
    if note := unsplit(plan.program):
        print(f"note: {note}")
    for pipeline in plan.pipelines:
        print(pipeline)
    for core, reasons in plan.attention_cores.items():
        print(f"attention by {core}: {reasons}")
    return EXIT_DONE
