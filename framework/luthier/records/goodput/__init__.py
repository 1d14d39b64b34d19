"""Where the time of a run goes: a stopwatch, its spans in a file, and their account."""

from luthier.records.goodput.account import Account, Lifetime, account_of
from luthier.records.goodput.spans import FILE, Spans, read_spans
from luthier.records.goodput.stopwatch import (
    COMPILE,
    DATA_WAIT,
    EVALUATE,
    INIT,
    SAVE,
    SHOW,
    STEP,
    Goodput,
    Piece,
)

__all__ = [
    "COMPILE",
    "DATA_WAIT",
    "EVALUATE",
    "FILE",
    "INIT",
    "SAVE",
    "SHOW",
    "STEP",
    "Account",
    "Goodput",
    "Lifetime",
    "Piece",
    "Spans",
    "account_of",
    "read_spans",
]
