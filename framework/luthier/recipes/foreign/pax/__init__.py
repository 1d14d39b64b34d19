"""Import of Pax experiments, which are dumped where Pax still runs."""

from luthier.recipes.foreign.pax.experiment import Imported, import_dump
from luthier.recipes.foreign.pax.nodes import Dump, Leftover, read_dump

__all__ = ["Dump", "Imported", "Leftover", "import_dump", "read_dump"]
