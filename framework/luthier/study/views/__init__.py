"""Views of a study: a live table, its trials as text, an HTML report, a summary in W&B.

The names are imported at their first use: `luthier sweep show` imports neither Optuna nor W&B.
"""

from __future__ import annotations

from luthier.facade import lazy_exports

_PLACES = {
    "FEWEST": "report",
    "LiveView": "text",
    "MOST": "report",
    "Span": "timeline",
    "StudyStatus": "text",
    "Timeline": "timeline",
    "best_lines": "text",
    "describe": "report",
    "ended_line": "text",
    "headline": "text",
    "importance": "report",
    "lines_of": "text",
    "mirror_study": "wandb_summary",
    "read_status": "text",
    "read_timeline": "timeline",
    "summary_of": "wandb_summary",
    "timeline_of": "timeline",
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
    "summary_of",
    "timeline_of",
    "trial_lines",
    "wandb_of",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
