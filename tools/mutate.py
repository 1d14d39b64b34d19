"""Break exactness on purpose, one way at a time, and see that the tests notice.

    python tools/mutate.py                  # all of tests/repo/baseline/mutations.toml
    python tools/mutate.py packing-ids ...  # these
    python tools/mutate.py --package data   # those of one package
    python tools/mutate.py --check          # run nothing: does every mutation apply?

A mutation replaces one text of one module in a copy of the package; its tests run against the copy.
Prints `caught`, `MISSED` or `does not apply` for each; exit code 1 unless all are caught.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "repo" / "baseline" / "mutations.toml"
CAUGHT, MISSED, STALE = "caught", "MISSED", "does not apply"


@dataclasses.dataclass(frozen=True)
class Mutation:
    """A change of a module that must not go unnoticed.

    Args:
      id: Its name.
      what: What is wrong then, in one sentence.
      file: The module, below `framework/luthier`.
      old: A text that occurs once in it.
      new: What stands there instead.
      tests: Files or node ids that fail then.
    """

    id: str
    what: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    @property
    def package(self) -> str:
        """The package of luthier that it is in."""
        return self.file.partition("/")[0]

    def apply(self, framework: pathlib.Path) -> bool:
        """Change the module below a copy of `framework`; return whether the text occurs once."""
        path = framework / "luthier" / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.count(self.old) != 1:
            return False
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")
        return True


def mutations() -> list[Mutation]:
    """Return the recorded mutations."""
    entries = tomllib.loads(RECORD.read_text(encoding="utf-8"))["mutation"]
    return [Mutation(**{**entry, "tests": tuple(entry["tests"])}) for entry in entries]


def outcome(mutation: Mutation) -> tuple[str, str]:
    """Run the tests of a mutation; return what came of it, and the last lines of pytest."""
    with tempfile.TemporaryDirectory() as name:
        copy = pathlib.Path(name)
        # Tests name files of the repository by their place relative to their own.
        ignored = shutil.ignore_patterns("__pycache__", ".git", "*.egg-info", "runs")
        for folder in ("framework", "tests", "tools", "configs", "sweeps"):
            shutil.copytree(ROOT / folder, copy / folder, ignore=ignored)
        for file in ("pyproject.toml", "README.md"):
            shutil.copy(ROOT / file, copy)
        if not mutation.apply(copy / "framework"):
            return STALE, ""
        environment = {**os.environ, "PYTHONPATH": f"{copy / 'framework'}{os.pathsep}{copy}"}
        where = subprocess.run(
            [sys.executable, "-c", "import luthier; print(luthier.__file__)"],
            env=environment,
            cwd=copy,
            capture_output=True,
            text=True,
        ).stdout.strip()
        if not where.startswith(str(copy)):
            raise SystemExit(f"luthier was imported from {where}, not from the copy")
        command = [sys.executable, "-m", "pytest", "-x", "-n", "0", "-m", "not slow", "--tb=line"]
        command += ["-p", "no:cacheprovider", *mutation.tests]
        done = subprocess.run(command, env=environment, cwd=copy, capture_output=True, text=True)
        tail = "\n".join(done.stdout.splitlines()[-4:])
        if done.returncode not in (0, 1):  # 1: tests failed; anything else is no verdict
            raise SystemExit(f"{mutation.id}: pytest ended with {done.returncode}:\n{tail}")
        return (CAUGHT if done.returncode else MISSED), tail


def main() -> int:
    """Run the program."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("id", nargs="*", help="mutations; all of them by default")
    parser.add_argument("--package", help="those of this package of luthier only")
    parser.add_argument("--check", action="store_true", help="only see whether they apply")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    options = parser.parse_args()
    chosen = [each for each in mutations() if options.package in (None, each.package)]
    if unknown := set(options.id) - {each.id for each in chosen}:
        parser.error(f"no such mutation: {', '.join(sorted(unknown))}")
    chosen = [each for each in chosen if not options.id or each.id in options.id]

    def one(mutation: Mutation) -> tuple[Mutation, str, str, float]:
        since = time.monotonic()
        if options.check:
            text = (ROOT / "framework" / "luthier" / mutation.file).read_text(encoding="utf-8")
            verdict, tail = (CAUGHT if text.count(mutation.old) == 1 else STALE), ""
        else:
            verdict, tail = outcome(mutation)
        return mutation, verdict, tail, time.monotonic() - since

    verdicts = []
    with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
        for mutation, verdict, tail, seconds in pool.map(one, chosen):
            verdicts.append(verdict)
            shown = "applies" if options.check and verdict == CAUGHT else verdict
            print(f"{mutation.id:32s} {shown:15s} {seconds:5.1f} s  {mutation.what}", flush=True)
            if verdict == MISSED:
                print(tail)
    print(f"{verdicts.count(CAUGHT)} of {len(verdicts)} {'apply' if options.check else 'caught'}")
    return int(any(verdict != CAUGHT for verdict in verdicts))


if __name__ == "__main__":
    sys.exit(main())
