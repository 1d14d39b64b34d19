"""Imports of libraries that only some readers need; a missing one is one line that names it."""

from __future__ import annotations

import importlib
from typing import Any

from luthier.errors import DataError, Problem


def require(module: str, extra: str, what: str) -> Any:
    """Import a library of an optional extra.

    Args:
      module: The module to import.
      extra: The extra of luthier that installs it.
      what: The feature that needs it, as `reading Parquet`.

    Raises:
      DataError: when it is not installed.
    """
    # ImportError and not only ModuleNotFoundError: a library that is there but broken (a missing
    # shared object) is reported with its own reason, in one line as well.
    try:
        return importlib.import_module(module)
    except ImportError as error:
        name = module.partition(".")[0]
        raise DataError(
            Problem(f"{what} needs {name}: {error}", remedy=f"pip install 'luthier[{extra}]'")
        ) from None
