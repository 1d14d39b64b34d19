"""From the words of a command line to a graph: reference, overrides, checks, all errors at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from luthier.cli import project, references
from luthier.cli.arguments import Problems


def load(
    reference: str | None,
    overrides: Sequence[str],
    problems: Problems,
    *,
    command: str,
    checked: bool = True,
) -> tuple[Any, tuple[str, ...]]:
    """Return the graph that a command line describes.

    Args:
      reference: `configs.lm.quickstart`, `package.module:function(a=1)`, or a folder of a run.
      overrides: Words of the override grammar, applied in order.
      problems: What is wrong with the command line so far; raised together with what is found.
      command: The command, for the message when there is no reference.
      checked: Whether the graph must be complete: `train` needs that, `show` does not.

    Returns:
      The graph, and the user's packages that a recorded graph may name.

    Raises:
      BadInput: All that is wrong, at once.
    """
    packages: tuple[str, ...] = ()
    with problems.collected():
        packages = project.find().packages
    graph = _resolve(reference, problems, command, packages)
    problems_before = len(problems)
    if graph is not None:
        from luthier import graph as graphs

        with problems.collected():
            graph = graphs.apply(graph, overrides)
        if checked and len(problems) == problems_before:
            with problems.collected():
                graphs.validate(graph, packages)
    problems.raise_any()
    return graph, packages


def _resolve(reference: str | None, problems: Problems, command: str, packages: Sequence[str]):
    """Return the graph of a reference, or None with a problem added."""
    if not reference:
        problems.add(
            "no experiment is named",
            remedy=f"write `luthier {command} configs.lm.quickstart`; `luthier list` shows them",
        )
        return None
    if "=" in reference.split("(")[0]:
        problems.add(
            f"the first argument, {reference!r}, is an override, not an experiment",
            remedy=f"write `luthier {command} configs.lm.quickstart {reference}`",
        )
        return None
    with problems.collected():
        return references.load_reference(reference, packages)
    return None


def is_override(word: str) -> bool:
    """Return whether a word is an override, not a path: it sets, adds, or resets.

    Args:
      word: A word of the command line.
    """
    return "=" in word or word.endswith("~") or word.startswith("reset:")
