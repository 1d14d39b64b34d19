"""Labelled arrays: images and series, in memory, in files and in packages."""

from luthier.data.arrays.arrays import ArrayExamples, Arrays, ExampleSource
from luthier.data.arrays.image_folder import ImageFolder
from luthier.data.arrays.packaged import Digits, Mnist5k, Ucr
from luthier.data.arrays.record_examples import RecordExamples

__all__ = [
    "ArrayExamples",
    "Arrays",
    "Digits",
    "ExampleSource",
    "ImageFolder",
    "Mnist5k",
    "RecordExamples",
    "Ucr",
]
