"""Write tests/repo/public_names.txt anew: every public name of every room, with its arguments.

python tools/goldens/public_names.py            # write it
python tools/goldens/public_names.py --check    # tell what differs, exit code 1 if anything does

It looks at framework/luthier/graph/allowed_names.txt too, where each public name needs a role that
is no entry point; the list is written by hand.
"""

from __future__ import annotations

import argparse
import difflib
import importlib
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path

from luthier.graph import entry_points
from luthier.graph import public_names as names_of_records

ROOT = Path(__file__).resolve().parents[2]
SNAPSHOT = ROOT / "tests" / "repo" / "public_names.txt"


def _rooms() -> list[str]:
    package = ROOT / "framework" / "luthier"
    facades = [path.parent.name for path in package.glob("*/__init__.py")]
    facades += [f"contrib.{path.parent.name}" for path in package.glob("contrib/*/__init__.py")]
    facades += [f"contrib.{path.stem}" for path in package.glob("contrib/[!_]*.py")]
    return ["luthier", *sorted(f"luthier.{facade}" for facade in facades if facade != "contrib")]


def _arguments(value: object) -> str:
    """The argument names of a function or class, without defaults and annotations."""
    if getattr(value, "_is_protocol", False):
        return ""
    if inspect.isclass(value):
        target = value.__init__
        skip = 1
        if not str(getattr(target, "__module__", "")).startswith("luthier."):
            return ""  # object's, Protocol's, ...
    else:
        target, skip = value, 0
    if not inspect.isfunction(target):
        return ""
    parameters = list(inspect.signature(target).parameters.values())[skip:]
    marks = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
    names = [marks.get(p.kind, "") + p.name for p in parameters if not p.name.startswith("_")]
    return f"({', '.join(names)})"


def public_names() -> Iterator[str]:
    """Yield one line for each name in each room's `__all__`."""
    for room in _rooms():
        facade = importlib.import_module(room)
        for name in sorted(facade.__all__):
            yield f"{room}.{name}{_arguments(getattr(facade, name))}"


def without_role() -> Iterator[str]:
    """Yield what is wrong with the list of what records may name: no role, or no such name."""
    listed = names_of_records.listed()
    rooms = [room for room in _rooms() if room != "luthier" and room not in listed]
    public = {f"{room}.{name}" for room in rooms for name in importlib.import_module(room).__all__}
    public -= set(entry_points.targets())  # those of contrib have the role of their group
    where = names_of_records.LIST.name
    for name in sorted(public - listed.keys()):
        roles = ", ".join(sorted(names_of_records.ROLES))
        yield f"{name} has no role: look at what making one does, and add it to {where} ({roles})"
    for name in sorted(listed):
        room = name.rpartition(".")[0]
        if room in rooms and name not in public:
            yield f"{name} is no public name any more: remove it from {where}"
    for name, role in listed.items():
        if role not in names_of_records.ROLES:
            yield f"{name} has the role {role!r}, which there is not"


def main() -> int:
    """Write the snapshot, or compare it; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only tell what differs")
    arguments = parser.parse_args()
    problems = list(without_role())
    print("".join(f"{problem}\n" for problem in problems), end="")
    lines = list(public_names())
    if not arguments.check:
        SNAPSHOT.write_text("\n".join(lines) + "\n", encoding="utf-8")
        print(f"{SNAPSHOT.relative_to(ROOT)}: {len(lines)} names")
        return 1 if problems else 0
    before = SNAPSHOT.read_text(encoding="utf-8").splitlines() if SNAPSHOT.exists() else []
    changes = list(difflib.unified_diff(before, lines, "recorded", "now", lineterm="", n=0))
    if changes:
        print("\n".join(changes))
        print("public names changed; if that is meant: python tools/goldens/public_names.py")
    return 1 if changes or problems else 0


if __name__ == "__main__":
    sys.exit(main())
