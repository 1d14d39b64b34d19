"""The user's own code, as a run ran it: a list of files for each start, and one copy of each file.

code.json        the SHA-256 of every Python file of the user's packages; code.1.json an earlier one
code/<sha>.py    the files, each once, however many starts ran it
"""

from __future__ import annotations

import ast
import hashlib
import pathlib
from collections.abc import Iterable, Mapping, Sequence

from luthier.errors import RunError
from luthier.records.files import json_text, read_json, write_atomically
from luthier.records.redaction import redact
from luthier.records.source import package_files
from luthier.storage.atomic import one_line_errors

FILE, FOLDER = "code.json", "code"
_LARGEST_FILE_BYTES = 1 << 20

Code = Mapping[str, str]
"""SHA-256 of files, by their path from the folder of their package: `my_models/layers.py`."""


def read_code(packages: Sequence[str]) -> dict[str, str]:
    """Return the hashes of the Python files of the user's packages.

    Args:
      packages: Import names.
    """
    return {
        name: hashlib.sha256(content).hexdigest() for name, content in _contents(packages).items()
    }


def keep_code(directory: pathlib.Path, packages: Sequence[str]) -> str:
    """Copy the files that the run does not have yet; return the text of its `code.json`.

    Args:
      directory: The run's directory.
      packages: Import names.

    Raises:
      RunError: The disk refuses.
    """
    files = {}
    for name, content in _contents(packages).items():
        files[name] = digest = hashlib.sha256(content).hexdigest()
        copy = copy_of(directory, digest)
        if len(content) <= _LARGEST_FILE_BYTES and not copy.exists():
            with one_line_errors("create", copy.parent):
                copy.parent.mkdir(exist_ok=True)
            write_atomically(copy, redact(content.decode(errors="replace")))
    return json_text({"version": 1, "files": files})


def copy_of(directory: pathlib.Path, digest: str) -> pathlib.Path:
    """Return where the copy of a file is, or would be."""
    return directory / FOLDER / f"{digest[:16]}.py"


def recorded_code(directory: pathlib.Path) -> dict[str, str] | None:
    """Return what the last start of a run ran; None where that was not recorded."""
    try:
        found = read_json(directory / FILE)
    except RunError:
        return None
    files = found.get("files") if isinstance(found, dict) else None
    return files if isinstance(files, dict) else None


def changed_files(before: Code, after: Code) -> list[str]:
    """Return the files that are new, gone or different, in order."""
    return sorted(name for name in {*before, *after} if before.get(name, "") != after.get(name, ""))


def reached_files(modules: Iterable[str], packages: Sequence[str]) -> set[str]:
    """Return the files that modules are made of: their own, and what those import of the packages.

    Imports are read off the text, and nothing is imported.

    Args:
      modules: Import names.
      packages: Import names of the user's packages.
    """
    contents = _contents(packages)
    waiting, reached = [*modules], set()
    while waiting:
        module = waiting.pop()
        parts = module.split(".")
        for length in range(1, len(parts) + 1):  # importing a.b.c runs a/__init__.py as well
            base = "/".join(parts[:length])
            for name in (f"{base}.py", f"{base}/__init__.py"):
                if name in contents and name not in reached:
                    reached.add(name)
                    waiting += _imports(contents[name], name)
    return reached


def _imports(content: bytes, name: str) -> list[str]:
    try:
        tree = ast.parse(content)
    except (SyntaxError, ValueError, RecursionError):
        return []
    package = name.removesuffix("/__init__.py").split("/")
    if not name.endswith("/__init__.py"):
        package = package[:-1]
    found: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            base = ".".join([*above, *(node.module or "").split(".")]).strip(".")
            found += [base, *(f"{base}.{alias.name}" for alias in node.names)]
    return found


def _contents(packages: Sequence[str]) -> dict[str, bytes]:
    contents = {}
    for package in dict.fromkeys(name.split(".")[0] for name in packages):
        for name, path in package_files(package):
            try:
                contents[name] = path.read_bytes()
            except OSError:
                continue
    return contents
