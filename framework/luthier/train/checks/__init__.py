"""Checks of a program on the devices that are here."""

from luthier.train.checks.repeatability import check_repeatable

__all__ = ["check_repeatable"]
