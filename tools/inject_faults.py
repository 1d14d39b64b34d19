"""Stage every fault that this machine lets stage, and print what came of it.

python tools/inject_faults.py                       # all of them: half an hour on an idle machine
python tools/inject_faults.py --only disk sigterm   # those whose name or fault holds a word
python tools/inject_faults.py --processes 1         # those of so many processes
python tools/inject_faults.py --markdown            # the table as Markdown
python tools/inject_faults.py --brief               # a row for each fault: most seconds and steps
python tools/inject_faults.py --keep rows.jsonl     # keep rows; what passed is not played again
python tools/inject_faults.py --list                # only say which there are

Processes are really killed, files really torn, disks really full. Some faults need root.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
HEAD = ("fault", "processes", "detected how", "in seconds", "steps lost", "after the restart")


FAILED = "FAILED"


def play(
    chosen: Sequence[tuple[Any, int]], folder: Path, keep: Path | None = None
) -> list[tuple[str, ...]]:
    """Play injections one after another; return a row for each.

    Args:
      chosen: Drills, each with a number of processes.
      folder: Where the runs are.
      keep: A file that each row is added to; injections that passed by what it says are not played.
    """
    from machine import Machine
    from staging import Stage, Truths

    rows: list[tuple[str, ...]] = []
    kept = _kept(keep)
    with Machine(folder) as machine:
        truths = Truths(machine, folder)
        for number, (injection, count) in enumerate(chosen):
            head = (injection.fault, str(count))
            if head in kept:
                rows.append(kept[head])
                continue
            start = time.monotonic()
            stage = Stage(machine, folder / str(number), count)
            rows.append((*head, *_outcome(injection, stage, truths)))
            if keep is not None:
                with keep.open("a") as file:
                    file.write(json.dumps(rows[-1]) + "\n")
            took = time.monotonic() - start
            print(f"{' | '.join(rows[-1])} ({took:.0f} s)", file=sys.stderr, flush=True)
    return rows


def _outcome(injection: Any, stage: Any, truths: Any) -> tuple[str, ...]:
    from injecting import Unstageable

    try:
        outcome = injection.play(stage, truths)
    except Unstageable as reason:
        return f"cannot be staged here: {reason}", "", "", ""
    except Exception as error:
        first = str(error).partition("\n")[0]
        return f"{FAILED}: {type(error).__name__}: {first}", "", "", ""
    return outcome.detected, f"{outcome.seconds:.1f}", str(outcome.lost), outcome.restart


def _kept(path: Path | None) -> dict[tuple[str, str], tuple[str, ...]]:
    """Return the rows of a file that passed, by fault and processes."""
    if path is None or not path.exists():
        return {}
    rows = [tuple(json.loads(line)) for line in path.read_text().splitlines()]
    return {row[:2]: row for row in rows if not row[2].startswith(FAILED)}


def brief(rows: Sequence[Sequence[str]]) -> list[tuple[str, ...]]:
    """Return a row for each fault that is found and got over in one way.

    Args:
      rows: A row for each fault and number of processes; the most seconds and steps are kept.
    """
    found: dict[tuple[str, ...], list[Sequence[str]]] = {}
    for fault, count, detected, seconds, lost, restart in rows:
        found.setdefault((fault, detected, restart), []).append((count, seconds, lost))
    return [
        (
            fault,
            ", ".join(count for count, _, _ in cases),
            detected,
            max((seconds for _, seconds, _ in cases), key=lambda text: float(text or 0)),
            max((lost for _, _, lost in cases), key=lambda text: int(text or 0)),
            restart,
        )
        for (fault, detected, restart), cases in found.items()
    ]


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
    """Play the injections that are asked for; return the exit code.

    Args:
      words: The command line; None is that of the process.
    """
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", nargs="+", metavar="WORD", help="in the name or the fault")
    parser.add_argument("--processes", nargs="+", type=int, metavar="N", help="of the runs")
    parser.add_argument("--markdown", action="store_true", help="print the table as Markdown")
    parser.add_argument("--brief", action="store_true", help="a row for each fault")
    parser.add_argument("--keep", type=Path, metavar="FILE", help="of rows; what passed is skipped")
    parser.add_argument("--list", action="store_true", help="only say which injections there are")
    arguments = parser.parse_args(words)
    sys.path.insert(0, str(ROOT / "tests" / "fault_injection"))
    from injecting import injections

    chosen = [
        (injection, count)
        for injection in injections()
        for count in injection.processes
        if not arguments.processes or count in arguments.processes
        if not arguments.only
        or any(w in f"{injection.name} {injection.fault}" for w in arguments.only)
    ]
    if arguments.list:
        print(
            "\n".join(f"{injection.name}-{count}: {injection.fault}" for injection, count in chosen)
        )
        return 0
    with tempfile.TemporaryDirectory(prefix="luthier-injections-") as folder:
        rows = play(chosen, Path(folder), arguments.keep)
    print(table(brief(rows) if arguments.brief else rows, arguments.markdown))
    return 1 if any(row[2].startswith(FAILED) for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())
