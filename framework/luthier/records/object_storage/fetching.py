"""A run's directory from its copy, on a machine that has none."""

from __future__ import annotations

import os
import pathlib
import shutil
from collections.abc import Iterator, Sequence

from luthier.errors import Problem, RunError
from luthier.records.files import run_error, sync_directory
from luthier.records.object_storage import pieces
from luthier.records.object_storage.bucket import Bucket
from luthier.records.object_storage.keys import fault_of, open_below
from luthier.records.object_storage.lease import KEY
from luthier.records.object_storage.mirror import CHECKPOINTS, COMMIT, LOCAL, of_environment
from luthier.records.object_storage.segments import FOLDER, Segments

_CONFIG = "config.json"


def bring_back(path: pathlib.Path) -> bool:
    """Make a run's directory of the copy that the environment names; return whether there was one.

    Args:
      path: Where; nothing is done where there is a run already.

    Raises:
      RunError: The store or the disk refuses.
    """
    bucket = of_environment(path)
    return bucket is not None and fetch(path, bucket)


def fetch(path: pathlib.Path, bucket: Bucket) -> bool:
    """Make a run's directory of its copy; return whether there was one.

    The directory appears whole, or not at all. Of checkpoints, those that are committed come.

    Args:
      path: Where; nothing is done where there is a run already.
      bucket: The folder of the copy.

    Raises:
      RunError: The store or the disk refuses, or an object has a name that leads out of the
        directory; nothing was written then.
    """
    if (path / _CONFIG).is_file():
        return False
    names = bucket.list()
    if not {_CONFIG, _CONFIG + pieces.INDEX}.intersection(names):
        return False
    for name in names:
        _check(bucket, name)
    # A new folder under a name that nobody can guess, and so prepare.
    building = path.with_name(f".{path.name}.{os.urandom(8).hex()}.fetched")
    try:
        building.parent.mkdir(parents=True, exist_ok=True)
        building.mkdir()
        for name, content in _files(bucket, names):
            with open_below(building, name) as file:
                file.writelines(content)
        os.rename(building, path)
        sync_directory(path.parent)
    except OSError as error:
        raise run_error("create", path, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return True


def _check(bucket: Bucket, name: str) -> None:
    """Refuse a copy with a name that no `Mirror` has written."""
    fault = fault_of(name)
    if not fault and name.split("/")[0] in LOCAL:
        fault = "it is of the machine that writes it only"
    if fault:
        what = f"{bucket.url} is no copy of a run: it has an object {name!r}: {fault}"
        remedy = "nothing was copied; see who writes to that bucket, and delete the object"
        raise RunError(Problem(what, remedy=remedy))


def _files(bucket: Bucket, names: Sequence[str]) -> Iterator[tuple[str, Iterator[bytes]]]:
    """Yield the files of a copy, by their names in the run's directory, with their contents."""
    for name in _wanted(names):
        if name.endswith(pieces.INDEX):
            whole = name.removesuffix(pieces.INDEX)
            yield whole, pieces.download(bucket, whole)
        elif pieces.FOLDER not in name:
            yield name, bucket.read_pieces(name)
    for name in sorted({n.partition(f"{FOLDER}/")[0] for n in names if f"{FOLDER}/" in n}):
        yield name, Segments(bucket, name).read()


def _wanted(names) -> list[str]:
    whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{COMMIT}")}
    wanted = []
    for name in names:
        step = "/".join(name.split("/")[:2])
        of_checkpoint = name.startswith(f"{CHECKPOINTS}/") and name.count("/") > 1
        if name != KEY and f"{FOLDER}/" not in name and (not of_checkpoint or step in whole):
            wanted.append(name)
    return wanted
