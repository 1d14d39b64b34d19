"""Operands from git revisions: an experiment as a revision has it, or a record that it holds.

The experiment is made by a process of its own over a temporary copy of the revision, with the
luthier of the revision where it has one. The working tree is neither read nor touched.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.util
import io
import json
import os
import re
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import luthier
from luthier.cli.operands import evaluated
from luthier.cli.operands.operand import Operand, Record, of_record
from luthier.errors import BadInput, Problem

_NAMES = re.compile(r"[A-Za-z_][\w.]*")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\(.*\))?", re.DOTALL)
_OWN = Path("framework", "luthier")
"""The folder of luthier in a revision that has one of its own."""
_TREE = "tree"


@dataclasses.dataclass(frozen=True)
class Revision:
    """An experiment or a record, as a revision has it.

    Args:
      name: What the user calls the revision.
      commit: Its hash.
      root: The top folder of the working tree.
      below: The working directory below it.
      reference: The experiment, or the path of the record from the working directory.
    """

    name: str
    commit: str
    root: Path
    below: Path
    reference: str


def find(word: str) -> Revision | None:
    """Return the revision that a word names; None where it names something else.

    Args:
      word: `HEAD~1:configs.lm.quickstart`, `v1.0:runs/a/b/config.json`. What may be a module and
        its function, `package.module:function`, is a revision only where there is no such module.

    Raises:
      BadInput: There is no git, no repository, or no such revision.
    """
    name, colon, reference = word.partition(":")
    if not colon or not name or not reference or name in ("run", "study"):
        return None
    may_be_module = bool(_NAMES.fullmatch(name) and _FUNCTION.fullmatch(reference))
    if may_be_module and _is_module(name):
        return None
    try:
        return _known(name, reference)
    except BadInput:
        if may_be_module:  # and then the module is what is missing
            return None
        raise


def read(
    revision: Revision, overrides: Sequence[str], title: str, packages: Sequence[str] = ()
) -> Operand:
    """Return the operand of a revision.

    Args:
      revision: What is meant.
      overrides: Words of the override grammar, read by the luthier of the revision.
      title: What the user called all of it.
      packages: The user's packages that the graph may name.

    Raises:
      BadInput: The revision has no such experiment, or it cannot be made.
    """
    git = _Git(f"{revision.name}:{revision.reference}")
    when = git.told("log", "-1", "--format=%h of %cs: %s", revision.commit)
    detail = f"revision {when}"
    if revision.reference.endswith(".json"):
        at = f"{revision.commit}:./{revision.reference}"
        shown = git.call("show", at)
        if shown.returncode:
            what = f"{revision.name} has no file {revision.reference}"
            raise BadInput(Problem(what))
        text = shown.stdout.decode("utf-8", errors="replace")
        return of_record(title, Record(text), detail=detail, packages=packages)
    with _copy(git, revision) as folder:
        found = _evaluate(folder, revision, overrides)
    record = Record(found["text"], json.dumps(found["history"]), json.dumps(found["values"]))
    return of_record(title, record, detail=detail, packages=packages)


def _known(name: str, reference: str) -> Revision:
    git = _Git(f"{name}:{reference}")
    root = Path(git.told("rev-parse", "--show-toplevel"))
    commit = git.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit.returncode:
        what = f"there is no revision {name!r} in {root}"
        raise BadInput(Problem(what, remedy="`git log --oneline` lists them"))
    below = Path(git.told("rev-parse", "--show-prefix"))
    return Revision(name, commit.stdout.decode().strip(), root, below, reference)


def _is_module(name: str) -> bool:
    """Return whether there is a module of this name, or at least its package; imports neither."""
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@dataclasses.dataclass(frozen=True)
class _Git:
    """Calls git, which takes no lock and asks nothing.

    Args:
      wanted: What is looked for, for messages.
    """

    wanted: str

    def call(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        """Return what came of a call in a folder; the working directory when None."""
        # Looking must not disturb: no lock on the index, and no prompt for a password.
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        command = ["git", *words]
        try:
            return subprocess.run(
                command, capture_output=True, env=environment, cwd=folder, check=False
            )
        except OSError as error:
            what = f"{self.wanted} names a revision, and there is no git here"
            remedy = "install git, or give a run or a record"
            raise BadInput(Problem(what, remedy=remedy)) from error

    def told(self, *words: str) -> str:
        """Return the output of a call that is to succeed."""
        done = self.call(*words)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            what = f"cannot read {self.wanted} as a revision: {reason.removeprefix('fatal: ')}"
            raise BadInput(Problem(what))
        return done.stdout.decode(errors="replace").strip()


@contextlib.contextmanager
def _copy(git: _Git, revision: Revision) -> Iterator[Path]:
    """Lay out the files of a revision in a temporary folder, which is removed after the block."""
    # In a folder below, git would archive that folder alone.
    words = ("archive", "--format=tar", f"--prefix={_TREE}/", revision.commit)
    archive = git.call(*words, folder=revision.root)
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise BadInput(Problem(f"cannot copy the revision {revision.name}: {reason}"))
    with tempfile.TemporaryDirectory(prefix="luthier-diff-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            # Python 3.11.4 brought filters; a tree of git holds nothing that reaches outside.
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            files.extractall(folder, **safely)
        yield Path(folder).resolve() / _TREE


def _evaluate(folder: Path, revision: Revision, overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return what `evaluated` found in a copy of a revision."""
    at = folder / revision.below
    if not at.is_dir():
        raise BadInput(Problem(f"{revision.name} has no folder {revision.below}"))
    answer = folder.parent / "answer.json"
    words = [str(answer), str(revision.root), revision.reference, *overrides]
    command = [sys.executable, "-P", evaluated.__file__, *words]
    done = subprocess.run(
        command,
        cwd=at,
        env=_environment(folder, revision),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
    )
    try:
        # Paths of the temporary copy are in the history (where a value was set); they are cut off,
        # or every value would differ.
        written = answer.read_text(encoding="utf-8")
        found = json.loads(written.replace(f"{folder}{os.sep}", ""))
    except (OSError, ValueError) as error:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it said nothing"]
        what = f"{revision.name} cannot be asked for {revision.reference}: {lines[-1].strip()}"
        raise BadInput(Problem(what)) from error
    if "problems" in found:
        raise BadInput([Problem(f"{revision.name}: {line}") for line in found["problems"]])
    return found


def _environment(folder: Path, revision: Revision) -> dict[str, str]:
    """Return the environment of the process: what is in the tree is taken from the copy."""
    paths = [folder / revision.below]
    for entry in map(os.path.abspath, filter(None, sys.path)):
        if Path(entry).is_relative_to(revision.root):
            paths.append(folder / Path(entry).relative_to(revision.root))
    if (folder / _OWN).is_dir():
        paths.insert(0, folder / _OWN.parent)
    else:
        paths.append(Path(luthier.__file__).resolve().parents[1])
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "PYTHONDONTWRITEBYTECODE": "1"}
    environment.pop("PYTHONWARNINGS", None)
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(map(str, paths)))
    return environment
