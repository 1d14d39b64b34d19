"""Images, texts and distributions: what of them is recorded, and their files."""

from luthier.records.media.files import MediaFiles
from luthier.records.media.png import encode_png
from luthier.records.media.settings import Histograms, Images, Samples

__all__ = ["Histograms", "Images", "MediaFiles", "Samples", "encode_png"]
