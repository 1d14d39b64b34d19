"""Records with named fields from the files of other tools: Parquet, Arrow, TFDS."""

from luthier.data.sources.tables.hugging_face import HuggingFace
from luthier.data.sources.tables.parquet import Parquet
from luthier.data.sources.tables.tf_example import TFExample
from luthier.data.sources.tables.tfds import Tfds

__all__ = ["HuggingFace", "Parquet", "TFExample", "Tfds"]
