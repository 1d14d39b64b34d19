"""Images in folders, one folder a class."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
from typing import BinaryIO, ClassVar

import numpy as np

from luthier.data.arrays.arrays import ExampleSource
from luthier.data.requirements import require
from luthier.errors import DataError, Problem

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp")


@dataclasses.dataclass(frozen=True)
class ImageFolder(ExampleSource):
    """Image files below one folder for each class, decoded on demand.

    Classes are the folders in the order of their names. Images are scaled to one size (bilinear)
    where they have another, and values reach from 0 to 1.

    Args:
      directory: The folder of the classes' folders.
      height: H, in pixels.
      width: W, in pixels.
      channels: C: 1 for gray, 3 for red, green and blue.

    Raises:
      DataError: at first use, when there are no such files; later, naming the file, when one is
        damaged.
    """

    RANGES: ClassVar[dict[str, str]] = {"height": "1 <= x", "width": "1 <= x"}

    directory: str
    height: int
    width: int
    channels: int = 3

    @property
    def shape(self) -> tuple[int, ...]:
        """[H, W, C]."""
        return (self.height, self.width, self.channels)

    # Apart from the files, because the number of classes is needed to check a config, and listing
    # the folders of a million images takes long.
    @functools.cached_property
    def classes(self) -> tuple[str, ...]:
        """The names of the classes, sorted."""
        try:
            with os.scandir(os.path.expanduser(self.directory)) as entries:
                names = tuple(sorted(entry.name for entry in entries if entry.is_dir()))
        except OSError as error:
            what = f"{self.directory}: cannot be read: {error.strerror or error}"
            raise DataError(Problem(what, remedy="name a folder of folders")) from None
        if not names:
            what = f"{self.directory} has no folders, one for each class"
            raise DataError(Problem(what, remedy="name a folder of folders"))
        return names

    @functools.cached_property
    def _files(self) -> tuple[list[str], np.ndarray, str]:
        """The path and the class of each image, and a fingerprint of names and sizes."""
        # Sorted, because the order in which a file system lists differs between machines, and the
        # number of an example must not.
        paths: list[str] = []
        labels: list[int] = []
        hasher = hashlib.blake2b(repr(self.shape).encode(), digest_size=16)
        for number, name in enumerate(self.classes):
            folder = os.path.join(os.path.expanduser(self.directory), name)
            for path in sorted(os.listdir(folder)):
                if path.lower().endswith(ENDINGS):
                    paths.append(os.path.join(folder, path))
                    labels.append(number)
                    # Names and sizes instead of contents, which would be read at every start.
                    size = os.path.getsize(paths[-1])
                    hasher.update(f"{name}/{path}:{size}\n".encode())
        if not paths:
            what = f"{self.directory}: no images ({', '.join(ENDINGS)}) in its folders"
            raise DataError(Problem(what, remedy="add some"))
        return paths, np.array(labels, np.int32), hasher.hexdigest()

    @property
    def num_classes(self) -> int:
        """The number of classes."""
        return len(self.classes)

    @property
    def labels(self) -> np.ndarray:
        """The class of each image, int32 [images]."""
        return self._files[1]

    @property
    def digest(self) -> str:
        """A fingerprint of the files' names and sizes."""
        return self._files[2]

    def inputs(self, indices: np.ndarray) -> np.ndarray:
        """Return images.

        Args:
          indices: Numbers of the examples, int64 [n].

        Returns:
          Float32 [n, H, W, C].
        """
        images = np.empty((len(indices), *self.shape), np.float32)
        for place, index in enumerate(np.asarray(indices).tolist()):
            images[place] = self._image(self._files[0][index])
        return images

    def _image(self, path: str) -> np.ndarray:
        return decode_image(path, path, self.shape)


def decode_image(file: str | BinaryIO, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Decode an image and bring it to a shape.

    Args:
      file: Its path, or a file of its bytes.
      name: Its name in messages.
      shape: H, W and C; 1 for gray, 3 for red, green and blue.

    Returns:
      The pixels from 0 to 1, float32 [H, W, C].

    Raises:
      DataError: when it cannot be decoded.
    """
    # Converted before resizing: the numbers of a palette image are not shades that could be
    # averaged.
    pillow = require("PIL.Image", "images", "decoding images")
    height, width, channels = shape
    try:
        with pillow.open(file) as image:
            pixels = image.convert("L" if channels == 1 else "RGB")
            if pixels.size != (width, height):
                pixels = pixels.resize((width, height), pillow.Resampling.BILINEAR)
            array = np.asarray(pixels, np.float32) / 255
    # Pillow raises SyntaxError for a broken PNG, ValueError for some headers, else OSError.
    except (OSError, SyntaxError, ValueError) as error:
        what = f"{name}: not an image that can be read: {error}"
        raise DataError(Problem(what, remedy="copy it again or delete it")) from None
    return array.reshape(shape)
