"""Turn an experiment of another framework into a graph of ours, and tell what has no place in it.

`pax` reads what dump_pax.py wrote, a file that runs where Pax still runs: --print-dumper prints it.
What changes the model and has no like here is refused, unless --partial is said.
"""

from __future__ import annotations

import argparse
import dataclasses
import importlib.resources
import json
import sys
from pathlib import Path
from typing import Any

from luthier.cli.arguments import Problems
from luthier.cli.showing import forms
from luthier.errors import EXIT_DONE, Problem

_ORIGINS = ("pax",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument("origin", choices=_ORIGINS, metavar="ORIGIN", help="where it is from: pax")
    parser.add_argument("file", nargs="?", metavar="FILE", help="what dump_pax.py wrote")
    parser.add_argument(
        "--to", choices=forms.FORMS, metavar="FORM", help=f"{', '.join(forms.FORMS)}; default: py"
    )
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="write to a file; .py, .yaml, .json, .gin and .svg say the form",
    )
    parser.add_argument(
        "--checkpoint", metavar="PATH", help="start from a checkpoint of Pax, or its weights"
    )
    parser.add_argument(
        "--partial", action="store_true", help="also where the model computes something else here"
    )
    parser.add_argument("--json", action="store_true", help="print what has no place as JSON")
    parser.add_argument(
        "--print-dumper", action="store_true", help="print dump_pax.py, to run where Pax runs"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Import; return the exit code.

    Args:
      arguments: What `add_arguments` describes.
      unknown: Problems of the command line found so far.
    """
    problems = Problems(unknown)
    if arguments.print_dumper:
        problems.raise_any()
        print(dumper(), end="")
        return EXIT_DONE
    if arguments.file is None:
        remedy = "`luthier import pax --print-dumper > dump_pax.py` writes what makes one"
        problems.add("no file is named", remedy=remedy)
    suffix = Path(arguments.output).suffix if arguments.output else ""
    said = forms.SUFFIXES.get(suffix)
    if arguments.to and said and arguments.to != said:
        problems.add(f"--to {arguments.to} and {arguments.output} say two things")
    problems.raise_any()
    from luthier import program
    from luthier.recipes.foreign.pax import import_dump

    imported = import_dump(arguments.file, program, arguments.checkpoint, arguments.partial)
    text = forms.written(imported.graph, arguments.to or said or "py")
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
    _tell(imported, sys.stdout if arguments.output else sys.stderr)
    return EXIT_DONE


def dumper() -> str:
    """Return the file that dumps experiments, as it is to be run."""
    folder = importlib.resources.files("luthier") / "recipes" / "foreign" / "pax"
    return (folder / "dump_pax.py").read_text(encoding="utf-8")


def _tell(imported: Any, stream: Any) -> None:
    if imported.leftovers:
        count = len(imported.leftovers)
        noun = "setting has" if count == 1 else "settings have"
        print(f"{count} {noun} no place in it:", file=stream)
    for one in imported.leftovers:
        print(f"  {one}", file=stream)


def _print_json(imported: Any, output: str | None, text: str) -> None:
    found: dict[str, Any] = {
        "experiment": imported.name,
        "leftovers": [dataclasses.asdict(one) for one in imported.leftovers],
    }
    found |= {"file": output} if output else {"text": text}
    print(json.dumps(found, indent=1))
