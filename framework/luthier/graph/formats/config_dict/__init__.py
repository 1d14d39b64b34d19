"""ConfigDicts of ml_collections: loaded, laid over a graph with live references, and exported.

ml_collections is imported where it is used, because most commands need none of it.
"""

from __future__ import annotations

from luthier.graph.formats.config_dict.export import to_config_dict
from luthier.graph.formats.config_dict.loading import load_config_dict
from luthier.graph.formats.config_dict.overlay import apply_config_dict

__all__ = ["apply_config_dict", "load_config_dict", "to_config_dict"]
