"""The source that a run ran: versions, git revision, and a copy of the user's own code."""

from __future__ import annotations

import ast
import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from luthier.errors import RunError
from luthier.records.redaction import redact
from luthier.storage import json_text, read_json, write_atomically
from luthier.storage.atomic import one_line_errors

# The user's own code, as a run ran it: a list of files for each start, and one copy of each file.
#
# code.json the SHA-256 of every Python file of the user's packages; code.1.json an earlier one
# code/<sha>.py the files, each once, however many starts ran it

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
        # Named by content: a resumed run adds only the files that changed, and an earlier start's
        # list (`code.1.json`) still finds its own.
        copy = copy_of(directory, digest)
        if len(content) <= _LARGEST_FILE_BYTES and not copy.exists():
            # Larger files are data rather than code; their digest is kept all the same.
            with one_line_errors("create", copy.parent):
                copy.parent.mkdir(exist_ok=True)
            write_atomically(copy, redact(content.decode(errors="replace")))
    return json_text({"version": 1, "files": files})


def copy_of(directory: pathlib.Path, digest: str) -> pathlib.Path:
    """Return where the copy of a file is, or would be."""
    return directory / FOLDER / f"{digest[:16]}.py"


def recorded_code(directory: pathlib.Path) -> dict[str, str] | None:
    """Return the code that the last start of a run used; None if it was not recorded."""
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
    # A closure over imports, read off the syntax tree: dynamic imports are missed, and a name that
    # is imported but not used counts.
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
        # Parsed and not imported: this runs before anything of the user's has been imported, and a
        # module that fails at import must not keep a run from being checked.
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


# What source a run ran: versions, git revision, what differs from it, hashes of packages.

_VERSIONS_OF = (
    "luthier", "jax", "jaxlib", "flax", "optax", "orbax-checkpoint", "grain", "fiddle", "numpy",
    "wandb",
)  # fmt: skip
_LARGEST_PATCH_BYTES = 4 << 20
_SKIPPED = frozenset({"__pycache__", "node_modules", "build", "dist"})

_SHIPPED = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "shipped")

Files = tuple[tuple[str, pathlib.Path], ...]


@dataclasses.dataclass(frozen=True)
class Source:
    """The source that a run ran.

    Args:
      versions: Version of every package that matters, by distribution name.
      python: Version of Python.
      platform: Operating system, kernel and machine.
      git: `root`, `revision`, `branch`, `dirty`, `untracked`, `patch_sha256`; empty outside a
        repository.
      packages: SHA-256 over the Python files of each of the user's packages, and of luthier.
      patch: Differences of tracked files from the revision; empty without any.
      arguments: The command line.
    """

    versions: dict[str, str]
    python: str
    platform: str
    git: dict[str, Any]
    packages: dict[str, str]
    patch: str = ""
    arguments: tuple[str, ...] = ()

    def files(self) -> dict[str, str]:
        """Return the text of every file that records this, by name.

        Returns:
          Texts by file name.
        """
        record = dataclasses.asdict(self)
        patch = record.pop("patch")
        files = {}
        if patch:
            record["git"]["patch"] = f"source-{self.git['patch_sha256'][:12]}.patch"
            files[record["git"]["patch"]] = patch
        files["source.json"] = json.dumps(record, indent=1) + "\n"
        return {name: redact(text) for name, text in files.items()}


def read_source(packages: Sequence[str] = (), directory: str | os.PathLike[str] = ".") -> Source:
    """Return the source that runs in this process.

    It calls git twice at most, with time limits, and imports nothing; a missing git, package or
    repository leaves its entry empty.

    Args:
      packages: Import names of the user's packages.
      directory: Any directory of the repository to describe.

    Returns:
      Versions, the platform, the commit and the uncommitted patch, hashes of packages, and the
      command line.
    """
    # The patch is what makes a run of uncommitted code reproducible; untracked files are listed,
    # and those of the user's packages are copied (`keep_code`).
    git, patch = _git(pathlib.Path(directory))
    hashes = {}
    for name in ("luthier", *packages):
        digest = hash_package(name)
        if digest:
            hashes[name] = digest
    return Source(
        versions=versions(),
        python=platform.python_version(),
        platform=platform.platform(),
        git=git,
        packages=hashes,
        patch=patch,
        arguments=tuple(sys.argv),
    )


def read_facts(packages: Sequence[str] = ()) -> dict[str, str]:
    """Return the facts that processes that train together must share, by name.

    Args:
      packages: Import names of the user's packages.

    Returns:
      Texts by name: versions, and 12 digits of the hash of each package.

    Example:
      >>> from luthier import records
      >>> "the version of jax" in records.read_facts()
      True
    """
    facts = {f"the version of {name}": text for name, text in versions().items()}
    facts["the version of Python"] = platform.python_version()
    hashes = {name: hash_package(name) for name in ("luthier", *packages)}
    return facts | {f"the source of {name}": sha[:12] for name, sha in hashes.items() if sha}


