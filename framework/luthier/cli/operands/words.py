"""Reads operands from the arguments of a command line, and collects all problems."""

from __future__ import annotations

import functools
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from luthier import folders, project
from luthier.cli import experiments
from luthier.cli.arguments import Problems
from luthier.cli.listing import DEFAULT_FUNCTION
from luthier.cli.operands import recorded, revisions
from luthier.cli.operands.operand import Operand, of_graph
from luthier.errors import BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph

COMMAND = "diff"


def read_all(words: Sequence[str], problems: Problems) -> list[Operand]:
    """Return the operands that the words name.

    Args:
      words: `configs.lm.quickstart`, with overrides in one word `'configs.lm.quickstart seed=1'`;
        a run's folder or `run:ID`; `study:NAME/7`, or `study:NAME` for its base and all its
        trials; a `config.json`; an offline folder of W&B; `HEAD~1:configs.lm.quickstart`; `-` for
        JSON on the standard input.
      problems: Problems of the command line found so far; raised together with those found here.

    Raises:
      BadInput: All problems, at once.
    """
    packages: tuple[str, ...] = ()
    with problems.collected():
        packages = project.find().packages
    if list(words).count("-") > 1:
        problems.add("the standard input can be one operand only", remedy="write - once")
        problems.raise_any()
    operands: list[Operand] = []
    for word in words:
        with problems.collected():
            operands += _read(word, packages)
    problems.raise_any()
    return operands


def _read(word: str, packages: Sequence[str]) -> list[Operand]:
    """Return the operands that a word names: one, or all trials of a study."""
    # In this order: a study, a record, a revision, an experiment. A record with overrides is loaded
    # as a graph, since overrides cannot be applied to a document.
    trials = recorded.find_all(word)
    if trials is not None:
        return [recorded.read(trial, packages) for trial in trials]
    is_path = word and Path(word).exists()  # whose name may hold spaces
    name, *overrides = [word] if is_path else _split(word)
    record = recorded.find(name)
    if record is None:
        revision = revisions.find(name)
        if revision is not None:
            return [revisions.read(revision, overrides, word, packages)]
        return [_load(name, overrides, word, packages)]
    if overrides and record.path is not None:
        of = name if record.run is not None else str(record.path)
        return [_load(of, overrides, word, packages)]
    return [recorded.read(record, packages)]


def same_config(first: str, second: str) -> str:
    """Return a note if two operands name one experiment in two ways; else an empty string.

    In a project with a `quickstart` of its own, `quickstart` and `configs.quickstart` are that one,
    and the one that comes with luthier has another name.

    Args:
      first: The word of an operand that could be read.
      second: Another one.
    """
    from luthier import graph as graphs
    from luthier.graph.origins import short_file

    if any(recorded.find_all(w) or Path(w).exists() or w == "-" for w in (first, second)):
        return ""
    (a, *changes), (b, *others) = _split(first), _split(second)
    if changes != others or recorded.find(a) or recorded.find(b):
        return ""
    (name, _, function), (other, _, another) = a.partition(":"), b.partition(":")
    if (function or DEFAULT_FUNCTION) != (another or DEFAULT_FUNCTION) or "(" in name + other:
        return ""
    try:
        module, same = graphs.load_module(name), graphs.load_module(other)
    except BadInput:
        return ""  # a revision, or hf:DIR
    if module is not same:
        return ""
    file = Path(str(module.__file__))
    note = f"{first} and {second} are the same config, {short_file(str(file))}"
    last = module.__name__.rpartition(".")[2]
    shipped = [
        ".".join([folders.SHIPPED, *path.relative_to(folder.parent).with_suffix("").parts])
        for folder in map(Path, folders.shipped_folders())
        for path in folder.rglob(f"{last}.py")
        if not path.samefile(file)
    ]
    if len(shipped) == 1:
        note += f"; the one that comes with luthier is {shipped[0]}"
    return note


def _split(word: str) -> list[str]:
    """Return the reference in a word and the overrides after it.

    They are split as a shell would, except that brackets hold what is in them together, with its
    quotes: `pkg.mod:fn(name="x", n=2) seed=1` is a reference and an override.
    """
    try:
        parts = shlex.split(_with_brackets_quoted(word))
    except ValueError as error:
        what = f"cannot read {word!r}: {str(error).lower()}"
        raise BadInput(Problem(what, remedy="close the quotes")) from error
    if not parts:
        remedy = "write configs.lm.quickstart, run:ID or HEAD~1:configs.lm.quickstart"
        raise BadInput(Problem("an operand is empty", remedy=remedy))
    return parts


def _with_brackets_quoted(word: str) -> str:
    """Return a word in which all that is in brackets, and the brackets, are quoted for a shell."""
    parts, start, depth, quote = list[str](), 0, 0, ""
    is_escaped = False
    for index, character in enumerate(word):
        if is_escaped or character == "\\":
            is_escaped = not is_escaped
        elif quote:  # a bracket in a text opens nothing
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        elif character in "([{":
            if not depth:
                parts.append(word[start:index])
                start = index
            depth += 1
        elif character in ")]}" and depth:
            depth -= 1
            if not depth:
                parts.append(shlex.quote(word[start : index + 1]))
                start = index + 1
    return "".join(parts) + word[start:]


def _load(name: str, overrides: Sequence[str], word: str, packages: Sequence[str]) -> Operand:
    """Return the operand of a reference with overrides, built from the current source."""
    load = functools.partial(_graph, name, overrides)
    return of_graph(word, load, packages=packages)


def _graph(name: str, overrides: Sequence[str]) -> Graph:
    graph, _ = experiments.load(name, overrides, Problems(), command=COMMAND, checked=False)
    return graph
