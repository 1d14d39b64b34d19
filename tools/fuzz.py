"""Gives broken inputs to every parser, and tells which of them crash, hang or import.

    python tools/fuzz.py                                10,000 inputs for each parser
    python tools/fuzz.py --inputs 500 --target gin      fewer, for one of them
    python tools/fuzz.py --seed 7 --keep                others; crashes are kept in the corpus

The inputs are made of those in tests/fuzz/corpus. A parser may accept an input or refuse it with an
error of bad input; everything else is a finding, printed with the input, and ends in exit code 1.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import logging
import random
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "tests" / "fuzz"), str(ROOT / "tests" / "graph" / "importable")]

import mutation  # noqa: E402
import targets  # noqa: E402
import watching  # noqa: E402


def fuzz(target: targets.Target, inputs: int, seed: int, keep: bool) -> tuple[dict, dict]:
    """Give inputs to one parser.

    Args:
      target: The parser.
      inputs: How many, beside those of the corpus.
      seed: Makes the inputs.
      keep: Whether inputs of findings are written into the corpus.

    Returns:
      How often it accepted, refused and did what it must not; and one input for each finding.
    """
    draw = random.Random(f"{target.name} {seed}")
    outcomes: dict[str, int] = collections.Counter()
    findings: dict[str, bytes] = {}
    corpus = [data for _, data in target.corpus()]
    with tempfile.TemporaryDirectory() as folder:
        for number in range(len(corpus) + inputs):
            is_kept = number < len(corpus)
            data = corpus[number] if is_kept else mutation.mutate(draw, corpus)
            try:
                outcome = watching.attempt(target.parse, data, Path(folder), target.packages)
            except watching.Violation as violation:
                outcome = "findings"
                findings.setdefault(str(violation).splitlines()[0][:120], data)
            outcomes[outcome] += 1
    if keep:
        for data in findings.values():
            name = hashlib.sha256(data).hexdigest()[:12]
            (targets.CORPUS / target.name / f"found-{name}.bin").write_bytes(data)
    return outcomes, findings


def main() -> int:
    logging.disable(logging.CRITICAL)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--inputs", type=int, default=10_000)
    parser.add_argument("--target", action="append", choices=[t.name for t in targets.TARGETS])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", action="store_true", help="add findings to the corpus")
    arguments = parser.parse_args()
    wanted = [t for t in targets.TARGETS if not arguments.target or t.name in arguments.target]
    print(f"{'parser':<18}{'accepted':>10}{'refused':>10}{'findings':>10}{'CPU s':>9}")
    found = 0
    for target in wanted:
        start = time.process_time()
        outcomes, findings = fuzz(target, arguments.inputs, arguments.seed, arguments.keep)
        counts = "".join(f"{outcomes[k]:>10}" for k in ("accepted", "refused", "findings"))
        print(f"{target.name:<18}{counts}{time.process_time() - start:>9.1f}", flush=True)
        for what, data in findings.items():
            print(f"    {what}\n      {data[:300]!r}")
        found += outcomes["findings"]
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
