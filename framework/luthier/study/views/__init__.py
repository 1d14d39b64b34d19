"""Views of a study: a live table, its trials as text, an HTML report, a summary in W&B.

The names are imported at their first use: `luthier sweep show` imports neither Optuna nor W&B.
"""

from __future__ import annotations

import importlib
from typing import Any

_HOMES = {
    "FEWEST": "report",
    "LiveView": "text",
    "MOST": "report",
    "Span": "report",
    "StudyStatus": "text",
    "Timeline": "report",
    "best_lines": "text",
    "describe": "report",
    "ended_line": "text",
    "headline": "text",
    "importance": "report",
    "lines_of": "text",
    "mirror_study": "wandb_summary",
    "read_status": "text",
    "read_timeline": "report",
    "sparkline": "text",
    "summary_of": "wandb_summary",
    "timeline_of": "report",
    "trial_lines": "text",
    "wandb_of": "wandb_summary",
}

__all__ = [
    "FEWEST",
    "MOST",
    "LiveView",
    "Span",
    "StudyStatus",
    "Timeline",
    "best_lines",
    "describe",
    "ended_line",
    "headline",
    "importance",
    "lines_of",
    "mirror_study",
    "read_status",
    "read_timeline",
    "sparkline",
    "summary_of",
    "timeline_of",
    "trial_lines",
    "wandb_of",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'luthier.study.views' has no attribute {name!r}")
    return getattr(importlib.import_module(f"luthier.study.views.{_HOMES[name]}"), name)
