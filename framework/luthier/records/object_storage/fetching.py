"""A run's directory from its copy, on a machine that has none."""

from __future__ import annotations

import os
import pathlib
import shutil

from luthier.records.files import run_error, sync_directory
from luthier.records.object_storage.bucket import Bucket
from luthier.records.object_storage.lease import KEY
from luthier.records.object_storage.mirror import CHECKPOINTS, COMMIT, of_environment
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
      RunError: The store or the disk refuses.
    """
    if (path / _CONFIG).is_file():
        return False
    names = bucket.list()
    if _CONFIG not in names:
        return False
    building = path.with_name(f".{path.name}.{os.getpid()}.fetched")
    try:
        building.mkdir(parents=True)
        for name in _wanted(names):
            _write(building / name, bucket.read(name).data or b"")
        for name in {name.partition(f"{FOLDER}/")[0] for name in names if f"{FOLDER}/" in name}:
            _write(building / name, Segments(bucket, name).read())
        os.rename(building, path)
        sync_directory(path.parent)
    except OSError as error:
        raise run_error("create", path, error) from error
    finally:
        shutil.rmtree(building, ignore_errors=True)
    return True


def _wanted(names) -> list[str]:
    whole = {name.rpartition("/")[0] for name in names if name.endswith(f"/{COMMIT}")}
    wanted = []
    for name in names:
        step = "/".join(name.split("/")[:2])
        of_checkpoint = name.startswith(f"{CHECKPOINTS}/") and name.count("/") > 1
        if name != KEY and f"{FOLDER}/" not in name and (not of_checkpoint or step in whole):
            wanted.append(name)
    return wanted


def _write(path: pathlib.Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
