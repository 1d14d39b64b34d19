"""Histograms, text samples and images of a run, and how often they are recorded."""

from __future__ import annotations

import dataclasses
import os
import pathlib
import re
import struct
import zlib
from typing import Any, ClassVar

from luthier.durations import Duration
from luthier.records.events import Image
from luthier.storage import run_error, write_bytes_atomically
from luthier.storage.atomic import one_line_errors
from luthier.storage.trash import move_to_trash


@dataclasses.dataclass(frozen=True, kw_only=True)
class Histograms:
    """Histograms of the entries of parameters, counted on the devices in one call.

    Args:
      every: Interval.
      num_bins: Number of bins of equal width between the smallest and the largest entry.
      pattern: Regular expression that is searched for in the names of parameters.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_bins": "1 <= x <= 512"}

    every: Duration
    num_bins: int = 64
    pattern: str = ""


@dataclasses.dataclass(frozen=True, kw_only=True)
class Samples:
    """Text that the language model continues: at the end of the run, and during training.

    Args:
      every: Interval during training, all prompts each time; None shows the first prompt at the
        end of the run only.
      prompts: Texts to continue; an empty one lets the model begin.
      num_tokens: Number of tokens to generate for each prompt.
      temperature: Sampling temperature; 0 takes the likeliest token.
      seed: Random seed of sampling, the same every time.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_tokens": "1 <= x", "temperature": "0 <= x"}
    READ_WHEN: ClassVar[dict[str, str]] = {"seed": "temperature > 0"}

    every: Duration | None = None
    prompts: tuple[str, ...] = ("",)
    num_tokens: int = 200
    temperature: float = 0.8
    seed: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Images:
    """Rows of the training batch that are images, side by side.

    Args:
      every: Interval.
      entry: The entry of the batch: [rows, height, width, channels].
      num_rows: Number of its first rows to show.
    """

    RANGES: ClassVar[dict[str, str]] = {"num_rows": "1 <= x"}

    every: Duration
    entry: str = "inputs"
    num_rows: int = 16


# A writer of PNG files that needs nothing but zlib.

# An encoder of thirty lines instead of a dependency on Pillow.
_COLOR_TYPES = {1: 0, 3: 2, 4: 6}  # channels to PNG's grey, RGB and RGBA


def encode_png(pixels: Any) -> bytes:
    """Return an image as the bytes of a PNG file.

    Args:
      pixels: uint8 [height, width, channels] with 1, 3 or 4 channels (grey, RGB, RGBA), or
        [height, width].

    Returns:
      The file's content.

    Raises:
      ValueError: It is not such an array.

    Example:
      >>> import numpy as np
      >>> from luthier import records
      >>> records.encode_png(np.zeros((2, 2), np.uint8))[1:4]
      b'PNG'
    """
    import numpy as np  # not at the top: importing this package must be cheap

    array = np.asarray(pixels)
    if array.ndim == 2:
        array = array[..., None]
    fits = array.ndim == 3 and array.size and array.shape[-1] in _COLOR_TYPES
    if array.dtype != np.uint8 or not fits:
        what = f"{array.dtype} {list(array.shape)}"
        raise ValueError(f"an image is uint8 [height, width, 1, 3 or 4 channels], not {what}")
    height, width, channels = array.shape
    rows = array.reshape(height, width * channels)
    # Each row of a PNG begins with the number of its filter; 0 is none. With it and zlib, PNG needs
    # no library.
    unfiltered = np.concatenate([np.zeros((height, 1), np.uint8), rows], axis=1)
    header = struct.pack(">IIBBBBB", width, height, 8, _COLOR_TYPES[channels], 0, 0, 0)
    data = zlib.compress(unfiltered.tobytes(), 6)
    chunks = _chunk(b"IHDR", header), _chunk(b"IDAT", data), _chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


# The files of a run's images: `media/<name>/<step>.png`, each there before its line is.

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

        Returns:
          The image without pixels, with its path.

        Raises:
          RunError: The disk refuses.
          ValueError: The pixels are not an image, or the name cannot name a folder.
        """
        # The name becomes a path below `media/`: it must not lead out of the run's directory.
        if not re.fullmatch(r"[A-Za-z0-9_.=,+-]+(/[A-Za-z0-9_.=,+-]+)*", image.name) or (
            ".." in image.name
        ):
            raise ValueError(f"{image.name!r} cannot be the name of an image")
        path = pathlib.PurePosixPath(FOLDER, image.name, f"{image.step}.png")
        target = self._run_path / path
        # The file before its line in metrics.jsonl: a reader never finds a path without an image.
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
          reason: The reason, in one line.

        Returns:
          The number of images.

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
        # Collected in one folder, whose name has the latest step: the trash is emptied by that
        # number.
        folder = self._run_path / f"{FOLDER}.{max(number for number, _ in later)}"
        for _, path in later:
            target = folder / path.relative_to(self._run_path / FOLDER)
            with one_line_errors("move", path):
                target.parent.mkdir(parents=True, exist_ok=True)
                os.replace(path, target)
        move_to_trash(folder, reason)
        return len(later)
