"""Measure what planning by shapes takes, process start included, for every shipped experiment.

python tools/bench/shapes.py                          # all of them: some minutes
python tools/bench/shapes.py configs.lm.quickstart    # one

Each is planned for as many devices as its mesh asks for. Prints processor seconds, which other work
on the machine hardly changes, and seconds on the clock. Exit code 1 where a plan takes more
processor seconds than its limit, or ends otherwise than it should.
"""

from __future__ import annotations

import argparse
import pathlib
import resource
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2]))

from tools import shipped

LIMIT = 3.0


def measured(reference: str, num_devices: int) -> tuple[float, float, int, str]:
    """Return processor seconds, seconds on the clock, the exit code and the last line."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    done = shipped.by_shapes(reference, f"h100:{num_devices}")
    after, seconds = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter() - start
    used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    lines = (done.stdout + done.stderr).strip().splitlines() or [""]
    return used, seconds, done.returncode, lines[-1]


def main() -> int:
    """Measure; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("references", nargs="*", metavar="REF")
    named = parser.parse_args().references
    failed, slowest = 0, 0.0
    for reference in named or shipped.references():
        used, seconds, code, line = measured(reference, shipped.devices_of(reference))
        slowest = max(slowest, used)
        failed += used > LIMIT or code not in shipped.FITS_OR_NOT
        fault = "" if code in shipped.FITS_OR_NOT else f": exit code {code}: {line}"
        print(f"{used:5.2f} s  {seconds:5.1f} s on the clock  {reference}{fault}", flush=True)
    print(f"the slowest took {slowest:.2f} processor seconds; {failed} beyond {LIMIT:g}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
