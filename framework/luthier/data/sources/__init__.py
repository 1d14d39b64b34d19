"""Where documents come from: one family of sources a file."""

from luthier.data.sources.containers import ArrayRecord, Bagz, TFRecord
from luthier.data.sources.corruption import Corruption, Fail, Skip
from luthier.data.sources.documents import Documents
from luthier.data.sources.json_lines import JsonLines, JsonRecords
from luthier.data.sources.part import Part
from luthier.data.sources.records import Decoded, Field, JsonObject, Records
from luthier.data.sources.shakespeare import Shakespeare
from luthier.data.sources.source import Source, blocks
from luthier.data.sources.tables import HuggingFace, Parquet, Tfds, TFExample
from luthier.data.sources.text_files import TextFiles

__all__ = [
    "ArrayRecord",
    "Bagz",
    "Corruption",
    "Decoded",
    "Documents",
    "Fail",
    "Field",
    "HuggingFace",
    "JsonLines",
    "JsonObject",
    "JsonRecords",
    "Parquet",
    "Part",
    "Records",
    "Shakespeare",
    "Skip",
    "Source",
    "TFExample",
    "TFRecord",
    "TextFiles",
    "Tfds",
    "blocks",
]
