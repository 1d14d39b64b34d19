"""Write the goldens of the experiments and of the settings (tests/configs/goldens) anew.

python tools/goldens/update.py            # write them
python tools/goldens/update.py --check    # tell what differs, exit code 1 if anything does

NAME.txt is an experiment with all its values, defaults too; settings.txt has one line for each
setting of each component. A change of a default shows in both.
"""

from __future__ import annotations

import argparse
import difflib
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GOLDENS = ROOT / "tests" / "configs" / "goldens"
SETTINGS = "settings"
COMMAND = "python tools/goldens/update.py"
WIDTH = 1000


def references() -> list[str]:
    """Return what `luthier list` finds below configs/."""
    from luthier.cli.listing import find

    return [listed.reference for listed in find(ROOT / "configs") if not listed.arguments]


def golden_name(reference: str) -> str:
    """Return the name of an experiment's golden: `lm.families.gemma`."""
    return reference.removeprefix("configs.").replace(":", ".")


def rendered(name: str) -> str:
    """Return what a golden should hold now.

    Args:
      name: A reference of an experiment, or `settings`.
    """
    if name == SETTINGS:
        from luthier.cli.showing.settings import components, snapshot

        return snapshot(components())
    from luthier import graph as graphs

    return graphs.render(graphs.resolve(name), defaults=True, width=WIDTH) + "\n"


def difference(name: str) -> str:
    """Return how a golden differs from what it should hold, as a unified diff; empty if not.

    Args:
      name: A reference of an experiment, or `settings`.
    """
    place = GOLDENS / f"{golden_name(name)}.txt"
    before = place.read_text(encoding="utf-8") if place.exists() else ""
    lines = before.splitlines(), rendered(name).splitlines()
    return "\n".join(difflib.unified_diff(*lines, f"{place.name}", "now", lineterm="", n=2))


def left_over() -> list[Path]:
    """Return the goldens of experiments that are no more."""
    known = {golden_name(name) for name in (*references(), SETTINGS)}
    return [path for path in sorted(GOLDENS.glob("*.txt")) if path.stem not in known]


def main() -> int:
    """Write the goldens, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="only tell what differs")
    arguments = parser.parse_args()
    changes = {name: difference(name) for name in (*references(), SETTINGS)}
    stale = [name for name, change in changes.items() if change]
    gone = left_over()
    if arguments.check:
        print("\n".join(filter(None, changes.values())))
        print("".join(f"{path.name}: there is no such experiment\n" for path in gone), end="")
        if stale or gone:
            print(f"goldens changed; if that is meant: {COMMAND}")
        return 1 if stale or gone else 0
    GOLDENS.mkdir(exist_ok=True)
    for name in stale:
        text = rendered(name)
        (GOLDENS / f"{golden_name(name)}.txt").write_text(text, encoding="utf-8")
    for path in gone:
        path.unlink()
    names = ", ".join([*map(golden_name, stale), *(f"{path.stem} (removed)" for path in gone)])
    print(f"written: {names}" if names else "all goldens are up to date")
    return 0


if __name__ == "__main__":
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    sys.path.insert(0, str(ROOT))
    sys.exit(main())
