"""Rows as seqio and Paxml make them: documents joined, cut every so many tokens, and shifted."""

from luthier.data.splitting.pretokenized import Pretokenized
from luthier.data.splitting.shifts import Shift, ShiftLeft, ShiftRight
from luthier.data.splitting.split_tokens import SplitTokens, TrimTokens

__all__ = ["Pretokenized", "Shift", "ShiftLeft", "ShiftRight", "SplitTokens", "TrimTokens"]
