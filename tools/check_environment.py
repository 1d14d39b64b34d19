"""Look over what luthier and its extras need and is installed, without a network.

* `faults`: no installed version, and no version that pyproject.toml allows, is one of
  tools/advisories.toml.
* `files`: every file of a package is as a RECORD says, by SHA-256: nothing was changed after it
  was installed, or torn by a full disk. Of packages that bring a file of the same name, such as a
  README.md, the last one has the word.
* `bounds`: every package has what it needs, in versions that it takes.
* `licences`: every package has a licence of the list.

What it cannot do: it knows the advisories that were written into the table by hand, and its date is
printed; what was published later, or is about packages of other people's environments, `pip-audit`
with a network tells. RECORD is no signature: whoever changes a package can change it, too.

Command: python tools/check_environment.py [faults files bounds licences]
"""

from __future__ import annotations

import argparse
import base64
import collections
import csv
import hashlib
import importlib.metadata
import os
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[1]
TABLE = Path(__file__).with_name("advisories.toml")
_LICENCE = re.compile(r"license|licence", re.IGNORECASE)
_LOWER = re.compile(r">=\s*([0-9][^,\s;]*)")

Distributions = Mapping[str, importlib.metadata.Distribution]


def installed() -> Distributions:
    """Return what is installed, by canonical name; the first on the path counts."""
    found: dict[str, importlib.metadata.Distribution] = {}
    for distribution in importlib.metadata.distributions():
        found.setdefault(canonicalize_name(distribution.metadata["Name"]), distribution)
    return found


def faults(
    distributions: Distributions, advisories: Iterable[Mapping[str, str]], lines: Iterable[str]
) -> list[str]:
    """Return what is known against installed versions, and against the lower bounds of `lines`.

    Args:
      distributions: What is installed.
      advisories: Each with `id`, `package`, `fixed` and `what`.
      lines: Requirements, as pyproject.toml has them.
    """
    bounds = collections.defaultdict(set)
    for line in lines:
        if lower := _LOWER.search(line):
            bounds[canonicalize_name(Requirement(line).name)].add(lower[1])
    problems = []
    for advisory in advisories:
        name, fixed = canonicalize_name(advisory["package"]), Version(advisory["fixed"])
        why = f"{advisory['id']}, {advisory['what']}; fixed in {fixed}"
        if name in distributions and Version(distributions[name].version) < fixed:
            problems.append(f"{name} {distributions[name].version} is installed: {why}")
        for lower in sorted(bounds[name]):
            if Version(lower) < fixed:
                problems.append(f"{name}>={lower} in pyproject.toml allows: {why}")
    return problems


def recorded(distributions: Iterable[importlib.metadata.Distribution]) -> dict[str, set[str]]:
    """Return the digests that the RECORDs of packages have for each path."""
    found = collections.defaultdict(set)
    for distribution in distributions:
        for file, digest in _recorded_files(distribution):
            found[_path(distribution, file)].add(digest)
    return found


def _recorded_files(
    distribution: importlib.metadata.Distribution,
) -> Iterator[tuple[str, str]]:
    """Yield the files that the RECORD of a package has a digest of, with it: `sha256=...`."""
    # Not `distribution.files`: since Python 3.12 that leaves out files that are missing.
    for name, digest, _ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
        if digest:
            yield name, digest


def changed(
    distribution: importlib.metadata.Distribution, known: Mapping[str, set[str]]
) -> list[str]:
    """Return the files of a package that are gone, or as no RECORD says.

    Args:
      distribution: The package.
      known: What `recorded` returns for all that is installed.
    """
    problems, name = [], distribution.metadata["Name"]
    for file, expected in _recorded_files(distribution):
        path, mode = _path(distribution, file), expected.partition("=")[0]
        if not os.path.isfile(path):
            problems.append(f"{name}: {file} is missing")
            continue
        with open(path, "rb") as content:
            digest = hashlib.file_digest(content, mode).digest()
        text = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        if f"{mode}={text}" not in known[path]:
            problems.append(f"{name}: {file} differs from what was installed")
    return problems


def _path(distribution: importlib.metadata.Distribution, file: str) -> str:
    return os.path.normpath(str(distribution.locate_file(file)))


