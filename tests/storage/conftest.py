"""Processes that can be killed."""

from tests.records.conftest import start

__all__ = ["start"]
