"""Trust in records: only records of the same project may call the user's own packages.

What luthier and its libraries let a record name is listed (`luthier.graph.public_names`) and only
describes. The user's packages are code that anything may be in, and a record chooses the function
and the arguments. So a record that was made elsewhere may name them only once the user has agreed:
by `--trust PATH`, by an answer on a terminal, or by a call in Python that gives the packages.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pathlib
import re
import sys
from collections.abc import Iterable, Sequence

from luthier import project
from luthier.errors import BadInput, Problem, RecordError

VARIABLE = "LUTHIER_TRUST"
"""Paths that are trusted, for this process and those that it starts."""

_SEPARATOR = re.compile(rf"{os.pathsep}(?!//)")
"""Between paths; the colon of a URL is none."""

_declared: set[str] = set()
_noted: set[pathlib.Path] = set()


def trust(path: str | os.PathLike[str]) -> None:
    """Let the records at or below a path name the user's packages, here and in child processes.

    Args:
      path: A folder or a file, or the URL of a folder in an object store.

    Raises:
      RecordError: There is nothing at this path.
    """
    is_url = "://" in os.fspath(path)
    full = (project.working_copy(os.fspath(path)) if is_url else pathlib.Path(path)).resolve()
    if not full.exists() and not is_url:  # that of a URL is made when the store is read
        raise RecordError(Problem(f"--trust {path}: there is no such file or folder"))
    # In the environment, so that workers, mirrors and launched processes inherit the user's answer
    # and do not ask again.
    known = _SEPARATOR.split(os.environ.get(VARIABLE, ""))
    os.environ[VARIABLE] = os.pathsep.join(dict.fromkeys(filter(None, [*known, str(full)])))


def give(packages: Iterable[str]) -> None:
    """Remember packages that the program itself named: studies of this process may load them.

    Args:
      packages: Import names.
    """
    _declared.update(packages)


def packages_for(
    path: str | os.PathLike[str], text: str, packages: Sequence[str]
) -> tuple[str, ...]:
    """Return the user's packages that a record may name, and note whose it is.

    A record of another project that is not seen to name any of them may name none.

    Args:
      path: Where the record is.
      text: Its content.
      packages: The packages of the project that is worked in.

    Raises:
      RecordError: It names one of them, was made in another project, and nobody agreed.
    """
    place = pathlib.Path(path).resolve()
    _note_owner(place)
    if is_trusted(place) or _is_same_project(place):
        return tuple(packages)
    # Data cannot be told from code here: a record calls what it names. Components of luthier and
    # its libraries are on a list and harmless; the user's own packages are not, and a stranger's
    # record must not reach them by guessing their names.
    named = [package for package in packages if _mentions(text, package)]
    if not named:
        return ()  # a text can name without saying so: by escapes, by files that it includes
    address = project.address(path)
    what = f"{address} was not made in this project and names your package {', '.join(named)}"
    if not _agreed(f"{what}: what it names is called with its arguments"):
        remedy = f"if you know who made it, add: --trust {project.address(_folder(place))}"
        raise RecordError(Problem(what, remedy=remedy))
    trust(place)
    return tuple(packages)


def require(path: str | os.PathLike[str], why: str) -> None:
    """Reject records made in another project until the user agrees.

    Args:
      path: A folder.
      why: The intended use, as the end of a sentence about it.

    Raises:
      RecordError: It was made elsewhere, and nobody agreed.
    """
    place = pathlib.Path(path).resolve()
    if is_trusted(place) or _is_same_project(place):
        return
    address = project.address(path)
    what = f"{address} was not made in this project, and {why}"
    if not _agreed(what):
        remedy = f"if you know who made it, add: --trust {project.address(place)}"
        raise RecordError(Problem(what, remedy=remedy))
    trust(place)


def packages_of_study(
    path: str | os.PathLike[str], text: str, recorded: Sequence[str]
) -> tuple[str, ...]:
    """Return the packages that the record of a study may name: those it recorded, if they are ours.

    A study writes down the packages of its values. In somebody else's study they could be any
    module of Python, so they count where this project, or this program, has them as its own.

    Args:
      path: The study's record, or that of a trial.
      text: Its content.
      recorded: The packages that the study wrote down.

    Raises:
      RecordError: It names one that is not ours, or was made in another project, and nobody agreed.
    """
    place = pathlib.Path(path).resolve()
    if is_trusted(place):
        return tuple(recorded)
    ours = {*_declared, *_project_packages()}
    strange = [name for name in recorded if name not in ours and _mentions(text, name)]
    if strange:
        address = project.address(path)
        what = f"{address} names {', '.join(strange)}, outside the packages of this project"
        remedy = "add it to packages under [tool.luthier] in pyproject.toml, or, if you know who"
        remedy += f" made the study, add: --trust {project.address(_folder(place))}"
        raise RecordError(Problem(what, remedy=remedy))
    own = [name for name in recorded if name in ours]
    # Packages that this very program named need no consent; those of the project go through the
    # test for foreign records.
    declared = [name for name in own if name in _declared]
    allowed = packages_for(place, text, [name for name in own if name not in _declared])
    return tuple(dict.fromkeys([*declared, *allowed]))


def is_trusted(path: pathlib.Path) -> bool:
    """Return whether the user trusts what is at a path.

    Args:
      path: The resolved path.
    """
    # The environment and not a global: workers and launched processes inherit it.
    known = [
        project.working_copy(place).resolve() if "://" in place else pathlib.Path(place)
        for place in _SEPARATOR.split(os.environ.get(VARIABLE, ""))
        if place
    ]
    # Paths are resolved on both sides: a link inside of a trusted folder does not lead out of it.
    return any(path.is_relative_to(folder) for folder in known)


def record_place(path: str | os.PathLike[str]) -> None:
    """Remember that this project began a run or a study in a folder outside of its own.

    It is kept in the user's cache folder: nothing beside a record proves whose it is.

    Args:
      path: The folder of the run or of the study.
    """
    place = pathlib.Path(path).resolve()
    # The file has a path per line: a path with a line break could name a second folder.
    if is_trusted(place) or _is_same_project(place) or "\n" in str(place):
        return
    file = _places_file()
    with contextlib.suppress(OSError):  # then --trust is asked for
        file.parent.mkdir(parents=True, exist_ok=True)
        with open(file, "a", encoding="utf-8") as opened:
            opened.write(f"{place}\n")


def record_move(source: str | os.PathLike[str], destination: str | os.PathLike[str]) -> None:
    """Remember that a run of this project, or one that is trusted, was moved to another folder.

    Args:
      source: The former folder of the run.
      destination: The new one.
    """
    place = pathlib.Path(source).resolve()
    if is_trusted(place) or _is_same_project(place):
        record_place(destination)


def _is_same_project(path: pathlib.Path) -> bool:
    """Return whether a record lies in this project, or in a folder that it began a run in.

    The content of a record is no evidence.
    """
    if path.is_relative_to(project.root()):
        return True
    try:
        places = _places_file().read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError):
        return False
    return any(path.is_relative_to(place) for place in places if os.path.isabs(place))


def _places_file() -> pathlib.Path:
    """Return the file of the folders in which this project began runs and studies."""
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    # One file for each project: what one project began is not trusted by another.
    name = hashlib.sha256(os.fsencode(project.root())).hexdigest()[:16]
    return pathlib.Path(cache, "luthier", "places", name)


def _folder(path: pathlib.Path) -> pathlib.Path:
    return path if path.is_dir() or path.suffix != ".json" else path.parent


def _mentions(text: str, package: str) -> bool:
    """Return whether a text may name something in a package; it may be a word of plain text too."""
    # Errs on the side of asking.
    name = re.escape(package)
    return re.search(rf"(?<![\w.]){name}\s*[.:/]|\b(?:import|from)\s+{name}\b", text) is not None


def _agreed(what: str) -> bool:
    # Nobody is asked where nobody can answer (a batch job, a pipe): there the answer is no.
    if not (sys.stdin is not None and sys.stdin.isatty() and sys.stderr.isatty()):
        return False
    print(f"luthier: {what}.\nluthier: trust it? [y/N] ", end="", file=sys.stderr, flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _note_owner(path: pathlib.Path) -> None:
    try:
        owner = path.stat().st_uid
    except OSError:
        return
    if owner != os.getuid() and path not in _noted:
        _noted.add(path)
        print(
            f"luthier: {path} is built from a record of another user (uid {owner})", file=sys.stderr
        )


def _project_packages() -> tuple[str, ...]:
    # The command line reports errors in the file.
    try:
        return project.find().packages
    except BadInput:
        return ()