def unmet(distributions: Distributions) -> list[str]:
    """Return every need of these packages that no package among them meets."""
    problems = []
    for name, distribution in sorted(distributions.items()):
        for need in _needs(distribution):
            other = distributions.get(canonicalize_name(need.name))
            if other is None:
                problems.append(f"{name} needs {need.name}, which is not installed")
            elif not need.specifier.contains(other.version, prereleases=True):
                problems.append(f"{name} needs {need.name}{need.specifier}, not {other.version}")
    return problems


def below(distributions: Distributions, root: str) -> Distributions:
    """Return a package and what it needs, with its extras as far as they are installed.

    Args:
      distributions: What is installed.
      root: Name of the package.
    """
    found: dict[str, importlib.metadata.Distribution] = {}
    pending = [root, *(Requirement(line).name for line in distributions[root].requires or ())]
    while pending:
        name = canonicalize_name(pending.pop())
        if name in found or name not in distributions:
            continue
        found[name] = distributions[name]
        pending += [need.name for need in _needs(distributions[name])]
    return found


def licence(distribution: importlib.metadata.Distribution) -> str:
    """Return what a package says of its licence, in small letters: all that it says it by."""
    data = distribution.metadata
    words = [data.get("License-Expression"), (data.get("License") or "")[:200]]
    words += [line for line in data.get_all("Classifier") or () if line.startswith("License")]
    text = " ".join(word for word in words if word)
    if not text.strip() or text.strip().lower() == "unknown":
        for file in distribution.files or ():
            path = Path(str(distribution.locate_file(file)))
            if _LICENCE.search(file.name) and path.is_file():
                text += path.read_text(encoding="utf-8", errors="replace")[:400]
    return " ".join(text.lower().split())


def unlicensed(
    distributions: Distributions, allowed: Iterable[str], exceptions: Iterable[str]
) -> list[str]:
    """Return the packages whose licence is none of those allowed, and that are no exceptions."""
    words = [re.compile(rf"\b{re.escape(word)}") for word in allowed]
    return [
        f"{name}: {text[:120] or 'says nothing of its licence'}"
        for name, distribution in sorted(distributions.items())
        for text in (licence(distribution),)
        if name not in exceptions and not any(word.search(text) for word in words)
    ]


def _needs(distribution: importlib.metadata.Distribution) -> list[Requirement]:
    """Return what a package needs here, without extras."""
    needs = map(Requirement, distribution.requires or ())
    return [need for need in needs if need.marker is None or need.marker.evaluate({"extra": ""})]


def _lines(content: Mapping[str, Any]) -> list[str]:
    project = content["project"]
    extras = project["optional-dependencies"].values()
    own = [*project["dependencies"], *(line for lines in extras for line in lines)]
    return [*own, *content["build-system"]["requires"]]


def main() -> int:
    checks = ("faults", "files", "bounds", "licences")
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=f"of {', '.join(checks)}")
    chosen = parser.parse_args().checks or list(checks)
    if unknown := set(chosen) - set(checks):
        parser.error(f"no check is called {', '.join(sorted(unknown))}")
    table = tomllib.loads(TABLE.read_text(encoding="utf-8"))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    distributions, failed = below(installed(), "luthier"), False
    for check in chosen:
        if check == "faults":
            problems = faults(distributions, table["advisory"], _lines(project))
            what = f"{len(table['advisory'])} advisories, as of {table['reviewed']}"
        elif check == "files":
            known = recorded(importlib.metadata.distributions())
            problems = [line for each in distributions.values() for line in changed(each, known)]
            what = f"files of {len(distributions)} packages"
        elif check == "bounds":
            problems, what = unmet(distributions), f"needs of {len(distributions)} packages"
        else:
            listed = table["licences"]
            problems = unlicensed(distributions, listed["allowed"], listed["exceptions"])
            what = (
                f"licences of {len(distributions)} packages, {len(listed['exceptions'])} excepted"
            )
        print(f"{check}: {what}: {f'{len(problems)} findings' if problems else 'nothing found'}")
        print("".join(f"  {line}\n" for line in problems), end="")
        failed |= bool(problems)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
