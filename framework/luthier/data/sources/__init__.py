"""Where documents come from: one family of sources a file."""

from luthier.data.sources.documents import Documents
from luthier.data.sources.json_lines import JsonLines
from luthier.data.sources.shakespeare import Shakespeare
from luthier.data.sources.source import Source, blocks
from luthier.data.sources.text_files import TextFiles

__all__ = ["Documents", "JsonLines", "Shakespeare", "Source", "TextFiles", "blocks"]
