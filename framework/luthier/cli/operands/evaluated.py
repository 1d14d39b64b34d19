"""The program that builds an experiment of a git revision, and writes its record as JSON.

    python -P evaluated.py ANSWER ROOT REFERENCE [OVERRIDE ...]
    python -P evaluated.py ANSWER ROOT < REFERENCES

The second form reads a JSON list of references, and its answer has one answer for each. The program
runs in a copy of the revision, with the luthier of the revision if that has one; so it uses only
functions that every version of luthier has. The graph, or its problems, are written to ANSWER as
JSON. Nothing below ROOT, the current working tree, is imported.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from typing import Any


def answer(reference: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Return the record of a graph, its history and values; or the lines of its problems.

    Args:
      reference: The experiment, as on the command line.
      overrides: Its overrides.
    """
    # The luthier of the revision: `experiments.load`, `to_json`, `history_record` and `to_dict`
    # must keep their names, places and meaning, or older and newer revisions cannot be compared.
    from luthier import graph as graphs
    from luthier.cli import experiments
    from luthier.cli.arguments import Problems
    from luthier.errors import LuthierError

    try:
        graph, _ = experiments.load(reference, overrides, Problems(), command="diff", checked=False)
        return {
            "text": graphs.to_json(graph),
            "history": graphs.history_record(graph),
            "values": graphs.to_dict(graph),
        }
    except LuthierError as error:
        return {"problems": str(error).splitlines()}


def answers(references: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Return the answer for each of many experiments, by its reference.

    Args:
      references: The experiments.
    """
    found = {}
    for reference in references:
        try:
            found[reference] = answer(reference, ())
        except (Exception, SystemExit) as error:  # one that fails must not hide the others
            line = " ".join(str(error).split())
            found[reference] = {"problems": [f"{type(error).__name__}: {line}"]}
    return found


def main(words: Sequence[str]) -> None:
    """Write the answer for a command line into its file.

    Args:
      words: The command line, without the name of the program.
    """
    # `sys.path` may lead to the working tree in several ways (an editable installation, a .pth
    # file), and the first import of the user's package would then be of the wrong version.
    # PYTHONPATH stays: the parent has composed it for this process.
    place, root, *rest = words
    below = os.path.join(root, "")
    sys.path[:] = [
        entry
        for entry in sys.path
        if not os.path.join(os.path.abspath(entry), "").startswith(below)
        or entry in os.environ.get("PYTHONPATH", "").split(os.pathsep)
    ]
    found = answer(rest[0], rest[1:]) if rest else answers(json.load(sys.stdin))
    text = json.dumps(found, default=str)
    with open(place, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    main(sys.argv[1:])
