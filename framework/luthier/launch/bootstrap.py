"""The entry point of a worker whose study is in an object store: it fetches the study's source.

    python -m luthier.launch.bootstrap URL -m luthier.launch.worker ...

Workers of a study on a disk import from the copy of the source in its folder. Here each machine
unpacks a copy of its own, and the worker starts with it on its path. Until then, the luthier that
is installed on the machine runs.
"""

from __future__ import annotations

import hashlib
import os
import pathlib
import sys
from collections.abc import Sequence
from typing import NoReturn

from luthier import project
from luthier.errors import LuthierError, Problem, RunError
from luthier.storage import segments
from luthier.storage.bucket import Bucket
from luthier.study.driver.directory import ARCHIVE, unpack_source


def main(arguments: Sequence[str]) -> NoReturn:
    """Fetch the source, then become another program.

    Args:
      arguments: The URL of the study, and the words of the program for Python.
    """
    study, *words = arguments
    try:
        source = fetch_source(study)
    except LuthierError as error:
        print(f"luthier: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    paths = [str(source), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    sys.stdout.flush()
    # In the place of this process and not as its child: signals of the engine reach the worker.
    os.execve(sys.executable, [sys.executable, *words], environment)


def fetch_source(study: str) -> pathlib.Path:
    """Return the folder with the source of a study on this machine.

    Args:
      study: The URL of the study.

    Raises:
      RunError: The store or the disk refuses, or the study has no source.
    """
    bucket = Bucket(study)
    names = [name for name in bucket.list(ARCHIVE) if segments.whole_name(name) == ARCHIVE]
    contents = [b"".join(content) for _, content in segments.files_in(bucket, names)]
    if not contents:
        raise RunError(Problem(f"{study} has no {ARCHIVE}"))
    # By its content: a study whose failed trials are retried may have another source then. Hidden,
    # because this may be the machine of the driver, which uploads the files of this folder.
    digest = hashlib.sha256(contents[0]).hexdigest()[:12]
    folder = project.working_copy(study)
    target = folder / f".source.{digest}"
    archive = folder / f".source.{os.urandom(4).hex()}.tar.gz"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        archive.write_bytes(contents[0])
        return unpack_source(archive, target)
    except OSError as error:
        raise RunError(Problem(f"cannot write {archive}: {error}")) from error
    finally:
        archive.unlink(missing_ok=True)


if __name__ == "__main__":
    main(sys.argv[1:])
