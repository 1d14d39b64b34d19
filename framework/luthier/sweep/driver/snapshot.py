"""The source that a study runs: a copy of luthier and the user's packages, taken when it begins.

Workers import from the copy, so that an edit in the middle of a study changes nothing in its
trials; the driver tells about it.
"""

from __future__ import annotations

import importlib.util
import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from luthier.records.files import read_json, run_error, sync_directory, write_json
from luthier.records.source import hash_package

FOLDER = "source"
HASHES = "hashes.json"
_LEFT_OUT = shutil.ignore_patterns("__pycache__", ".*", "node_modules")


def take(
    directory: str | os.PathLike[str], packages: Sequence[str], *, anew: bool = False
) -> pathlib.Path:
    """Copy the source of luthier and of packages; what was copied before stays as it is.

    Args:
      directory: The study's folder.
      packages: Import names of the user's packages; what stands below one counts with it.
      anew: Whether a copy that is there is replaced.

    Returns:
      The folder of the copy, which belongs in front of the workers' `sys.path`.

    Raises:
      RunError: It cannot be written.
    """
    root = pathlib.Path(directory)
    target, temporary = root / FOLDER, root / f".{FOLDER}.tmp"
    if (target / HASHES).is_file() and not anew:
        return target
    names = _top_level(packages)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        for name in names:
            for place in _places(name):
                copy = temporary / place.name
                if place.is_dir():
                    shutil.copytree(place, copy, ignore=_LEFT_OUT, dirs_exist_ok=True)
                else:
                    shutil.copy2(place, copy)
        write_json(temporary / HASHES, {name: hash_package(name) for name in names})
        shutil.rmtree(target, ignore_errors=True)
        temporary.rename(target)
    except (OSError, shutil.Error) as error:
        refusal = error if isinstance(error, OSError) else OSError(str(error))
        raise run_error("copy the source to", target, refusal) from error
    sync_directory(root)
    return target


def edited(directory: str | os.PathLike[str]) -> list[str]:
    """Return the packages whose source is not what the study's workers run.

    Args:
      directory: The study's folder.
    """
    taken = read_json(pathlib.Path(directory, FOLDER, HASHES), {})
    return [name for name, digest in taken.items() if hash_package(name) != digest]


def _top_level(packages: Sequence[str]) -> list[str]:
    return list(dict.fromkeys(name.split(".")[0] for name in ("luthier", *packages)))


def _places(name: str) -> Iterator[pathlib.Path]:
    spec = importlib.util.find_spec(name)
    if spec is None:
        return
    if spec.submodule_search_locations is not None:
        yield from map(pathlib.Path, spec.submodule_search_locations)
    elif spec.origin:
        yield pathlib.Path(spec.origin)
