"""Show what is different between experiments, runs, trials and revisions.

A REF is configs.lm.quickstart, with its overrides in one word:
'configs.lm.quickstart model.num_layers=8'; run:ID or the folder of a run;
study:NAME/7; a config.json; an offline folder of W&B; an experiment of a git
revision, HEAD~1:configs.lm.quickstart; or - for JSON on the standard input.
More than two, or study:NAME for all of its trials, are told as a matrix.
"""

from __future__ import annotations

import argparse

from luthier.cli.arguments import Problems
from luthier.cli.printing import tell_damage
from luthier.errors import EXIT_DONE, Problem

EXIT_DIFFERENT = 1
_ONLY = ("changed", "values", "structure")
# What the command answers in the place of the tree, and what it writes into files.
_FORMS = {"json": "--json", "as_overrides": "--overrides", "textconv": "--textconv"}
_PAIRS_ONLY = {
    "why": "--why",
    "effects": "--effects",
    "as_overrides": "--overrides",
    "patch": "--patch",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("operands", nargs="*", metavar="REF", help="what to compare")
    parser.add_argument(
        "--only",
        choices=_ONLY,
        help="what has an effect; values of arguments; or classes, sharing, lists and the like",
    )
    parser.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="leave out paths and what is below them, as '**.name' or records (may be repeated)",
    )
    parser.add_argument("--why", action="store_true", help="tell what set both sides")
    parser.add_argument(
        "--effects",
        action="store_true",
        help="tell what follows: parameters, bytes, FLOPs, curves, whether a checkpoint fits",
    )
    parser.add_argument(
        "--devices",
        metavar="KIND[:N]",
        help="for --effects (default: as many CPUs as the mesh has)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--overrides",
        dest="as_overrides",  # `overrides` are the words of other commands
        action="store_true",
        help="print the words that make the first the second",
    )
    parser.add_argument("--patch", metavar="FILE", help="write a fiddler that does; - prints it")
    parser.add_argument("--html", metavar="FILE", help="write a page")
    parser.add_argument("--open", action="store_true", help="show the page in a browser")
    parser.add_argument(
        "--exit-code", action="store_true", help="exit with 1 where something differs"
    )
    parser.add_argument(
        "--textconv", action="store_true", help="print one config.json for `git diff`"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Print what differs; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    _check(arguments, problems)
    if arguments.textconv:
        from luthier.cli.showing import differences

        problems.raise_any()
        differences.print_text(arguments.operands[0])
        return EXIT_DONE
    from luthier.cli.operands import words
    from luthier.cli.showing import differences

    operands = words.read_all(arguments.operands, problems)
    tell_damage(o.metrics_path for o in operands if o.metrics_path is not None)
    if len(operands) == 2:
        differs = differences.show(operands[0], operands[1], arguments)
    else:
        _check_matrix(arguments)
        differs = differences.show_matrix(operands, arguments)
    return EXIT_DIFFERENT if differs and arguments.exit_code else EXIT_DONE


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    """Add what is wrong with the options as they stand together."""
    forms = [option for name, option in _FORMS.items() if getattr(arguments, name)]
    if arguments.patch == "-":
        forms.append("--patch -")
    if len(forms) > 1:
        problems.add(f"{' and '.join(forms)} print different things", remedy="leave out one")
    if arguments.patch and (arguments.only or arguments.ignore):
        problems.add("--patch is of all that differs", remedy="leave out --only and --ignore")
    if arguments.devices and not arguments.effects:
        problems.add("--devices is for --effects", remedy="add --effects")
    given = arguments.operands
    if arguments.textconv:
        if len(given) != 1:
            remedy = "write `luthier diff --textconv config.json`"
            problems.add("--textconv is of one file", remedy=remedy)
    elif len(given) < 2 and not (given and _is_study(given[0])):
        what = "one operand has nothing to be compared with" if given else "no operand is named"
        remedy = "write `luthier diff A B`; `luthier help diff` tells what they may be"
        problems.add(what, remedy=remedy)


def _is_study(word: str) -> bool:
    return word.startswith("study:") and not word.rpartition("/")[2].isdigit()


def _check_matrix(arguments: argparse.Namespace) -> None:
    """Refuse what can be told of two operands only."""
    problems = Problems()
    for name, option in _PAIRS_ONLY.items():
        if getattr(arguments, name):
            problems.add(f"{option} is of two operands", remedy="name two")
    problems.raise_any()
