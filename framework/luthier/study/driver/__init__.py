"""The driver of a study: it asks the sampler, runs trials on device groups, records results.

The names are imported at their first use: looking at a study needs neither Optuna nor JAX.
"""

from __future__ import annotations

from luthier.facade import lazy_exports

_PLACES = {
    "Admission": "admission",
    "Driver": "loop",
    "InMemoryStudy": "sampling",
    "Journal": "journal",
    "Ledger": "trial_table",
    "ParameterSet": "trial_table",
    "Pruning": "sampling",
    "Repaired": "repair",
    "StudyDirectory": "directory",
    "Suggestion": "sampling",
    "Trial": "trial_table",
    "ValidatedTrial": "admission",
    "View": "loop",
    "copy_source": "directory",
    "distribution": "sampling",
    "edited_packages": "directory",
    "find_study": "directory",
    "kind_of": "admission",
    "load_journal": "journal",
    "make_suggester": "sampling",
    "mark_of": "admission",
    "read_journal": "journal",
    "repair_journal": "repair",
    "require_whole": "journal",
    "seed_of": "sampling",
    "study_facts": "mirror",
    "trial_graph": "directory",
    "update_mirror": "mirror",
}

__all__ = [
    "Admission",
    "Driver",
    "InMemoryStudy",
    "Journal",
    "Ledger",
    "ParameterSet",
    "Pruning",
    "Repaired",
    "StudyDirectory",
    "Suggestion",
    "Trial",
    "ValidatedTrial",
    "View",
    "copy_source",
    "distribution",
    "edited_packages",
    "find_study",
    "kind_of",
    "load_journal",
    "make_suggester",
    "mark_of",
    "read_journal",
    "repair_journal",
    "require_whole",
    "seed_of",
    "study_facts",
    "trial_graph",
    "update_mirror",
]

__getattr__, __dir__ = lazy_exports(__name__, _PLACES)
