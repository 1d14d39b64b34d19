"""What the repository's own tests read: its files, and the package's modules as syntax trees."""

from __future__ import annotations

import ast
import dataclasses
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "framework" / "luthier"
TEMPLATE = PACKAGE / "cli" / "template"
NOT_OURS = {".git", ".venv", "venv", "build", "dist", "runs", "wandb", "__pycache__"}
ENVIRONMENT = "pyvenv.cfg"
"""The file that makes a folder a virtual environment."""


@dataclasses.dataclass(frozen=True)
class Module:
    """One module of the package: where it stands, its text and its syntax tree."""

    path: Path
    text: str
    tree: ast.Module

    @property
    def place(self) -> str:
        """The path below framework/luthier, as `layers/attention.py`."""
        return self.path.relative_to(PACKAGE).as_posix()

    @property
    def room(self) -> str:
        """The first folder below framework/luthier, or empty for a module that is a room itself."""
        parts = self.path.relative_to(PACKAGE).parts
        return parts[0] if len(parts) > 1 else ""

    @property
    def is_facade(self) -> bool:
        """Whether this is a folder's `__init__.py`."""
        return self.path.name == "__init__.py"

    @property
    def num_lines(self) -> int:
        """Lines of text, blank ones and comments too."""
        return self.text.count("\n")

    @property
    def import_name(self) -> str:
        """The name that imports it, as `luthier.layers.attention`."""
        parts = self.path.relative_to(PACKAGE.parent).with_suffix("").parts
        return ".".join(parts[:-1] if self.is_facade else parts)


def _walk(folder: Path) -> Iterator[Path]:
    for directory, names, files in os.walk(folder):
        names[:] = [
            n
            for n in names
            if n not in NOT_OURS
            and not n.endswith(("_cache", ".egg-info"))
            and not Path(directory, n, ENVIRONMENT).exists()
        ]
        yield from (Path(directory) / file for file in files)


def _files_below(root: Path) -> list[Path]:
    """Return every file below a root that is, or would be, committed.

    Virtual environments inside of it are not: they have any name, and git ignores some names only.
    """
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listing = subprocess.run(command, cwd=root, capture_output=True, check=True).stdout.decode()
    except (OSError, subprocess.CalledProcessError):
        return sorted(_walk(root))
    found = {root / name for name in listing.split("\0") if name}
    environments = {path.parent for path in found if path.name == ENVIRONMENT}
    return sorted(
        path for path in found if path.is_file() and environments.isdisjoint(path.parents)
    )


@pytest.fixture(scope="session")
def root() -> Path:
    """The repository."""
    return ROOT


@pytest.fixture(scope="session")
def repository_files() -> list[Path]:
    """Every file that is, or would be, committed."""
    return _files_below(ROOT)


@pytest.fixture(scope="session")
def files_below() -> Callable[[Path], list[Path]]:
    """What lists the files of a repository."""
    return _files_below


@pytest.fixture(scope="session")
def modules() -> list[Module]:
    """Every module of the package; the files that `luthier init` copies are not among them."""
    found = []
    for path in sorted(_walk(PACKAGE)):
        if path.suffix == ".py" and TEMPLATE not in path.parents:
            text = path.read_text(encoding="utf-8")
            found.append(Module(path, text, ast.parse(text, filename=str(path))))
    return found
