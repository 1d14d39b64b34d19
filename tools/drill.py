"""Stage every fault that this machine lets stage, and print what came of it.

python tools/drill.py                       # all of them: half an hour on an idle machine
python tools/drill.py --only disk sigterm   # those whose name or fault holds a word
python tools/drill.py --processes 1         # those of so many processes
python tools/drill.py --markdown            # the table as Markdown
python tools/drill.py --list                # only say which there are

Processes are really killed, files really torn, disks really full. Some faults need root.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEAD = ("fault", "processes", "detected how", "in seconds", "steps lost", "after the restart")


def play(chosen: Sequence[tuple[Any, int]], folder: Path) -> tuple[list[tuple[str, ...]], int]:
    """Play drills one after another.

    Args:
      chosen: Drills, each with a number of processes.
      folder: Where the runs are.

    Returns:
      A row for each, and how many failed.
    """
    from drilling import Unstageable
    from machine import Machine
    from staging import Stage, Truths

    rows: list[tuple[str, ...]] = []
    failures = 0
    with Machine(folder) as machine:
        truths = Truths(machine, folder)
        for number, (drill, count) in enumerate(chosen):
            head = (drill.fault, str(count))
            start = time.monotonic()
            try:
                outcome = drill.play(Stage(machine, folder / str(number), count), truths)
            except Unstageable as reason:
                rows.append((*head, f"cannot be staged here: {reason}", "", "", ""))
            except Exception as error:
                failures += 1
                first = str(error).partition("\n")[0]
                rows.append((*head, f"FAILED: {type(error).__name__}: {first}", "", "", ""))
            else:
                seconds = f"{outcome.seconds:.1f}"
                rows.append((*head, outcome.detected, seconds, str(outcome.lost), outcome.restart))
            took = time.monotonic() - start
            print(f"{' | '.join(rows[-1])} ({took:.0f} s)", file=sys.stderr, flush=True)
    return rows, failures


def table(rows: Sequence[Sequence[str]], markdown: bool) -> str:
    """Return rows below the head.

    Args:
      rows: Cells of text.
      markdown: Whether as Markdown.
    """
    if markdown:
        lines = [HEAD, ["---"] * len(HEAD), *rows]
        return "\n".join(f"| {' | '.join(line)} |" for line in lines)
    widths = [max(map(len, column)) for column in zip(HEAD, *rows, strict=True)]
    return "\n".join(
        "  ".join(f"{cell:<{width}}" for cell, width in zip(line, widths, strict=True)).rstrip()
        for line in (HEAD, *rows)
    )


def main(words: Sequence[str] | None = None) -> int:
    """Play the drills that are asked for; return the exit code.

    Args:
      words: The command line; None is that of the process.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="in the name or the fault")
    parser.add_argument("--processes", nargs="+", type=int, metavar="N", help="of the runs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--list", action="store_true", help="only say which drills there are")
    arguments = parser.parse_args(words)
    sys.path.insert(0, str(ROOT / "tests" / "drills"))
    from drilling import drills

    chosen = [
        (drill, count)
        for drill in drills()
        for count in drill.processes
        if not arguments.processes or count in arguments.processes
        if not arguments.only or any(w in f"{drill.name} {drill.fault}" for w in arguments.only)
    ]
    if arguments.list:
        print("\n".join(f"{drill.name}-{count}: {drill.fault}" for drill, count in chosen))
        return 0
    with tempfile.TemporaryDirectory(prefix="luthier-drills-") as folder:
        rows, failures = play(chosen, Path(folder))
    print(table(rows, arguments.markdown))
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