@functools.cache
def versions() -> dict[str, str]:
    """Return the version of every package that matters, by distribution name."""
    import importlib.metadata  # here, for the start-up time of those who don't need it

    found = {}
    for name in _VERSIONS_OF:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def hash_package(name: str) -> str:
    """Return the SHA-256 over the names and contents of a package's Python files.

    Args:
      name: An import name, such as `my_project` or `my_project.models`.

    Returns:
      Hexadecimal digits, or "" if there is no such package on the path.

    Example:
      >>> from luthier import records
      >>> len(records.hash_package("luthier"))
      64
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return ""
    if spec is None:
        return ""
    if spec.submodule_search_locations is not None:
        files = tuple(_python_files(spec.submodule_search_locations))
    else:
        files = ((spec.name + ".py", pathlib.Path(spec.origin)),) if spec.origin else ()
    return _hash_files(files, tuple(_stamp(path) for _, path in files))


def package_files(name: str) -> Iterator[tuple[str, pathlib.Path]]:
    """Yield the Python files of a top-level package, or the file of a module, by their names.

    Args:
      name: An import name without dots; the names that are yielded begin with it.
    """
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError, AttributeError):
        return
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        for relative, path in _python_files(spec.submodule_search_locations):
            yield f"{name}/{relative}", path
    elif spec.origin:
        yield f"{name}.py", pathlib.Path(spec.origin)


def _stamp(path: pathlib.Path) -> tuple[int, int, int]:
    """Return a stamp of a file that changes when it is written."""
    try:
        status = path.stat()
    except OSError:
        return (0, 0, 0)
    return (status.st_mtime_ns, status.st_size, status.st_ino)


@functools.lru_cache(maxsize=64)
def _hash_files(files: Files, stamps: tuple[tuple[int, int, int], ...]) -> str:
    """Return the hash of files; `stamps` keeps one of other contents from being taken for it."""
    digest = hashlib.sha256()
    for relative, path in files:
        try:
            content = path.read_bytes()
        except OSError:
            continue
        for part in (relative.encode(), content):
            # Lengths first, so that moving bytes from the end of a name to the start of a content
            # changes the hash.
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.hexdigest()


def _python_files(locations: Sequence[str]) -> Iterator[tuple[str, pathlib.Path]]:
    for location in locations:
        for directory, directories, names in os.walk(location):
            directories[:] = sorted(
                name
                for name in directories
                if not name.startswith(".")
                and name not in _SKIPPED
                # A run has the graph that an experiment made; the experiment may change.
                and os.path.join(directory, name) != _SHIPPED
            )
            for name in sorted(names):
                if name.endswith(".py"):
                    path = pathlib.Path(directory, name)
                    yield path.relative_to(location).as_posix(), path


def _git(directory: pathlib.Path) -> tuple[dict[str, Any], str]:
    # `-z`: names come as they are, unquoted. Without renames an entry is one name.
    status = _call_git(directory, "status", "--porcelain=v2", "--branch", "-z", "--no-renames")
    # No git, no repository, or no answer in time: the run is recorded without.
    if status is None:
        return {}, ""
    revision = branch = ""
    untracked, changed = [], []
    for entry in status.decode(errors="replace").split("\0"):
        if entry.startswith("# branch.oid "):
            revision = entry.removeprefix("# branch.oid ")
        elif entry.startswith("# branch.head "):
            branch = entry.removeprefix("# branch.head ")
        elif entry.startswith("? "):
            untracked.append(entry[2:])
        elif entry and not entry.startswith("#"):
            changed.append(entry)
    # `dirty` is about the patch, which holds tracked files only; others are named, up to a hundred.
    git: dict[str, Any] = {
        "root": str(_root(directory)),
        "revision": "" if revision == "(initial)" else revision,
        "branch": "" if branch == "(detached)" else branch,
        "dirty": bool(changed),
        "untracked": untracked[:100],
    }
    # Before the first commit there is no HEAD to compare with.
    if not changed or not git["revision"]:
        return git, ""
    # External diff programs and text conversions of the user's would make a patch that cannot be
    # applied.
    patch = _call_git(directory, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-textconv")
    if patch is None:
        return git, ""
    git["patch_sha256"] = hashlib.sha256(patch).hexdigest()
    # The hash stays without its patch: it shows whether two runs had the same changes.
    if len(patch) > _LARGEST_PATCH_BYTES:
        return git, ""
    # A patch may hold bytes that are no UTF-8. Each becomes a surrogate and then `?`, since half of
    # a surrogate pair could not be written as UTF-8; the hash above is of the bytes as they were.
    return git, patch.decode(errors="surrogateescape").encode(errors="replace").decode()


def _root(directory: pathlib.Path) -> pathlib.Path:
    resolved = directory.resolve()
    for candidate in (resolved, *resolved.parents):
        if (candidate / ".git").exists():
            return candidate
    return resolved


def _call_git(directory: pathlib.Path, *arguments: str, seconds: float = 5.0) -> bytes | None:
    """Return git's output, or None; hooks and monitors of the repository are not run."""
    # A monitor is a program that the repository's own config names; optional locks would interfere
    # with a git that the user runs at the same time, and a prompt would wait for ever.
    command = ("git", "-c", "core.fsmonitor=false", "-c", "core.quotePath=false", *arguments)
    environment = {**os.environ, "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
    try:
        result = subprocess.run(
            command,
            cwd=directory,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            timeout=seconds,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout if result.returncode == 0 else None
