"""Corpora that were tokenized once, and are read from disk."""

from luthier.data.prepared.layout import Layout, Survey, plan_layout, survey
from luthier.data.prepared.prepare import prepare
from luthier.data.prepared.prepared import Prepared, made_plans
from luthier.data.prepared.shards import verify
from luthier.data.prepared.verification import Verification

__all__ = [
    "Layout",
    "Prepared",
    "Survey",
    "Verification",
    "made_plans",
    "plan_layout",
    "prepare",
    "survey",
    "verify",
]
