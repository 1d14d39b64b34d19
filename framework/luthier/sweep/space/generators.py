"""Named generators of settings: functions `sweep_NAME` beside an experiment, and their product.

def sweep_lr():
    for peak in (1e-3, 3e-3):
        yield {"optimizer.learning_rate.peak": peak, "optimizer.weight_decay": 0.1}
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping, Sequence
from typing import Any

from luthier.errors import BadInput, Problem
from luthier.graph import nearest
from luthier.sweep.space.dimensions import Zipped

_PREFIX = "sweep_"


def generate(module_name: str, names: Sequence[str]) -> dict[str, Zipped]:
    """Return the settings that generators of a module yield, as one table for each of them.

    Args:
      module_name: The module of the experiment.
      names: The generators, without `sweep_`.

    Raises:
      BadInput: There is none of a name, or it yields no settings.
    """
    module = importlib.import_module(module_name)
    known = {
        name.removeprefix(_PREFIX): found
        for name, found in vars(module).items()
        if name.startswith(_PREFIX) and inspect.isfunction(found)
    }
    problems: list[Problem] = []
    tables: dict[str, Zipped] = {}
    for name in names:
        if name not in known:
            near = nearest(name, known)
            listed = ", ".join(known)
            remedy = f"there are {listed}" if known else f"define def {_PREFIX}{name}() there"
            what = f"{module_name} has no generator {name!r}"
            problems.append(Problem(what, remedy="" if near else remedy, nearest=near))
            continue
        rows = list(known[name]())
        if bad := [row for row in rows if not _is_row(row)]:
            what = f"{module_name}:{_PREFIX}{name} yields {bad[0]!r}, no dict from paths to values"
            problems.append(Problem(what))
        tables[name] = Zipped(tuple(rows))
    if problems:
        raise BadInput(problems)
    return tables


def _is_row(row: Any) -> bool:
    return isinstance(row, Mapping) and bool(row) and all(isinstance(path, str) for path in row)
