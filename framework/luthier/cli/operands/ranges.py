"""All experiments of a project at two git revisions: `luthier diff BASE..HEAD --markdown`."""

from __future__ import annotations

import dataclasses
import functools
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from luthier import project
from luthier.cli import experiments, listing
from luthier.cli.arguments import Problems
from luthier.cli.operands import revisions
from luthier.cli.operands.operand import Operand, of_graph
from luthier.errors import BadInput, Problem

if TYPE_CHECKING:
    from luthier.graph import Graph

FOLDER = "configs"
WORKING_TREE = "the working tree"
_DIGITS = 8
"""The length of a hash of git, for readers."""
_RANGE = re.compile(r"(?P<base>[^\s:]+?)(?P<dots>\.{2,3})(?P<head>[^\s:]*)")

Built = Mapping[str, Operand | BadInput]
"""Experiments by their references, each built, or the problems that kept it from being built."""


@dataclasses.dataclass(frozen=True)
class RevisionRange:
    """The experiments of a project at two revisions.

    Args:
      base: The name and hash of the first revision.
      head: The name and hash of the second, or `WORKING_TREE`.
      before: The experiments of the first.
      after: The experiments of the second.
      with_arguments: Those that have required arguments and cannot be built without them.
    """

    base: str
    head: str
    before: Built
    after: Built
    with_arguments: Sequence[str]


def is_range(word: str) -> bool:
    """Return whether an operand is a range of revisions, and neither a path nor one revision.

    Args:
      word: `main..HEAD`, `main...HEAD`, `main..`.
    """
    return _RANGE.fullmatch(word) is not None and not Path(word).exists()


def read(word: str) -> RevisionRange:
    """Build all experiments in `configs/` at both ends of a range of revisions.

    Args:
      word: `main..HEAD`; `main...HEAD` begins where both have parted, which is what a pull request
        changes. Without the second revision it ends in the working tree.

    Raises:
      BadInput: There is no git, no repository or no such revision, or no configs/ at either end.
    """
    match = _RANGE.fullmatch(word)
    assert match is not None
    packages = project.find().packages
    first, second = revisions.ends_of(match["base"], match["head"], match["dots"] == "...")
    before, needy = _of_revision(first, packages)
    if second is None:
        after, others = _of_working_tree(packages)
    else:
        after, others = _of_revision(second, packages)
    if not (before or after or needy or others):
        what = f"there are no experiments in {FOLDER}/ at either end of {word}"
        raise BadInput(Problem(what, remedy="run luthier in the folder of the project"))
    head = WORKING_TREE if second is None else _shown(second)
    with_arguments = tuple(dict.fromkeys([*needy, *others]))
    return RevisionRange(_shown(first), head, before, after, with_arguments)


def _shown(revision: revisions.Revision) -> str:
    return f"{revision.name} ({revision.commit[:_DIGITS]})"


def _listed(folder: Path) -> tuple[list[str], list[str]]:
    """Return the references of experiments that can be built, and of those that need arguments."""
    # A name in Pax is a set of arguments for an experiment that may have required ones.
    found = list(listing.find(folder / FOLDER)) if (folder / FOLDER).is_dir() else []
    references = [one.reference for one in found if not one.arguments]
    references += [alias.reference for one in found if one.arguments for alias in one.aliases]
    needy = [one.reference for one in found if one.arguments and not one.aliases]
    return references, needy


def _load(reference: str) -> Graph:
    graph, _ = experiments.load(reference, (), Problems(), command="diff", checked=False)
    return graph


def _of_revision(revision: revisions.Revision, packages: Sequence[str]) -> tuple[Built, list[str]]:
    needy: list[str] = []

    def choose(folder: Path) -> list[str]:
        references, with_arguments = _listed(folder)
        needy.extend(with_arguments)
        return references

    return revisions.read_all(revision, choose, packages), needy


def _of_working_tree(packages: Sequence[str]) -> tuple[Built, list[str]]:
    references, needy = _listed(Path.cwd())
    found: dict[str, Operand | BadInput] = {}
    for reference in references:
        try:
            load = functools.partial(_load, reference)
            found[reference] = of_graph(reference, load, detail=WORKING_TREE, packages=packages)
        except BadInput as error:
            found[reference] = error
    return found, needy
