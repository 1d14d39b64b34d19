"""Operands from git revisions: an experiment of a revision, or a record that it contains.

The experiment is built by another process in a temporary copy of the revision, with the luthier of
the revision if it has one. The working tree is neither read nor changed.
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
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import luthier
from luthier.cli.operands import evaluated
from luthier.cli.operands.operand import Operand, Record, of_record
from luthier.errors import BadInput, Problem

_NAMES = re.compile(r"[A-Za-z_][\w.]*")
_FUNCTION = re.compile(r"[A-Za-z_]\w*(\(.*\))?", re.DOTALL)
_REFERENCE = re.compile(r"[A-Za-z_]\w*(\.\w+)*(:\w+(\(.*\))?)?", re.DOTALL)
_OWN = Path("framework", "luthier")
"""The folder of luthier in a revision of its own repository."""
_TREE = "tree"


@dataclasses.dataclass(frozen=True)
class Revision:
    """An experiment or a record of a revision.

    Args:
      name: The name of the revision on the command line.
      commit: Its hash.
      root: The top folder of the working tree.
      below: The working directory, relative to it.
      reference: The experiment, or the path of the record from the working directory.
    """

    name: str
    commit: str
    root: Path
    below: Path
    reference: str


def find(word: str) -> Revision | None:
    """Return the revision that a word names; None if it names something else.

    Args:
      word: `HEAD~1:configs.lm.quickstart`, `HEAD~1:configs/lm/quickstart.py`,
        `v1.0:runs/a/b/config.json`. A word that can be read as `package.module:function` is a
        revision only if there is no such module.

    Raises:
      BadInput: There is no git, no repository, or no such revision; or the revision is written
        after the experiment.
    """
    _check_order(word)
    name, colon, reference = word.partition(":")
    if not colon or not name or not reference or name in ("run", "study", "hf"):
        return None
    if reference.endswith(".py"):  # as `git show` names it, and as shells complete it
        reference = ".".join(PurePosixPath(reference).with_suffix("").parts)
    may_be_module = bool(_NAMES.fullmatch(name) and _FUNCTION.fullmatch(reference))
    if may_be_module and _is_module(name):
        return None
    try:
        return _known(name, reference)
    except BadInput:
        if may_be_module:  # the error about the missing module is the more helpful one
            return None
        raise


def _check_order(word: str) -> None:
    """Reject `configs.lm.quickstart@HEAD~1`, as package managers write a version."""
    reference, sign, name = word.partition("@")
    if sign and name and _REFERENCE.fullmatch(reference) and not Path(word).exists():
        what = f"{word!r} has its git revision behind the experiment"
        raise BadInput(Problem(what, remedy=f"write {name}:{reference}"))


def read(
    revision: Revision, overrides: Sequence[str], title: str, packages: Sequence[str] = ()
) -> Operand:
    """Return the operand of a revision.

    Args:
      revision: The revision.
      overrides: Overrides, read by the luthier of the revision.
      title: The operand on the command line.
      packages: The user's packages that the graph may name.

    Raises:
      BadInput: The revision has no such experiment, or it cannot be built.
    """
    # A record is taken from git as it is. An experiment has to be built, and by the code of the
    # revision: today's luthier would apply today's defaults, and hide what the comparison is for.
    git = _Git(f"{revision.name}:{revision.reference}")
    when = git.output("log", "-1", "--format=%h of %cs: %s", revision.commit)
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
        built = _evaluate(folder, revision, overrides)
    return of_record(title, _record(built), detail=detail, packages=packages)


def ends_of(base: str, head: str, from_fork: bool) -> tuple[Revision, Revision | None]:
    """Return both ends of a range of revisions; None for a second end that is the working tree.

    Args:
      base: The name of the first revision.
      head: The name of the second; empty for the working tree.
      from_fork: Whether the range begins at the last common ancestor of both.

    Raises:
      BadInput: There is no git, no repository, or no such revision.
    """
    first = _known(base, "")
    second = _known(head, "") if head else None
    if from_fork:
        git = _Git(f"{base}...{head}")
        fork = git.output("merge-base", first.commit, second.commit if second else "HEAD")
        first = dataclasses.replace(first, commit=fork)
    return first, second


def read_all(
    revision: Revision, choose: Callable[[Path], Sequence[str]], packages: Sequence[str] = ()
) -> dict[str, Operand | BadInput]:
    """Return experiments of a revision by their references, all built by one process.

    Args:
      revision: The revision; its reference is not read.
      choose: Returns the references, from the working directory in a copy of the revision.
      packages: The user's packages that the graphs may name.

    Returns:
      Operands; or the problems of those that cannot be built.

    Raises:
      BadInput: The revision cannot be copied, or the process fails.
    """
    git = _Git(revision.name)
    detail = f"revision {git.output('log', '-1', '--format=%h of %cs: %s', revision.commit)}"
    with _copy(git, revision) as folder:
        references = choose(folder / revision.below)
        answers = _answers(folder, revision, [], references) if references else {}
    found: dict[str, Operand | BadInput] = {}
    for reference in references:
        built = answers[reference]
        if "problems" in built:
            found[reference] = BadInput([Problem(line) for line in built["problems"]])
        else:
            title = f"{revision.name}:{reference}"
            found[reference] = of_record(title, _record(built), detail=detail, packages=packages)
    return found


def _record(built: Mapping[str, Any]) -> Record:
    return Record(built["text"], json.dumps(built["history"]), json.dumps(built["values"]))


def _known(name: str, reference: str) -> Revision:
    # `--end-of-options`: a name that begins with a dash must not become an option of git.
    # `^{commit}` rejects the names of trees and files.
    git = _Git(f"{name}:{reference}" if reference else name)
    root = Path(git.output("rev-parse", "--show-toplevel"))
    commit = git.call("rev-parse", "--verify", "--quiet", "--end-of-options", f"{name}^{{commit}}")
    if commit.returncode:
        what = f"there is no revision {name!r} in {root}"
        raise BadInput(Problem(what, remedy="`git log --oneline` lists them"))
    below = Path(git.output("rev-parse", "--show-prefix"))
    return Revision(name, commit.stdout.decode().strip(), root, below, reference)


def _is_module(name: str) -> bool:
    """Return whether the top package of a module exists, without importing it."""
    try:
        return importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ImportError, ValueError):
        return False


@dataclasses.dataclass(frozen=True)
class _Git:
    """Runs git commands that take no lock and never prompt.

    Args:
      wanted: The operand that is looked for, for messages.
    """

    wanted: str

    def call(self, *words: str, folder: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        """Run git in a folder (None is the working directory) and return the completed process."""
        # Read-only use must not disturb: no lock on the index, and no prompt for a password.
        environment = os.environ | {"GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        command = ["git", *words]
        try:
            return subprocess.run(
                command, capture_output=True, env=environment, cwd=folder, check=False
            )
        except OSError as error:
            what = f"{self.wanted} is a git revision, but git is not installed"
            remedy = "install git, or give a run or a record"
            raise BadInput(Problem(what, remedy=remedy)) from error

    def output(self, *words: str) -> str:
        """Return the output of a git command; its failure is an error."""
        done = self.call(*words)
        if done.returncode:
            reason = done.stderr.decode(errors="replace").strip().partition("\n")[0]
            what = f"cannot read {self.wanted} as a revision: {reason.removeprefix('fatal: ')}"
            raise BadInput(Problem(what))
        return done.stdout.decode(errors="replace").strip()


@contextlib.contextmanager
def _copy(git: _Git, revision: Revision) -> Iterator[Path]:
    """Extract the files of a revision into a temporary folder for the duration of a block."""
    # `git archive` and not `git worktree`, which would write into the repository. From the top
    # folder, since in a folder below it git would archive that folder alone.
    words = ("archive", "--format=tar", f"--prefix={_TREE}/", revision.commit)
    archive = git.call(*words, folder=revision.root)
    if archive.returncode:
        reason = archive.stderr.decode(errors="replace").strip().partition("\n")[0]
        raise BadInput(Problem(f"cannot copy the revision {revision.name}: {reason}"))
    with tempfile.TemporaryDirectory(prefix="luthier-diff-") as folder:
        with tarfile.open(fileobj=io.BytesIO(archive.stdout)) as files:
            # Without a filter, newer versions of Python warn or reject; older ones than 3.11.4 have
            # none. A tree of git cannot contain paths that lead outside.
            safely: dict[str, Any] = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
            files.extractall(folder, **safely)
        yield Path(folder).resolve() / _TREE


def _evaluate(folder: Path, revision: Revision, overrides: Sequence[str]) -> Mapping[str, Any]:
    """Return the answer of the program `evaluated` for one experiment of a revision."""
    found = _answers(folder, revision, [revision.reference, *overrides])
    if "problems" in found:
        raise BadInput([Problem(f"{revision.name}: {line}") for line in found["problems"]])
    return found


def _answers(
    folder: Path, revision: Revision, words: Sequence[str], references: Sequence[str] = ()
) -> Mapping[str, Any]:
    """Return the answer of the program `evaluated` in a copy of a revision.

    Args:
      folder: The copy.
      revision: The revision.
      words: An experiment and its overrides; empty for the answers for `references`.
      references: Experiments, each without overrides.
    """
    # The program is that of today, by its path; what it imports is of the revision. -P keeps Python
    # from putting the program's own folder, today's `luthier.cli.operands`, on `sys.path`.
    at = folder / revision.below
    if not at.is_dir():
        raise BadInput(Problem(f"{revision.name} has no folder {revision.below}"))
    answer = folder.parent / "answer.json"  # beside the copy, where no file of the revision is
    command = [sys.executable, "-P", evaluated.__file__, str(answer), str(revision.root), *words]
    done = subprocess.run(
        command,
        cwd=at,
        env=_environment(folder, revision),
        input=json.dumps(list(references)).encode() if references else b"",
        capture_output=True,
        check=False,
    )
    # The answer decides, and not the exit code: the revision's own code may print, warn, or fail in
    # the cleanup at its exit.
    try:
        # The history has paths in the temporary copy (where a value was set). They are cut off, or
        # the origin of every value would differ.
        written = answer.read_text(encoding="utf-8")
        found = json.loads(written.replace(f"{folder}{os.sep}", ""))
    except (OSError, ValueError) as error:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["it printed nothing"]
        wanted = revision.reference or "the experiments"
        what = f"cannot build {wanted} of {revision.name}: {lines[-1].strip()}"
        raise BadInput(Problem(what)) from error
    return found


def _environment(folder: Path, revision: Revision) -> dict[str, str]:
    """Return the environment of the process, which imports from the copy, not from the tree."""
    # Every entry of `sys.path` inside of the repository is replaced by its place in the copy; those
    # outside (installed packages) come with the interpreter. Without a luthier in the revision,
    # today's is used. PYTHONWARNINGS is removed, because warnings as errors would fail an old
    # revision over a deprecation.
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
