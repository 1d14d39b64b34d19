"""List experiments and studies, or the components that a config can use.

Experiments are those below configs/ here, and those that come with luthier;
studies are below sweeps/. They are read without importing them: this is fast,
and works if an import would fail. WORDs filter the list. `luthier list pax`
shows the experiments that reproduce one of Pax, with its name.

examples:
  luthier list
  luthier list quickstart
  luthier list --components shampoo
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Sequence

from luthier import folders
from luthier.cli.arguments import Problems
from luthier.cli.listing import DEFAULT_FUNCTION, Listed, find_all
from luthier.errors import EXIT_DONE, Problem

USAGE = "luthier list [WORD ...] [OPTIONS]"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "words", nargs="*", metavar="WORD", help="list only entries that contain every WORD"
    )
    parser.add_argument(
        "--components",
        action="store_true",
        help="list layers, tasks, optimizers, ... of luthier and of installed packages",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier list`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    Problems(unknown).raise_any()
    if arguments.components:
        return _list_components(arguments.words, arguments.json)
    found = [
        listed
        for package in folders.EXPERIMENT_FOLDERS
        for listed in find_all(package)
        if all(word.lower() in listed.text for word in arguments.words)
    ]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(listed) for listed in found], indent=1))
        return EXIT_DONE
    own = [listed for listed in found if not listed.is_shipped]
    rest = [listed for listed in found if listed.is_shipped]
    if own or not rest:
        _print_table(_rows(own, arguments.words), "experiment", arguments.words)
    if rest:
        print(f"{chr(10) if own else ''}with luthier:")
        _print_table(_rows(rest, arguments.words), "experiment", arguments.words)
    return EXIT_DONE


def _rows(found: Sequence[Listed], words: Sequence[str]) -> list[tuple[str, str]]:
    rows = []
    for listed in found:
        rows.append((_reference(listed), listed.description))
        # The names of Pax would double the whole list; a search shows them.
        if words:
            rows += [(alias.reference, f"--exp={alias.name}") for alias in listed.aliases]
    return rows


def _print_table(rows: Sequence[tuple[str, str]], kind: str, words: Sequence[str]) -> None:
    width = max((len(name) for name, _ in rows), default=0)
    for name, description in rows:
        print(f"{name:<{width}}  {description}".rstrip())
    if not rows:
        print(f"no {kind}" + (f" contains {' and '.join(words)}" if words else ""))


def _list_components(words: Sequence[str], as_json: bool) -> int:
    """Print the components that contain all words in their name, an earlier name or summary."""
    from luthier.cli.showing.settings import added_components, components
    from luthier.graph.public_names import RENAMED

    earlier = {new: old for old, new in RENAMED.items()}
    found = []
    for component in dict.fromkeys((*components(), *added_components())):
        text = f"{component.name} {earlier.get(component.name, '')} {component.summary}".lower()
        if all(word.lower() in text for word in words):
            found.append(component)
    if as_json:
        print(json.dumps([{"name": c.name, "description": c.summary} for c in found], indent=1))
    else:
        _print_table([(c.name, c.summary.partition(". ")[0]) for c in found], "component", words)
    return EXIT_DONE


def _reference(listed: Listed) -> str:
    if not listed.arguments:
        return listed.reference
    separator = "" if ":" in listed.reference else f":{DEFAULT_FUNCTION}"
    return f"{listed.reference}{separator}({', '.join(f'{a}=...' for a in listed.arguments)})"
