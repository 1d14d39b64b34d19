"""Corpora that were tokenized once, and are read from disk."""

from luthier.data.prepared.prepare import PreparedLayout, Survey, plan_layout, prepare, survey
from luthier.data.prepared.prepared import Prepared, Verification, made_plans
from luthier.data.prepared.shards import verify

__all__ = [
    "Prepared",
    "PreparedLayout",
    "Survey",
    "Verification",
    "made_plans",
    "plan_layout",
    "prepare",
    "survey",
    "verify",
]
