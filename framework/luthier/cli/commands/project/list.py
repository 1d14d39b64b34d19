"""List the experiments below configs/, with the first line of their docstrings.

Files are read, not imported: this takes no time, and works where an import would fail.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

from luthier.cli.arguments import Problems
from luthier.errors import EXIT_DONE, Problem

DEFAULT_FUNCTION = "experiment"


@dataclasses.dataclass(frozen=True)
class Listed:
    """One experiment that was found.

    Args:
      reference: What `luthier train` takes: `configs.lm.quickstart` or `configs.lm.c4:wide`.
      description: The first line of its docstring; the reason where its file cannot be read.
      arguments: The names of the arguments that it must be given, as `size`.
    """

    reference: str
    description: str
    arguments: tuple[str, ...] = ()


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
        if all(
            w.lower() in f"{listed.reference} {listed.description}".lower() for w in arguments.words
        )
    ]
    if arguments.json:
        print(json.dumps([dataclasses.asdict(listed) for listed in found], indent=1))
        return EXIT_DONE
    shown = {_reference(listed): listed.description for listed in found}
    width = max(map(len, shown), default=0)
    for reference, description in shown.items():
        print(f"{reference:<{width}}  {description}".rstrip())
    if not found:
        print(
            "no experiment"
            + (f" contains {' and '.join(arguments.words)}" if arguments.words else "")
        )
    return EXIT_DONE


def find(folder: Path) -> Iterator[Listed]:
    """Yield the experiments in the Python files below a folder, by name.

    Args:
      folder: A package of experiments; references begin with its name.
    """
    for path in sorted(folder.rglob("*.py")):
        yield from find_in(folder, path)


def find_in(folder: Path, path: Path) -> Iterator[Listed]:
    """Yield the experiments in one file below a folder.

    Args:
      folder: As `find` takes it.
      path: The file.
    """
    relative = path.relative_to(folder.parent).with_suffix("")
    if path.name == "__init__.py" or not all(part.isidentifier() for part in relative.parts):
        return
    module = ".".join(relative.parts)
    try:
        tree = ast.parse(path.read_text(encoding="utf-8"))
    except (SyntaxError, UnicodeDecodeError, ValueError) as error:
        yield Listed(module, f"(cannot be read: {error})")
        return
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    for function in functions:
        if _is_experiment(function):
            is_default = function.name == DEFAULT_FUNCTION
            reference = module if is_default else f"{module}:{function.name}"
            text = ast.get_docstring(function) or (ast.get_docstring(tree) if is_default else "")
            first = (text or "").split("\n\n")[0]
            yield Listed(reference, " ".join(first.split()), _required(function))


def _is_experiment(function: ast.FunctionDef) -> bool:
    """An experiment is called `experiment`, or says that it returns a graph."""
    if function.name.startswith("_"):
        return False
    returns = ast.unparse(function.returns) if function.returns else ""
    return function.name == DEFAULT_FUNCTION or "Experiment" in returns


def _required(function: ast.FunctionDef) -> tuple[str, ...]:
    positional = [*function.args.posonlyargs, *function.args.args]
    required = positional[: len(positional) - len(function.args.defaults)]
    keywords = zip(function.args.kwonlyargs, function.args.kw_defaults, strict=True)
    return tuple(a.arg for a in (*required, *(k for k, default in keywords if default is None)))


def _reference(listed: Listed) -> str:
    if not listed.arguments:
        return listed.reference
    separator = "" if ":" in listed.reference else f":{DEFAULT_FUNCTION}"
    return f"{listed.reference}{separator}({', '.join(f'{a}=...' for a in listed.arguments)})"
