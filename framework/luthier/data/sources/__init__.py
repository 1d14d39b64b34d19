"""Sources of documents, one family a module."""

from luthier.data.sources.containers import (
    ArrayRecord,
    Bagz,
    Container,
    TFRecord,
    damaged,
    unopened,
)
from luthier.data.sources.corpus import Split, corpus
from luthier.data.sources.documents import Documents, Shakespeare, TextFiles
from luthier.data.sources.files import matching_files, package_file, read_file
from luthier.data.sources.records import Decoded, Field, JsonLines, JsonObject, JsonRecords, Records
from luthier.data.sources.source import Corruption, Fail, Part, Skip, Source, blocks
from luthier.data.sources.tables import HuggingFace, Parquet, Tfds, TFExample

__all__ = [
    "ArrayRecord",
    "Bagz",
    "Container",
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
    "Split",
    "TFExample",
    "TFRecord",
    "TextFiles",
    "Tfds",
    "blocks",
    "corpus",
    "damaged",
    "matching_files",
    "package_file",
    "read_file",
    "unopened",
]
