"""List the experiments below configs/, with the first line of their docstrings.

Files are read, not imported: this takes no time, and works where an import would fail. A line
`Pax: C4Spmd1BAdam4Replicas` of an experiment's docstring tells what Pax calls it, and with
arguments, `Pax: C4Spmd1BAdam4ReplicasLimitSteps(steps=15_000)`, what Pax calls a variant of it.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path

from luthier.cli.arguments import Problems
from luthier.cli.listing import DEFAULT_FUNCTION, Listed, find
from luthier.errors import EXIT_DONE, Problem


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="list those that contain every WORD"
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Print the experiments below the working directory; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    folder = Path.cwd() / "configs"
    if not folder.is_dir():
        problems.add(
            f"no folder configs/ in {Path.cwd()}",
            remedy="go to a folder that has one, or make one with `luthier init NAME`",
        )
    problems.raise_any()
    found = [
        listed
        for listed in find(folder)
        if all(word.lower() in listed.text for word in arguments.words)
    ]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(listed) for listed in found], indent=1))
        return EXIT_DONE
    shown = []
    for listed in found:
        shown.append((_reference(listed), listed.description))
        if arguments.words:  # who looks for something also sees what Pax calls it
            shown += [(alias.reference, f"--exp={alias.name}") for alias in listed.aliases]
    width = max((len(reference) for reference, _ in shown), default=0)
    for reference, description in shown:
        print(f"{reference:<{width}}  {description}".rstrip())
    if not found:
        print(
            "no experiment"
            + (f" contains {' and '.join(arguments.words)}" if arguments.words else "")
        )
    return EXIT_DONE


def _reference(listed: Listed) -> str:
    if not listed.arguments:
        return listed.reference
    separator = "" if ":" in listed.reference else f":{DEFAULT_FUNCTION}"
    return f"{listed.reference}{separator}({', '.join(f'{a}=...' for a in listed.arguments)})"
