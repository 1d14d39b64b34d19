"""Create a folder for a project of your own, outside of luthier's repository.

It has configs/ and sweeps/, a Python package with a layer, a data set and a
metric, and one experiment that uses them. Run all commands from inside the
folder.

example:
  luthier init my_models
"""

from __future__ import annotations

import argparse
import importlib.util
import keyword
import sys
from collections.abc import Iterator
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path

from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, Problem

PACKAGE = "my_project"
"""The placeholder for the user's package in the file names and texts of the template."""

RENAMED = {"gitignore": ".gitignore"}
RESERVED = ("configs", "sweeps", "tests", "runs", "luthier", PACKAGE)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add this command's arguments to `parser`."""
    parser.add_argument(
        "name", nargs="?", metavar="NAME", help="the folder to create, as my_models"
    )


def run(arguments: argparse.Namespace, unknown: list[Problem]) -> int:
    """Run `luthier init`; return the exit code.

    Args:
      arguments: The arguments of `add_arguments`.
      unknown: Problems of the command line found so far.
    """
    # Nothing is written unless every check has passed; a folder that exists must be empty.
    problems = Problems(unknown)
    folder = Path(arguments.name or "")
    package = folder.name.replace("-", "_")
    if not arguments.name:
        problems.add("no name is given", remedy="write `luthier init NAME`")
    else:
        known = len(problems)
        _check_name(arguments.name, package, problems)
        if len(problems) == known:
            _check_folder(folder, problems)
    problems.raise_any()
    for path in _copy(_template(), folder, package):
        print(f"  {path}")
    print(
        f"created {folder}. Next:\n  cd {folder}\n  luthier list\n  luthier train configs.addition"
    )
    return EXIT_DONE


def _check_name(name: str, package: str, problems: Problems) -> None:
    """Add the problem of a name that cannot be imported, or that would hide another package."""
    # The folder is first on `sys.path` of every command that is run in it: a package `random` in it
    # would take the place of Python's own for everything that is imported after it.
    remedy = "use letters, digits and _, beginning with a letter, as my_models"
    if not (package.isascii() and package.isidentifier()) or package.startswith("_"):
        problems.add(f"{name!r} does not end in a valid package name", remedy=remedy)
    elif keyword.iskeyword(package) or keyword.issoftkeyword(package):
        problems.add(f"{package!r} is a keyword of Python", remedy="choose another name")
    elif package in RESERVED:
        problems.add(f"the name {package!r} is reserved", remedy="choose another name")
    elif package in sys.stdlib_module_names or _is_installed(package):
        problems.add(
            f"{package!r} is the name of an installed package, which yours would hide",
            remedy="choose another name",
        )


def _is_installed(package: str) -> bool:
    """Return whether a package of this name exists outside of the working directory."""
    spec = importlib.util.find_spec(package)
    if spec is None:
        return False
    places = [spec.origin] if spec.origin else list(spec.submodule_search_locations or [])
    return any(Path.cwd() not in Path(place).parents for place in places)


def _check_folder(folder: Path, problems: Problems) -> None:
    if folder.is_dir():
        if any(folder.iterdir()):
            problems.add(f"{folder} exists and is not empty", remedy="choose another name")
    elif folder.exists() or folder.is_symlink():
        problems.add(f"{folder} exists and is not a folder", remedy="choose another name")
    for parent in folder.parents:
        if parent.exists():
            if not parent.is_dir():
                problems.add(f"{parent} is not a folder", remedy="choose another place")
            break


def _template() -> Traversable:
    return resources.files("luthier.cli").joinpath("template")


def _copy(source: Traversable, target: Path, package: str) -> Iterator[Path]:
    """Copy the template with the user's package name; yield the files written."""
    # `.gitignore` has another name in the template (RENAMED): the glob of the package's data does
    # not match names with a dot, and git would apply the file to this repository.
    target.mkdir(parents=True, exist_ok=True)
    for entry in sorted(source.iterdir(), key=lambda entry: entry.name):
        name = RENAMED.get(entry.name, entry.name.replace(PACKAGE, package))
        if entry.is_dir():
            if entry.name != "__pycache__":
                yield from _copy(entry, target / name, package)
        elif not entry.name.endswith(".pyc"):
            text = entry.read_text(encoding="utf-8").replace(PACKAGE, package)
            (target / name).write_text(text, encoding="utf-8")
            yield target / name
