"""`luthier diff A B C ...`: many operands against the first, as a matrix."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.cli.operands.operand import Operand
from luthier.cli.showing import differences


def show(operands: Sequence[Operand], arguments: argparse.Namespace) -> bool:
    """Show what varies, in the form that is asked for; return whether anything does.

    Args:
      operands: Three or more, the one that the others are compared with first.
      arguments: What `luthier.cli.commands.diff` describes.
    """
    found = matrix_of(operands, arguments.only, arguments.ignore)
    if arguments.html or arguments.open:
        from luthier.view.diff import matrix_page

        differences.write_page(matrix_page.render(found), arguments.html, arguments.open)
    if arguments.json or not (arguments.html or arguments.open):
        print_matrix(found, arguments.json)
    return bool(found["rows"])


def print_matrix(found: Mapping[str, Any], as_json: bool) -> None:
    """Print a matrix, as a table or as JSON.

    Args:
      found: What `matrix_of` returned.
      as_json: Whether to print JSON.
    """
    from luthier.view.diff import matrix

    if as_json:
        print(json.dumps(found, indent=1))
    else:
        differences.print_drawn(matrix.table(found, differences.width_of_output()))


def matrix_of(
    operands: Sequence[Operand], only: Any = None, ignore: Sequence[str] = ()
) -> dict[str, Any]:
    """Return the matrix of many operands as JSON values.

    Args:
      operands: The one that the others are compared with first.
      only: As for `luthier.view.diff.filters.chosen`.
      ignore: As for `luthier.view.diff.filters.chosen`.
    """
    from luthier.view.diff import matrix

    first, *others = operands
    comparisons = [differences.comparison_of(first, other, only, ignore) for other in others]
    columns = [
        {
            "title": operand.title,
            "state": operand.state,
            "link": os.fspath(operand.path.resolve()) if operand.path else "",
        }
        for operand in operands
    ]
    title = f"{len(others)} against {first.title}"
    return matrix.matrix(title, columns, comparisons, _objectives(operands))


def _objectives(operands: Sequence[Operand]) -> list[dict[str, Any]]:
    """Return what the runs and trials came to: the objectives that all have which have any."""
    by_operand = [{one.name: one for one in operand.objectives} for operand in operands]
    having = [found for found in by_operand if found]
    names = [name for name in (having[0] if having else ()) if all(name in h for h in having)]
    found = []
    for name in names:
        ones = [objectives.get(name) for objectives in by_operand]
        direction = next((one.direction for one in ones if one and one.direction), "")
        values = [one.value if one else None for one in ones]
        found.append({"name": name, "values": values, "direction": direction})
    return found
