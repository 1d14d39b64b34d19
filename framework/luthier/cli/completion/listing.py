"""What can be listed without an index: experiments, runs, and pages of the manual."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

from luthier.cli.completion import cache
from luthier.cli.completion.index import Candidate

RUN = "run:"
RUNS = "runs"


def experiments() -> Iterator[Candidate]:
    """Yield the experiments below configs/; a file is read again when it has changed."""
    folder = os.path.join(os.getcwd(), "configs")
    name = f"experiments-{cache.digest(folder.encode())}"
    now = cache.fingerprints(_python_files(folder))
    before = _read(name)
    listed = {
        file: before[file][1] if before.get(file, [""])[0] == digest else _listed(folder, file)
        for file, digest in now.items()
    }
    found = {file: [digest, listed[file]] for file, digest in now.items()}
    if found != before:
        cache.write(name, json.dumps(found))
    for file in now:
        yield from (Candidate(reference, text) for reference, text in listed[file])


def runs() -> Iterator[Candidate]:
    """Yield the runs below runs/, by name."""
    for name in _folders(RUNS):
        for run in _folders(os.path.join(RUNS, name)):
            if os.path.isfile(os.path.join(RUNS, name, run, "config.json")):
                yield Candidate(run, name)


def pages() -> Iterator[Candidate]:
    """Yield the pages of the manual."""
    here = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    for file in sorted(os.listdir(os.path.join(here, "pages"))):
        if file.endswith(".md"):
            yield Candidate(file.removesuffix(".md"))


def _python_files(folder: str) -> list[str]:
    found = []
    for where, _, names in os.walk(folder):
        found += [os.path.join(where, name) for name in names if name.endswith(".py")]
    return sorted(found)


def _folders(folder: str) -> list[str]:
    try:
        return sorted(entry.name for entry in os.scandir(folder) if entry.is_dir())
    except OSError:
        return []


def _read(name: str) -> dict:
    try:
        found = json.loads(cache.read(name))
        return {file: [str(digest), list(listed)] for file, (digest, listed) in found.items()}
    except (ValueError, TypeError, AttributeError):
        return {}  # damaged, or not there


def _listed(folder: str, file: str) -> list[list[str]]:
    from pathlib import Path

    from luthier.cli.commands.project import list as listing

    found = listing.find_in(Path(folder), Path(file))
    return [[listed.reference, listed.description] for listed in found]
