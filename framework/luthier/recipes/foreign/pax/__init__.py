"""From experiments of Pax, dumped where Pax still runs, to graphs of ours."""

from luthier.recipes.foreign.pax.experiment import Imported, import_dump
from luthier.recipes.foreign.pax.nodes import Leftover

__all__ = ["Imported", "Leftover", "import_dump"]
