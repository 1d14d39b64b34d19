"""The user's project: `[tool.luthier]` in the nearest pyproject.toml.

The command line and the functions of Python find the same project, from the working directory: what
can be named on the one can be named in the other.
"""

from __future__ import annotations

import ast
import contextlib
import dataclasses
import difflib
import functools
import importlib.util
import itertools
import os
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path

from luthier import folders
from luthier.errors import BadInput, Problem

EXAMPLES = {"packages": "my_package", "fiddlers": "my_package.fiddlers"}
SETTINGS = tuple(EXAMPLES)

RECORDS = ("runs", "studies")
"""The default folders of runs and of studies, in the folder of the project."""

RUNS_VARIABLE = "LUTHIER_RUNS"
"""The environment variable with another default folder of runs, or its URL."""

BUCKET_SCHEMES = ("gs", "s3")

SHELVES = ("luthier.recipes",)
"""Modules whose fiddlers can be named without their module, in addition to the project's."""


@dataclasses.dataclass(frozen=True)
class Project:
    """The settings of a project.

    Args:
      root: The folder of its pyproject.toml; the working directory where there is none.
      packages: The user's modules that recorded graphs may name.
      fiddlers: The user's modules whose fiddlers can be named without their module.
    """

    root: Path
    packages: tuple[str, ...] = ()
    fiddlers: tuple[str, ...] = ()

    @property
    def shelves(self) -> tuple[str, ...]:
        """All modules whose fiddlers can be named without their module; later ones win."""
        return (*SHELVES, *self.fiddlers)


@contextlib.contextmanager
def importable(directory: Path | None = None) -> Iterator[None]:
    """Put a folder on `sys.path` for the duration of a block, where it is not there already.

    Args:
      directory: The folder; None is the working directory.

    Yields:
      Nothing.

    Raises:
      BadInput: The working directory no longer exists.
    """
    # `python -m luthier` has the working directory there, the console script `luthier` and a script
    # in another folder have not, and all must find the user's `configs`. It is taken out again,
    # because tests and programs call functions of luthier many times from different folders.
    try:
        place = os.getcwd() if directory is None else str(directory)
    except FileNotFoundError:
        problem = Problem(
            "the working directory no longer exists", remedy="change to one that does"
        )
        raise BadInput(problem) from None
    present = place in sys.path or (directory is None and "" in sys.path)
    if not present:
        sys.path.insert(0, place)
    try:
        yield
    finally:
        if not present and place in sys.path:
            sys.path.remove(place)


def find(start: Path | None = None) -> Project:
    """Read the pyproject.toml of the project that a folder belongs to (see `root`).

    Args:
      start: The folder to start in; None is the working directory.

    Returns:
      The project; one without packages if no pyproject.toml is found.

    Raises:
      BadInput: The file cannot be read, or `[tool.luthier]` has unknown settings.
    """
    path = root(start) / "pyproject.toml"
    if not path.is_file():
        return Project(path.parent)
    # Overrides are applied thousands of times in a study, and the file is read once. By its time,
    # because a notebook lives longer than an edit of the file.
    return Project(path.parent, **_settings(path, path.stat().st_mtime_ns))


def root(start: Path | None = None) -> Path:
    """Return the folder of the project; the folder of the start without any.

    A project has a pyproject.toml with `[tool.luthier]`, or with `configs` or `sweeps` beside it.
    The nearest pyproject.toml decides: a package inside of a project does not get the packages of
    the outer one.

    Args:
      start: The folder to start in; None is the working directory.
    """
    start = (start or Path.cwd()).resolve()
    return Path(folders.project_folder(str(start)) or start)


def records_folder(directory: str | os.PathLike[str], on_disk: bool = False) -> Path:
    """Return the folder of runs or studies that a setting names.

    The defaults, `runs` and `studies`, are those of the project, from whichever folder of it a
    script is started; `LUTHIER_RUNS` replaces the default `runs`. Any other path, `./runs` too, is
    one from the working directory. For the URL of an object store it is the working copy of it.

    Args:
      directory: The setting, such as `records.directory`.
      on_disk: Whether an object store is refused.

    Returns:
      The folder; relative where the working directory is the project's.

    Raises:
      BadInput: It is a URL, and none of an object store, or none is allowed.
    """
    text = os.fspath(directory)
    if text == RECORDS[0] and not on_disk:
        text = os.environ.get(RUNS_VARIABLE) or text
    if "://" in text:
        if on_disk:
            what = f"{text} is not a directory of a disk"
            raise BadInput(Problem(what, remedy="give a local or a mounted one"))
        return working_copy(text)
    if text not in RECORDS:
        return Path(text)
    start = Path.cwd().resolve()
    own = root(start)
    return Path(text) if own == start else own / text


def working_copy(url: str) -> Path:
    """Return the folder of this machine where the records of an object store are worked on.

    Args:
      url: `gs://bucket/folder` or `s3://bucket/folder`.

    Returns:
      A folder in the user's cache, which need not exist. The same for each spelling of a URL.

    Raises:
      BadInput: It is not such a URL.
    """
    scheme, _, rest = url.partition("://")
    parts = [part for part in rest.split("/") if part]
    is_plain = all(part.isprintable() and part not in (".", "..") for part in parts)
    if scheme not in BUCKET_SCHEMES or not parts or not is_plain or "\\" in url:
        remedy = "write a directory, gs://BUCKET/FOLDER or s3://BUCKET/FOLDER"
        raise BadInput(Problem(f"{url!r} is not a place for records", remedy=remedy))
    return _buckets() / scheme / "/".join(parts)


