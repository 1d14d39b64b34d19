"""Convert an experiment of another framework into a config of luthier.

`pax` reads a file that dump_pax.py writes. Print this script with --print-dumper,
and run it where Pax is installed. A setting that changes the model and has no
equivalent in luthier is an error. Pass --partial to import the rest anyway. The
command lists other settings without an equivalent.

examples:
  luthier import pax --print-dumper > dump_pax.py
  luthier import pax my_lm.json --output configs/my_lm.py
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import json
import sys
from pathlib import Path
from typing import Any, TextIO

from luthier.cli.arguments import Problems
from luthier.cli.showing import forms
from luthier.errors import EXIT_DONE, Problem

_ORIGINS = ("pax",)


USAGE = "luthier import pax FILE [OPTIONS]\nluthier import pax --print-dumper"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "origin", choices=_ORIGINS, metavar="ORIGIN", help="the other framework: pax"
    )
    parser.add_argument("file", nargs="?", metavar="FILE", help="the file that dump_pax.py wrote")
    parser.add_argument(
        "--to",
        choices=forms.FORMS,
        metavar="FORM",
        help=f"output format: {', '.join(forms.FORMS)} (default: py)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write to a file, in the format of its suffix: .py, .yaml, .json, .gin or .svg",
    )
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="initialize the weights from a checkpoint of Pax"
    )
    parser.add_argument(
        "--partial",
        action="store_true",
        help="import even if the model will compute different results",
    )
    parser.add_argument(
        "--json", action="store_true", help="print the settings without an equivalent as JSON"
    )
    parser.add_argument(
        "--print-dumper",
        action="store_true",
        help="print dump_pax.py, which you run where Pax is installed",
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier import`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    # `origin` is not looked at: argparse takes `pax` only.
    problems = Problems(unknown)
    if arguments.print_dumper:
        problems.raise_any()
        print(dumper(), end="")
        return EXIT_DONE
    if arguments.file is None:
        remedy = (
            "`luthier import pax --print-dumper > dump_pax.py` writes the script that makes one"
        )
        problems.add("no file is given", remedy=remedy)
    suffix = Path(arguments.output).suffix if arguments.output else ""
    # A suffix that is not of a format says nothing: the text is then that of --to, or Python.
    by_suffix = forms.SUFFIXES.get(suffix)
    if arguments.to and by_suffix and arguments.to != by_suffix:
        what = f"--to {arguments.to} and {arguments.output} name different formats"
        problems.add(what, remedy="leave out --to")
    problems.raise_any()
    from luthier import program
    from luthier.recipes.foreign.pax import import_dump

    # The package is passed in, because recipes are in a layer below it and may not import it.
    imported = import_dump(arguments.file, program, arguments.checkpoint, arguments.partial)
    text = forms.written(imported.graph, arguments.to or by_suffix or "py")
    if arguments.output:
        forms.save(text, arguments.output)
    if arguments.json:
        _print_json(imported, arguments.output, text)
        return EXIT_DONE
    if arguments.output:
        lines = text.count("\n")
        print(f"{arguments.output}: {lines:,} lines, from {imported.name}")
    else:
        print(text, end="")
    # Beside the text where that goes to the standard output, so that it can be redirected into a
    # file.
    _print_leftovers(imported, sys.stdout if arguments.output else sys.stderr)
    return EXIT_DONE


def dumper() -> str:
    """Return the script that dumps experiments of Pax."""
    # Only its text: it imports Pax, which is not installed here.
    folder = importlib.resources.files("luthier") / "recipes" / "foreign" / "pax"
    return (folder / "dump_pax.py").read_text(encoding="utf-8")


def _print_leftovers(imported: Any, stream: TextIO) -> None:
    if imported.leftovers:
        count = len(imported.leftovers)
        noun = "setting has" if count == 1 else "settings have"
        print(f"{count} {noun} no equivalent:", file=stream)
    for one in imported.leftovers:
        print(f"  {one}", file=stream)


def _print_json(imported: Any, output: str | None, text: str) -> None:
    report: dict[str, Any] = {
        "experiment": imported.name,
        "leftovers": [dataclasses.asdict(one) for one in imported.leftovers],
    }
    report |= {"file": output} if output else {"text": text}
    print(json.dumps(report, indent=1))
