"""What every table of measurements has: where and when it was taken, its rows, a file of JSON."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

PACKAGES = ("jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "fiddle", "grain", "numpy")


@dataclasses.dataclass(frozen=True)
class Report:
    """A table of measurements.

    Attributes:
      name: Of the table.
      settings: What was asked for.
      rows: One a side, with the same columns each.
      notes: What a reader has to know, a sentence each.
    """

    name: str
    settings: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    notes: Sequence[str] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return it for JSON, with date, versions and hardware."""
        return {"environment": environment(), **dataclasses.asdict(self)}


def environment() -> dict[str, Any]:
    """Return date, versions and hardware of this process; no device is asked."""
    return {
        "date": datetime.date.today().isoformat(),
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _processor(),
        "cores": os.cpu_count(),
        "versions": {name: _version(name) for name in PACKAGES},
    }


def table(report: Report) -> str:
    """Return the rows as a table in Markdown."""
    if not report.rows:
        return "no rows"
    columns = list(report.rows[0])
    lines = [columns, ["---"] * len(columns)]
    lines += [[_cell(row[column]) for column in columns] for row in report.rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def write(report: Report, path: Path) -> None:
    """Write it as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")


def _cell(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"
    return "-" if value is None else str(value)


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines() if os.name == "posix" else ():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()
