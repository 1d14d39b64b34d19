"""ConfigDicts of ml_collections: loaded, laid over a graph with live references, and exported.

ml_collections is imported where it is used, because most commands need none of it.
"""

from __future__ import annotations

from luthier.graph.formats.config_dict.export import to_config_dict
from luthier.graph.formats.config_dict.loading import is_config_dict, load_config_dict
from luthier.graph.formats.config_dict.overlay import apply_config_dict, apply_words
from luthier.graph.formats.config_dict.renames import places_of
from luthier.graph.grammar import front_ends
from luthier.graph.grammar.statements import WORDS_OF_CONFIG_DICT

__all__ = ["apply_config_dict", "load_config_dict", "to_config_dict"]

front_ends.register_words(WORDS_OF_CONFIG_DICT, apply_words)
front_ends.register_keys("config_dict", places_of)
front_ends.register_argument(is_config_dict, load_config_dict)
