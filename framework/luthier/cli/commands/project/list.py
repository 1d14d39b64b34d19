"""List experiments and studies, or the components that a config can use.

The list contains the experiments below configs/ and those that come with
luthier. Studies are below sweeps/. The files are read without importing them,
so the command is fast and also works if an import would fail. WORDs filter the
list.

The columns show the number of parameters, the hardware and the expected result
from the docstring of the experiment. `luthier list pax` and --all also list the
experiments of Pax. With WORDs, the list also shows the names that Pax uses for
them.

examples:
  luthier list
  luthier list quickstart
  luthier list pax
  luthier list --components shampoo
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence

from luthier import folders
from luthier.cli.arguments import Problems
from luthier.cli.listing import DEFAULT_FUNCTION, Listed, about, find_all, is_of_pax
from luthier.errors import EXIT_DONE, Problem
from luthier.terminal import cell, has_colors, styled

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
    parser.add_argument(
        "--all", action="store_true", help="also list the experiments of Pax one by one"
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
    hidden = []
    if not arguments.all and not arguments.words:
        hidden = [listed for listed in found if is_of_pax(listed)]
    shown = [listed for listed in found if listed not in hidden]
    if shown:
        _print_experiments(shown, has_aliases=bool(arguments.words))
    else:
        _print_table([], "experiment", arguments.words)
    if hidden:
        print(f"\n{len(hidden)} experiments of Pax: luthier list pax")
    return EXIT_DONE


_HEADS = ("experiment", "parameters", "hardware", "expected", "description")
# Columns on a terminal: at most for each, and at least for a description beside the others.
_WIDEST, _LEAST_DESCRIPTION = (44, 12, 24, 34, 200), 24


def _print_experiments(found: Sequence[Listed], has_aliases: bool) -> None:
    """Print experiments: the project's own, and those that come with luthier.

    Args:
      found: The experiments, the project's own first.
      has_aliases: Whether the names that Pax has for them get rows of their own.
    """
    # On a terminal the table has a head, groups by folder, and lines that fit. In a pipe a row is
    # one line, whatever its length, for `grep` and `awk`.
    rows = {listed: _rows(listed, has_aliases) for listed in found}
    cells = [row for each in rows.values() for row in each]
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    widths = [max(len(row[i]) for row in cells) for i in range(len(_HEADS))]
    if columns is not None:
        widths = [max(w, len(head)) if w else 0 for w, head in zip(widths, _HEADS, strict=True)]
        widths = [min(width, most) for width, most in zip(widths, _WIDEST, strict=True)]
        print(_bold(_fitted(_HEADS, widths, columns)[0]))
    package, is_shipped = "", False
    for listed in found:
        if listed.is_shipped and not is_shipped:
            print("\nwith luthier:" if listed is not found[0] else "with luthier:")
            package, is_shipped = "", True
        module = listed.reference.partition(":")[0].rpartition(".")[0]
        if columns is not None and module != package:
            title = about(module).removesuffix(".")
            print()
            print(_bold(f"{module}: {title}" if title else module))
        package = module
        for row in rows[listed]:
            lines = [_line(row, widths)] if columns is None else _fitted(row, widths, columns)
            print("\n".join(lines))


def _bold(text: str) -> str:
    return styled(text, "bold") if has_colors() else text


def _rows(listed: Listed, has_aliases: bool) -> list[tuple[str, ...]]:
    count = re.sub(r" ([mb])illion$", lambda unit: unit[1].upper(), listed.parameters)
    hardware = re.sub(r"\bunder (\d+) minutes?$", r"< \1 min", listed.hardware)
    expected = re.sub(r"(?<=\d) on \w+$", "", listed.expected)
    rows = [(_reference(listed), count, hardware, expected, listed.description)]
    # The names of Pax would double the whole list; a search shows them.
    if has_aliases:
        rows += [(alias.reference, "", "", "", f"--exp={alias.name}") for alias in listed.aliases]
    return [tuple(cell(text) for text in row) for row in rows]


def _line(row: Sequence[str], widths: Sequence[int]) -> str:
    """Return cells as a line; columns of width 0 are left out."""
    # Numbers of parameters are aligned at their last digits.
    texts = [
        text.rjust(width) if column == 1 else text.ljust(width)
        for column, (text, width) in enumerate(zip(row, widths, strict=False))
        if width
    ]
    return "  ".join(texts).rstrip()


def _fitted(row: Sequence[str], widths: Sequence[int], columns: int) -> list[str]:
    """Return the lines of a row on a terminal: the cells that do not fit are below the others."""
    if not any(row[1:-1]):
        line = f"{row[0].ljust(widths[0])}  {row[-1]}".rstrip()
        if len(line) <= columns:
            return [line]
    starts = [sum(width + 2 for width in widths[:column] if width) for column in range(len(row))]
    least = [*widths[:-1], min(widths[-1], _LEAST_DESCRIPTION)]
    fits = 1
    if len(row[0]) <= widths[0]:
        ends = (start + width for start, width in zip(starts, least, strict=True))
        fits = next((column for column, end in enumerate(ends) if end > columns), len(row))
    most = [*widths[:-1], columns - starts[-1]]
    cut = [
        textwrap.shorten(text, most[column], placeholder=" ...") if column and text else text
        for column, text in enumerate(row[:fits])
    ]
    below = "; ".join(filter(None, row[fits:]))
    indent = " " * 4
    wrapped = textwrap.wrap(below, columns, initial_indent=indent, subsequent_indent=indent)
    return [_line(cut, widths), *wrapped]


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
