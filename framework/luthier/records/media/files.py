"""The files of a run's images: `media/<name>/<step>.png`, each there before its line is."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re

from luthier.records.events import Image
from luthier.records.files import run_error, write_bytes_atomically
from luthier.records.media.png import encode_png
from luthier.storage.atomic import one_line_errors
from luthier.storage.trash import move_to_trash

FOLDER = "media"
_STEP = re.compile(r"(\d+)\.png")


class MediaFiles:
    """Writes the images of a run, and forgets those that a restart makes again.

    Args:
      run_path: The run's directory.
    """

    def __init__(self, run_path: str | os.PathLike[str]):
        self._run_path = pathlib.Path(run_path)

    def keep(self, image: Image) -> Image:
        """Write an image's pixels; return it with the path of its file instead of them.

        The same name and step give the same file, so a step that runs again writes it again.

        Args:
          image: An image with pixels.

        Raises:
          RunError: The disk refuses.
          ValueError: The pixels are no image, or the name cannot name a folder.
        """
        if not re.fullmatch(r"[A-Za-z0-9_.=,+-]+(/[A-Za-z0-9_.=,+-]+)*", image.name) or (
            ".." in image.name
        ):
            raise ValueError(f"{image.name!r} cannot be the name of an image")
        path = pathlib.PurePosixPath(FOLDER, image.name, f"{image.step}.png")
        target = self._run_path / path
        data = encode_png(image.pixels)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise run_error("create", target.parent, error) from error
        write_bytes_atomically(target, data)
        return dataclasses.replace(image, pixels=None, path=str(path))

    def cut_back(self, step: int, reason: str = "training was resumed") -> int:
        """Move the images of later steps than `step` to the trash; return how many there were.

        Args:
          step: The restored step.
          reason: Why, in one line.

        Raises:
          RunError: The disk refuses.
        """
        later = [
            (int(match[1]), path)
            for path in sorted((self._run_path / FOLDER).rglob("*.png"))
            if (match := _STEP.fullmatch(path.name)) and int(match[1]) > step
        ]
        if not later:
            return 0
        folder = self._run_path / f"{FOLDER}.{max(number for number, _ in later)}"
        for _, path in later:
            target = folder / path.relative_to(self._run_path / FOLDER)
            with one_line_errors("move", path):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
        move_to_trash(folder, reason)
        return len(later)
