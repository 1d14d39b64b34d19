"""Records of graphs: as JSON, as plain values, and the history of their values."""

from __future__ import annotations

from luthier.graph.record.encode import WIDTH, lay_out, read_record, to_json
from luthier.graph.record.history_log import history, history_record, restore_history
from luthier.graph.record.leaves import decode_leaf, encode_leaf, is_singleton
from luthier.graph.record.plain import plain_leaf, to_dict
from luthier.graph.record.structure import can_share, entries, nodes, set_arguments, shared

__all__ = [
    "WIDTH",
    "can_share",
    "decode_leaf",
    "encode_leaf",
    "entries",
    "history",
    "history_record",
    "is_singleton",
    "lay_out",
    "nodes",
    "plain_leaf",
    "read_record",
    "restore_history",
    "set_arguments",
    "shared",
    "to_dict",
    "to_json",
]
