"""Which documents are kept: filters, and the source that applies them."""

from luthier.data.filters.filter import Deduplicate, Filter, Length, Predicate, fold
from luthier.data.filters.filtered import Filtered
from luthier.data.filters.left_out import left_out

__all__ = ["Deduplicate", "Filter", "Filtered", "Length", "Predicate", "fold", "left_out"]
