"""Which documents are kept: filters, and the source that applies them."""

from luthier.data.filters.filter import Deduplicate, Filter, Length, Predicate, fold
from luthier.data.filters.filtered import Filtered

__all__ = ["Deduplicate", "Filter", "Filtered", "Length", "Predicate", "fold"]
