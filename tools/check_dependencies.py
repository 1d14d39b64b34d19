"""Try luthier with the oldest and the newest packages that it allows, in fresh environments.

* `lowest`: every direct dependency, of luthier and of the extras, at its lower bound; what these
  need in turn as pip chooses. A bound that pip refuses, or with which tests fail, is too low.
* `highest`: the newest of everything that the bounds and this Python allow.

Each prints the versions that it came to, runs the tests, and exits with pytest's code.

Command: python tools/check_dependencies.py lowest|highest [--python python3.11]
  [--extras examples,data,quantization] [--keep DIR] [--only-install] [TEST ...]
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXTRAS = ("examples", "data", "quantization", "cma-es")
TOOLS = ("pytest", "hypothesis", "pytest-timeout", "pytest-xdist", "setuptools")
TESTS = (
    "tests/checkpoint",
    "tests/graph",
    "tests/data",
    "tests/optim",
    "tests/records",
    "tests/recipes",
    "tests/study/space",
    "tests/trainer/test_run.py",
    "tests/end_to_end/test_kill_and_resume.py",
)
_REQUIREMENT = re.compile(r"([A-Za-z0-9._-]+)\s*(\[[^]]*\])?\s*([^;]*)(;.*)?")
_LOWER = re.compile(r">=\s*([0-9][^,\s]*)")


def requirements(content: dict, extras: Iterable[str]) -> list[str]:
    """Return the requirements of a project and of some of its extras, its own extras unfolded.

    Args:
      content: A pyproject file.
      extras: Names of extras; `test` gives the tools that tests need, and its extras.
    """
    project = content["project"]
    found, pending, seen = list(project["dependencies"]), list(extras), set()
    while pending:
        extra = pending.pop()
        if extra in seen:
            continue
        seen.add(extra)
        for line in project["optional-dependencies"][extra]:
            name, own, _, _ = split(line)
            if name == project["name"]:
                pending += [part.strip() for part in own.strip("[]").split(",")]
            else:
                found.append(line)
    return found


def split(line: str) -> tuple[str, str, str, str]:
    """Return name, extras in brackets, bounds and marker of a requirement.

    Raises:
      ValueError: It is none.
    """
    match = _REQUIREMENT.fullmatch(line.strip())
    if match is None:
        raise ValueError(f"{line!r} is no requirement")
    return match[1], match[2] or "", match[3].strip(), match[4] or ""


def pinned(line: str) -> str:
    """Return a requirement at its lower bound.

    Raises:
      ValueError: It has none.
    """
    name, own, bounds, marker = split(line)
    lower = _LOWER.search(bounds)
    if lower is None:
        raise ValueError(f"{line!r} has no lower bound")
    return f"{name}{own}=={lower[1]}{marker}"


def chosen(end: str, extras: Sequence[str]) -> list[str]:
    """Return what pip is asked for at one end.

    Args:
      end: `lowest` or `highest`.
      extras: Extras of luthier.
    """
    content = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    lines = requirements(content, extras)
    tests = content["project"]["optional-dependencies"]["test"]
    lines += [line for line in tests if split(line)[0] in TOOLS]
    return [pinned(line) for line in lines] if end == "lowest" else lines


def install(python: str, folder: Path, lines: Sequence[str]) -> Path:
    """Make an environment with these requirements and this checkout; return its interpreter.

    Raises:
      CalledProcessError: pip finds no versions that go together; it has said why.
    """
    subprocess.run([python, "-m", "venv", str(folder)], check=True)
    own = folder / "bin" / "python"
    pip = [str(own), "-m", "pip", "install", "-q", "--disable-pip-version-check"]
    subprocess.run([*pip, "--upgrade", "pip"], check=True)
    subprocess.run([*pip, *lines], check=True)
    subprocess.run([*pip, "--no-deps", "-e", str(ROOT)], check=True)
    subprocess.run([str(own), "-m", "pip", "check"], check=True)
    return own


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("end", choices=("lowest", "highest"))
    parser.add_argument("--python", default=sys.executable, help="the interpreter to test with")
    parser.add_argument("--extras", default=",".join(EXTRAS), help="extras of luthier to try, too")
    parser.add_argument("--keep", type=Path, help="make the environment here, and leave it")
    parser.add_argument("--only-install", action="store_true", help="run no tests")
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest is given")
    arguments = parser.parse_intermixed_args()  # tests follow options, too
    lines = chosen(arguments.end, [name for name in arguments.extras.split(",") if name])
    with tempfile.TemporaryDirectory() as scratch:
        folder = (arguments.keep or Path(scratch) / "environment").absolute()
        try:
            python = install(arguments.python, folder, lines)
        except subprocess.CalledProcessError as error:
            print(f"{arguments.end}: {' '.join(map(str, error.cmd[-len(lines) :]))}: see above")
            return 1
        subprocess.run([str(python), "-m", "pip", "list", "--format=freeze"], check=True)
        if arguments.only_install:
            return 0
        variables = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        command = [str(python), "-m", "pytest", "-n", "0", *arguments.tests]
        return subprocess.run(command, cwd=ROOT, env=variables, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
