"""Records of graphs: as JSON, as plain values, and the history of their values."""

from __future__ import annotations

from luthier.graph.record.encode import to_json
from luthier.graph.record.history_log import history, history_record, restore_history
from luthier.graph.record.plain import to_dict

__all__ = [
    "history",
    "history_record",
    "restore_history",
    "to_dict",
    "to_json",
]
