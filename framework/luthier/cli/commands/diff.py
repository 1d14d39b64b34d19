"""Compare experiments, runs, trials and git revisions.

A REF is one of
  configs.lm.quickstart, or 'configs.lm.quickstart seed=1' with overrides
  run:ID, or the folder of a run
  study:NAME/7 for a trial, study:NAME for all trials of a study
  HEAD~1:configs.lm.quickstart, an experiment of a git revision
  a config.json, an offline folder of W&B, or - for JSON on the standard input
Two REFs are compared as a tree. Three or more are listed as a matrix.
BASE..HEAD compares all experiments in configs/ at two git revisions.

examples:
  luthier diff configs.lm.quickstart run:last
  luthier diff HEAD~1:configs.lm.quickstart configs.lm.quickstart --effects
  luthier diff study:learning_rate
  luthier diff main...HEAD --markdown
"""

from __future__ import annotations

import argparse
import sys

from luthier.cli.arguments import Problems
from luthier.cli.printing import report_damage
from luthier.errors import EXIT_DONE, Problem

EXIT_DIFFERENT = 1
_ONLY = ("changed", "values", "structure")
# Options that print something else than the tree; only one of them can have the standard output.
_FORMS = {
    "json": "--json",
    "as_overrides": "--overrides",
    "markdown": "--markdown",
    "textconv": "--textconv",
}
_PAIRS_ONLY = {
    "why": "--why",
    "effects": "--effects",
    "as_overrides": "--overrides",
    "markdown": "--markdown",
    "patch": "--patch",
}


USAGE = (
    "luthier diff REF REF ... [OPTIONS]\n"
    "luthier diff BASE..HEAD [OPTIONS]\n"
    "luthier diff study:NAME [OPTIONS]"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "operands",
        nargs="*",
        metavar="REF",
        help="the experiments, runs, trials or revisions to compare",
    )
    shown = parser.add_argument_group("what to show")
    shown.add_argument(
        "--only",
        choices=_ONLY,
        help="show only effective changes, only values of arguments, or only classes and sharing",
    )
    shown.add_argument(
        "--ignore",
        action="append",
        default=[],
        metavar="PATTERN",
        help="ignore matching paths and everything below them: '**.name', records "
        "(may be repeated)",
    )
    shown.add_argument("--why", action="store_true", help="show where both values were set")
    shown.add_argument(
        "--effects",
        action="store_true",
        help="show the effects: parameters, bytes, FLOPs, curves, checkpoint compatibility",
    )
    shown.add_argument(
        "--devices",
        metavar="KIND[:N]",
        help="for --effects (default: as many CPUs as the mesh needs)",
    )
    formats = parser.add_argument_group("output")
    formats.add_argument("--json", action="store_true", help="print JSON")
    formats.add_argument(
        "--markdown",
        action="store_true",
        help="print Markdown for a pull request; for BASE..HEAD, all changed configs",
    )
    formats.add_argument(
        "--overrides",
        dest="as_overrides",  # `overrides` is a positional argument of other commands
        action="store_true",
        help="print the overrides that turn the first config into the second",
    )
    formats.add_argument(
        "--patch", metavar="FILE", help="write a fiddler that makes these changes; - prints it"
    )
    formats.add_argument("--html", metavar="FILE", help="write the comparison as a page")
    formats.add_argument("--open", action="store_true", help="open the page in a browser")
    formats.add_argument("--exit-code", action="store_true", help="exit with 1 if anything differs")
    formats.add_argument(
        "--textconv", action="store_true", help="print one config.json as lines, for `git diff`"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier diff`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    _check(arguments, problems)
    if arguments.textconv:
        from luthier.cli.showing import differences

        problems.raise_any()
        differences.print_text(arguments.operands[0])
        return EXIT_DONE
    if _is_range(arguments.operands):
        from luthier.cli.showing import pull_request

        problems.raise_any()
        differs = pull_request.show_range(arguments.operands[0], arguments)
        return EXIT_DIFFERENT if differs and arguments.exit_code else EXIT_DONE
    from luthier.cli.operands import words
    from luthier.cli.showing import differences

    # How many operands there are is known only now: `study:NAME` stands for all of its trials.
    operands = words.read_all(arguments.operands, problems)
    report_damage(o.metrics_path for o in operands if o.metrics_path is not None)
    if len(operands) == 2:
        if note := words.same_config(*arguments.operands):
            print(f"note: {note}", file=sys.stderr)
        differs = differences.show(operands[0], operands[1], arguments)
    else:
        _check_matrix(arguments)
        differs = differences.show_matrix(operands, arguments)
    return EXIT_DIFFERENT if differs and arguments.exit_code else EXIT_DONE


def _check(arguments: argparse.Namespace, problems: Problems) -> None:
    """Add the problems of options that do not go together."""
    forms = [option for name, option in _FORMS.items() if getattr(arguments, name)]
    if arguments.patch == "-":
        forms.append("--patch -")
    if len(forms) > 1:
        problems.add(f"{' and '.join(forms)} cannot be combined", remedy="leave out one")
    if arguments.patch and (arguments.only or arguments.ignore):
        what = "--patch covers all differences and cannot be filtered"
        problems.add(what, remedy="leave out --only and --ignore")
    given = arguments.operands
    is_range = _is_range(given)
    if arguments.devices and not arguments.effects and not is_range:
        problems.add("--devices needs --effects", remedy="add --effects")
    if arguments.textconv:
        if len(given) != 1:
            remedy = "write `luthier diff --textconv config.json`"
            problems.add("--textconv needs one file", remedy=remedy)
    elif is_range:
        _check_range(arguments, problems)
    elif len(given) < 2 and not (given and _is_study(given[0])):
        what = "only one operand is given" if given else "no operands are given"
        remedy = "write `luthier diff A B`; `luthier help diff` describes operands"
        problems.add(what, remedy=remedy)


def _is_range(given: list[str]) -> bool:
    if len(given) != 1 or ".." not in given[0]:
        return False
    from luthier.cli.operands import ranges

    return ranges.is_range(given[0])


def _check_range(arguments: argparse.Namespace, problems: Problems) -> None:
    """Add the problems of a range of revisions, which has one form of output."""
    if not arguments.markdown:
        what = f"{arguments.operands[0]} compares all configs, which is printed as Markdown only"
        problems.add(what, remedy="add --markdown")
    others = {"patch": "--patch", "html": "--html", "open": "--open"}
    for name, option in others.items():
        if getattr(arguments, name):
            problems.add(f"{option} needs exactly two operands", remedy="leave it out")


def _is_study(word: str) -> bool:
    return word.startswith("study:") and not word.rpartition("/")[2].isdecimal()


def _check_matrix(arguments: argparse.Namespace) -> None:
    """Reject options that work for two operands only."""
    problems = Problems()
    for name, option in _PAIRS_ONLY.items():
        if getattr(arguments, name):
            problems.add(f"{option} needs exactly two operands", remedy="give two")
    problems.raise_any()