def bucket_url(path: str | os.PathLike[str]) -> str:
    """Return the URL that a folder is the working copy of; empty where it is none.

    Args:
      path: A folder; see `working_copy`.

    Returns:
      The URL, without a slash at its end.
    """
    place = os.path.abspath(path)
    for buckets in (str(_buckets()), os.path.realpath(_buckets())):
        if place.startswith(buckets + os.sep):
            scheme, *parts = place[len(buckets) + 1 :].split(os.sep)
            return f"{scheme}://{'/'.join(parts)}" if parts else ""
    return ""


def address(path: str | os.PathLike[str]) -> str:
    """Return where a folder is kept: its path, or the URL that it is the working copy of.

    Args:
      path: A folder; see `working_copy`.
    """
    return bucket_url(path) or os.fspath(path)


def _buckets() -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(os.path.abspath(cache), "luthier", "buckets")


def described(folder: str | os.PathLike[str]) -> str:
    """Return the project as text, for those who look for their runs in the working directory.

    Args:
      folder: The folder of a run or of a study.

    Returns:
      The folder of the project and why it is the project; empty if that is the working directory,
      or if `folder` is not in the project's `runs` or `studies`.
    """
    own = root()
    is_within = any(Path(folder).resolve().is_relative_to(own / name) for name in RECORDS)
    if own == Path.cwd().resolve() or not is_within:
        return ""
    return f"{own}, from its pyproject.toml"


def packages_of(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return packages that were given; those of the project where none were.

    Args:
      given: The argument `packages` of a function; None means that the caller left it out.

    Raises:
      BadInput: See `find`.
    """
    return find().packages if given is None else tuple(given)


def shelves_of(given: Sequence[str] | None) -> tuple[str, ...]:
    """Return shelves that were given; luthier's own and those of the project where none were.

    Args:
      given: The argument `shelves` of a function; None means that the caller left it out.

    Raises:
      BadInput: See `find`.
    """
    return find().shelves if given is None else tuple(given)


def defined_names(packages: Sequence[str]) -> dict[str, list[str]]:
    """Return the public classes and functions of the user's packages, for suggestions.

    The source is parsed and nothing is imported: importing a module only to correct a misspelt name
    would run the user's code.

    Args:
      packages: The packages.

    Returns:
      Full names by bare name; of at most 200 files, and none of files that cannot be parsed.
    """
    found: dict[str, list[str]] = {}
    for module, path in itertools.islice(_files_of(packages), _MOST_FILES):
        with contextlib.suppress(OSError):
            for name in _top_level_names(path, path.stat().st_mtime_ns):
                found.setdefault(name, []).append(f"{module}.{name}")
    return found


_MOST_FILES = 200


def _files_of(packages: Sequence[str]) -> Iterator[tuple[str, Path]]:
    """Yield the modules of packages, by full name, with their files."""
    for package in packages:
        top, *below = package.split(".")
        try:
            spec = importlib.util.find_spec(top)  # of a dotted name it would import the parent
        except (ImportError, ValueError):
            continue
        places = () if spec is None else spec.submodule_search_locations or ()
        if spec is not None and not places and spec.origin and not below:
            yield package, Path(spec.origin)
        for place in places:
            start = Path(place, *below)
            if start.with_suffix(".py").is_file():
                yield package, start.with_suffix(".py")
            for path in sorted(start.rglob("*.py")):
                parts = [*path.relative_to(start).parent.parts, path.stem]
                yield ".".join([package, *(p for p in parts if p != "__init__")]), path


@functools.lru_cache(maxsize=_MOST_FILES)
def _top_level_names(path: Path, changed: int) -> tuple[str, ...]:
    del changed  # the key of the cache
    try:
        body = ast.parse(path.read_text(encoding="utf-8")).body
    except (SyntaxError, ValueError):
        return ()
    nodes = (node for node in body if isinstance(node, ast.ClassDef | ast.FunctionDef))
    return tuple(node.name for node in nodes if not node.name.startswith("_"))


@functools.lru_cache(maxsize=8)
def _settings(path: Path, changed: int) -> dict[str, tuple[str, ...]]:
    del changed  # the key of the cache
    try:
        settings = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise BadInput(Problem(f"cannot read {path}: {error}")) from error
    # An unknown name is an error: a misspelt `packages` would silently forbid what the user allows.
    tool = settings.get("tool")
    ours = tool.get("luthier", {}) if isinstance(tool, dict) else {}
    origin = f"[tool.luthier] in {path}"
    if not isinstance(ours, dict):
        raise BadInput(Problem("tool.luthier is not a table", origin=origin))
    problems = [
        Problem(
            f"unknown setting {name!r}",
            origin=origin,
            nearest=difflib.get_close_matches(name, SETTINGS),
            remedy=f"the settings are {', '.join(SETTINGS)}",
        )
        for name in ours
        if name not in SETTINGS
    ]
    found = {name: _modules(ours, name, origin, problems) for name in SETTINGS}
    if problems:
        raise BadInput(problems)
    return found


def _modules(ours: dict, setting: str, origin: str, problems: list[Problem]) -> tuple[str, ...]:
    """Return the list of module names of a setting; its problems are added to `problems`."""
    names = ours.get(setting, [])
    remedy = f'write {setting} = ["{EXAMPLES[setting]}"]'
    if not isinstance(names, list):
        problems.append(Problem(f"{setting} is not a list: {names!r}", "", origin, remedy))
        return ()
    problems += [
        Problem(f"{setting} has {name!r}, which is not a module name", "", origin, remedy)
        for name in names
        if not (isinstance(name, str) and all(p.isidentifier() for p in name.split(".")))
    ]
    return tuple(names)
